"""Lists and tuples that a loop with a graph break grows: one compile for all lengths."""

import warnings

import pytest
import torch
import torchsmith_tracer

TIMES = 14  # more than the limit of compiles


@torchsmith_tracer.disable
def opaque(x):
    return x + 1


class Holder:
    def __init__(self):
        self.seen = []


def appended(x):
    out = []
    for _ in range(TIMES):
        x = opaque(x * 2)
        out.append(x)
    return torch.cat(out)


def comprehension(x):
    return torch.stack([opaque(x * i) for i in range(TIMES)])


def added_in_place(x):
    out, other = [], []
    for i in range(TIMES):
        x = opaque(x / 2)
        out += [x, x + i]
        other.extend((x, i))
    return torch.cat(out), other


def tuples(x):
    states = ()
    for _ in range(TIMES):
        states = states + (x,)
        x = opaque(x / 2)
        states += (x * 3, x)
    return (*states, x)


def kept_twice(x):
    first = []
    second = first
    for i in range(TIMES):
        x = opaque(x)
        first.append(x)
        if i % 2:
            second.append(x * 2)
    return first, second is first, len(second)


def in_an_object(x):
    holder = Holder()
    for _ in range(TIMES):
        x = opaque(x)
        holder.seen.append(x)
    return holder.seen


def into_itself(x):
    out = [x]
    for _ in range(4):
        out.append(opaque(x))
        out.extend(out)
    return out


def raising_on_the_way(x):
    out = []
    for i in range(TIMES):
        x = opaque(x)
        try:
            out.append(x)
            out.extend(1 // (i % 3) for _ in range(2))
        except ZeroDivisionError:
            out.append(x * 2)
    return out


def generators(x):
    out = []

    def numbers():
        try:
            yield x
            yield x * 2
        finally:
            done.append(1)

    done = []
    for _ in range(TIMES):
        made = numbers()
        out.append(opaque(next(made)))
        out.append(made)
    found = [t for t in out if isinstance(t, torch.Tensor)]
    out.clear()
    del made
    return found, done


GROWS = [
    appended,
    comprehension,
    added_in_place,
    tuples,
    kept_twice,
    in_an_object,
    into_itself,
    raising_on_the_way,
    generators,
]


def run(program, compiled, frames):
    for size in (3, 3, 5):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
    assert len(compiled._torchsmith_region.log.frames) <= frames


@pytest.mark.parametrize("program", GROWS)
def test_a_loop_that_grows_a_sequence_is_compiled_once(program):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(program, torchsmith_tracer.compile(program, backend="eager"), 30)


def looks_at_length(x):
    out = []
    for _ in range(4):
        x = opaque(x)
        out.append(x * len(out))
        out.append(x)
        out[-1] = out[-1] + out[0]
        if len(out) > 3:
            del out[1]
            out.insert(0, x)
    return out


def tuple_in_parts(x):
    states = ()
    for _ in range(4):
        x = opaque(x)
        longer = states + (x,)
        longest = longer + states
        states = (0, *longer) if len(longest) % 2 else longer
    return states, longest, longer


def compared(x):
    out, found = [], []
    for i in range(3):
        x = opaque(x)
        out.append(i)
        found.append(((0, 1) == tuple(out), i in out, bool(out), out == [0, 1, 2], len(out)))
    return found, x


@pytest.mark.parametrize("program", [looks_at_length, tuple_in_parts, compared])
def test_what_is_asked_of_it_is_right(program):
    run(program, torchsmith_tracer.compile(program, backend="eager"), 40)


def test_a_list_that_each_call_makes_longer_is_compiled_twice():
    holder = Holder()
    given = []

    def step(x):
        holder.seen.append(x * 2)
        given.append(x)
        return x + 1

    compiled = torchsmith_tracer.compile(step, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(TIMES):
            x = torch.full((2,), float(i))
            assert compiled(x).equal(x + 1)
            assert len(holder.seen) == len(given) == i + 1
            assert holder.seen[i].equal(x * 2) and given[i] is x
    assert len(compiled._torchsmith_region.log.frames) <= 3


def test_another_type_or_a_shorter_list_is_noticed():
    def step(held, x):
        held += [x]
        return held

    compiled = torchsmith_tracer.compile(step, backend="eager")
    for held in ([], [1], [1, 2, 3], (), (4, 5), [6], torch.zeros(1)):
        held = held if isinstance(held, torch.Tensor) else type(held)(held)
        copy = held.clone() if isinstance(held, torch.Tensor) else type(held)(held)
        x = torch.ones(1)
        try:
            want = step(copy, x)
        except TypeError as error:
            with pytest.raises(TypeError, match=str(error)[:20]):
                compiled(held, x)
            continue
        got = compiled(held, x)
        torch.testing.assert_close(got, want)
        assert (got is held) == (want is copy)


def test_two_paths_to_a_list_that_grows():
    def step(a, b, x):
        a.append(x)
        b.append(x * 2)
        return len(a)

    compiled = torchsmith_tracer.compile(step, backend="eager")
    shared = [1]
    for a, b in (([], []), ([1], [2, 3]), ([1, 2], [3]), (shared, shared), ([5], [6])):
        copy_a = list(a)
        copy_b = copy_a if a is b else list(b)
        x = torch.ones(1)
        assert compiled(a, b, x) == step(copy_a, copy_b, x)
        assert a == copy_a and b == copy_b
