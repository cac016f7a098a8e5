"""Loops and lists whose length differs from call to call: a few compiles serve all lengths."""

import collections
import itertools
import warnings

import pytest
import torch
import torchsmith_tracer
from torchsmith_guards import records

LENGTHS = (5, 7, 6, 9, 4, 8, 11, 10)


def versions(program, calls, **options):
    """Call a program, compiled, compare with eager, and give the number of versions of each of its
    pieces."""
    records.clear_metrics()
    records.set_metrics_limit(1000)
    compiled = torchsmith_tracer.compile(program, backend="eager", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for args in calls:
            torch.testing.assert_close(compiled(*args), program(*args), rtol=0, atol=0)
    return collections.Counter(
        frame.compile_id.partition("/")[0] for frame in records.metrics().frames
    )


@torchsmith_tracer.disable
def opaque(x):
    return x + 1


def steps(x):
    for t in range(x.size(0)):
        x = x * 2 + t
    return x


def from_one(x):
    y = torch.empty_like(x)
    y[0] = x[0]
    for t in range(1, x.size(0)):
        y[t] = x[t] + y[t - 1] / 2
    return y


def backwards(x):
    total, found = torch.zeros(()), []
    for r in reversed(x):
        total = r + total * 0.5
        found.insert(0, total)
    return torch.stack(found)


def rows(x):
    state = x.new_zeros(3)
    out = []
    for i, row in enumerate(x.unsqueeze(1) * torch.ones(3)):
        state = torch.tanh(row + state) if i else row
        out.append(state)
    return torch.stack(out, 1), state


def pairs(x):
    found = [a * b for a, b in zip(x, x.flip(0), strict=True)]
    return sum(found), len(found)


def nested(x):
    n = x.size(0)
    out = torch.zeros(n + 1, n + 1)
    for i in range(1, n + 1):
        for j in range(1, n + 1):
            out[i, j] = x[i - 1] * x[j - 1] + torch.minimum(out[i - 1, j], out[i, j - 1])
    return out


def read_back(x):
    back = []
    score, weights = x[:3].sum() + torch.arange(3.0), torch.arange(9.0).view(3, 3)
    for t in range(1, x.size(0)):
        score, place = (score.unsqueeze(1) + weights * x[t]).max(0)
        back.append(place)
    path = [score.argmax().item()]
    for place in reversed(back):
        path.append(place[path[-1]].item())
    return score, path


def chunks(x):
    total = x.new_zeros(())
    for i in range(0, x.size(0), 3):
        total = total + x[i : i + 3].sum() * i
    return total


def parts(x):
    return [p.sum() for p in x.split(2)], sum(x.unbind(0)), [p * 2 for p in torch.chunk(x, 3)]


def of_ranges(x):
    r = range(1, 2 * x.size(0), 2)
    y = opaque(x)
    return sum(i * y for i in r), list(r), len(r)


def iterators(x):
    steps = list(itertools.accumulate(range(x.size(0))))
    return [x * i for i in steps], max(i * i for i in range(x.size(0)))


def in_a_callee(x):
    return steps(x) + 1


@pytest.mark.parametrize(
    "program",
    [
        steps,
        from_one,
        backwards,
        rows,
        pairs,
        nested,
        read_back,
        chunks,
        parts,
        of_ranges,
        iterators,
        in_a_callee,
    ],
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_loop_is_compiled_for_few_of_its_lengths(program, dynamic):
    few = [(torch.randn(n),) for n in LENGTHS]
    many = [(torch.randn(n),) for n in (*LENGTHS, *range(12, 30))]
    counts = versions(program, few, dynamic=dynamic)
    assert max(counts.values()) <= 4
    assert versions(program, many, dynamic=dynamic).total() <= counts.total()


def listed(xs):
    return torch.cat(xs).sum(), len(xs)


def each_of(xs):
    return torch.stack([x.mean() for x in xs]), [x * 2 for x in xs]


def numbers(xs):
    return torch.tensor([len(x) for x in xs]) + 1


@pytest.mark.parametrize("program", [listed, each_of, numbers])
def test_a_list_is_compiled_for_few_of_its_lengths(program):
    calls = [([torch.randn(3 + i) for i in range(n)],) for n in LENGTHS]
    assert max(versions(program, calls).values()) <= 3


def test_two_lengths_are_two_graphs_without_breaks():
    assert versions(steps, [(torch.randn(n),) for n in (5, 7, 5, 7)]).total() == 2
    assert versions(listed, [([torch.randn(3)] * n,) for n in (2, 4, 2, 4)]).total() == 2


def test_the_first_lengths_keep_the_code_that_they_have(capture):
    compiled = torchsmith_tracer.compile(steps, backend=capture)
    for n in (5, 7, 6, 8, 9):
        compiled(torch.ones(n))
    made = capture.n
    ran = []
    region = compiled._torchsmith_region
    (record,) = region._records.values()
    for entry in record.entries:
        body = entry.body
        entry.body = lambda *args, e=entry, b=body: (ran.append(e.report), b(*args))[1]
    record._install(record.entries)
    for n in (5, 7, 30):
        torch.testing.assert_close(compiled(torch.ones(n)), steps(torch.ones(n)))
    assert [report.break_ is None for report in ran] == [True, True, False]
    assert capture.n == made


def test_with_fullgraph_each_length_is_unrolled(capture):
    compiled = torchsmith_tracer.compile(steps, backend=capture, fullgraph=True)
    for n in LENGTHS[:6]:
        torch.testing.assert_close(compiled(torch.ones(n)), steps(torch.ones(n)))
    assert capture.n == 6


def test_the_body_of_an_operator_is_not_broken():
    def body(x):
        return torch.utils.checkpoint.checkpoint(steps, x, use_reentrant=False)

    calls = [(torch.randn(n, requires_grad=True),) for n in LENGTHS[:5]]
    records.clear_metrics()
    versions(body, calls)
    assert not any(frame.break_ for frame in records.metrics().frames)


def test_gradients_through_a_loop_that_is_broken_up():
    cell = torch.nn.GRUCell(3, 4)

    def run(x):
        h = x.new_zeros(x.size(1), 4)
        out = []
        for t in range(x.size(0)):
            h = cell(x[t], h)
            out.append(h)
        return torch.stack(out)

    compiled = torchsmith_tracer.compile(run, backend="eager")
    for n in LENGTHS:
        x = torch.randn(n, 2, 3)
        found = []
        for fn in (run, compiled):
            leaf = x.clone().requires_grad_()
            grads = torch.autograd.grad(fn(leaf).square().sum(), [leaf, *cell.parameters()])
            found.append(grads)
        torch.testing.assert_close(*found)


def test_a_piece_looks_only_at_what_it_uses():
    def run(x, mask, scale, names):
        x = opaque(x * 2)
        x = opaque(x * 3)
        return x, mask, scale, names

    x = torch.ones(3)
    calls = [(x, torch.ones(n), n / 2, [n] * n) for n in (2, 3, 4, 5)]
    entry, middle, last = versions(run, calls).values()
    assert middle == 1 < entry and last == 2


def test_what_is_handed_on_is_the_object_itself():
    def run(x, names):
        same = x
        y = opaque(x)
        names.append(1)
        same.add_(1)
        z = opaque(y)
        shown = locals()
        return same is x, shown["same"] + z, names, shown["names"] is names

    compiled = torchsmith_tracer.compile(run, backend="eager")
    for n in (2, 3, 4):
        found = []
        for fn in (run, compiled):
            x, names = torch.ones(n), [0]
            result = fn(x, names)
            found.append((result, result[2] is names, x))
        torch.testing.assert_close(*found)


def test_a_call_in_front_of_the_return_needs_no_piece():
    def run(x):
        return opaque(x * 2)

    assert versions(run, [(torch.ones(n),) for n in (3, 4, 5)]).total() == 2


def test_what_varies_before_a_break_varies_after_it():
    def run(x, k):
        if x.sum() > 0:
            return x * k
        return opaque(x) - k

    sizes = [(torch.full((n,), -1.0), n) for n in (3, 4)] + [(torch.ones(n), n) for n in (5, 6, 7)]
    entry, negative, *others = versions(run, sizes).values()
    # The piece for positive numbers is compiled after the entry has seen everything change.
    assert entry == negative == 2 and 1 in others


def test_numbers_and_rows_from_data_vary_from_the_first():
    def run(x):
        k = (x > 0).sum().item()
        return x[:k] * k, x[x > 0] + 1

    calls = [(torch.tensor([1.0] * k + [-1.0] * (9 - k)),) for k in (4, 5, 7, 3)]
    assert set(versions(run, calls).values()) == {1}


def test_items_of_a_list_vary_together():
    def run(x, lengths):
        return [part.sum() for part in torch.split(x, lengths)]

    calls = [(torch.ones(9), lengths) for lengths in ([4, 3, 2], [3, 4, 2], [2, 3, 4], [5, 2, 2])]
    assert versions(run, calls).total() == 2

    def stacked(xs):
        return [x * 2 for x in xs]

    sizes = [(3, 4, 5), (4, 4, 5), (4, 7, 6), (9, 8, 7)]
    calls = [([torch.ones(n) for n in each],) for each in sizes]
    assert versions(stacked, calls).total() == 2


@pytest.mark.parametrize(
    "options", [{}, {"batch_first": True, "padding_value": 7}, {"padding_side": "left"}]
)
def test_sequences_are_padded_in_one_graph_for_all_lengths(options):
    def run(xs):
        return torch.nn.utils.rnn.pad_sequence(xs, **options)

    lengths = [(3, 5, 2), (4, 2, 6), (7, 7, 3), (2, 3, 4), (6, 5, 5)]
    calls = [([torch.randn(n, 2) for n in each],) for each in lengths]
    assert versions(run, calls).total() == 2
    rows = [([torch.arange(n) for n in each],) for each in lengths]
    assert versions(run, rows).total() == 2


def test_a_late_mask_is_as_long_as_what_varies():
    def run(x, mask=None):
        return x if mask is None else x * mask

    x = torch.ones
    calls = [(x(3),), (x(4),), (x(5), x(5)), (x(6), x(6)), (x(7), x(7)), (x(8),)]
    assert versions(run, calls).total() == 3


def test_the_stride_of_a_single_row_does_not_matter():
    def run(x):
        return (x * 2).sum(1), x.stride()

    whole = torch.arange(60.0).view(1, 6, 10)
    calls = [(part,) for part in (whole[:, :2], whole[:, :2].clone(), whole[:, :4], whole[:, :3])]
    calls += [(torch.ones(1, n, 10)[:, :2],) for n in (3, 7, 9)]
    assert versions(run, calls).total() <= 3


def test_a_reversed_tensor_is_a_tensor():
    def run(x):
        return reversed(x).cumsum(0), [r + 1 for r in reversed(x)], reversed(x[0])

    assert versions(run, [(torch.randn(n),) for n in (3, 4)]).total() == 2


def smallest(items):
    return min(*items, 5)


def group(items):
    found = []
    try:
        raise ExceptionGroup("several", items)
    except* ValueError as e:
        found += [str(exc) for exc in e.exceptions]
    return found


@pytest.mark.parametrize("program", [smallest, group])
def test_lists_that_are_empty_at_last(program):
    compiled = torchsmith_tracer.compile(program, backend="eager")
    made = (lambda n: [ValueError(i) for i in range(n)]) if program is group else range
    for length in (3, 2, 5, 0, 1):
        try:
            expected = program(list(made(length)))
        except (TypeError, ValueError) as e:
            with pytest.raises(type(e)) as caught:
                compiled(list(made(length)))
            assert str(caught.value) == str(e)
        else:
            assert compiled(list(made(length))) == expected
