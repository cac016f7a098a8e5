"""``torch.Generator`` in compiled code: made there, given, seeded, its state saved and set; what is
drawn after the call, also where the graph fails."""

import pytest
import torch
import torch.nn.functional as F
import torchsmith_tracer as tracer
from torch import nn


@pytest.fixture(autouse=True)
def native(capture):
    capture.native_nodes = True


def made(x, g, seed):
    own = torch.Generator().manual_seed(3)
    return torch.rand(3, generator=own) + x, torch.randn(2, generator=own), own.initial_seed()


def made_on(x, g, seed):
    own = torch.Generator(device="cpu")
    own.manual_seed(5)
    index = torch.randint(0, 3, (2,), generator=own)
    return torch.randperm(5, generator=own), x[index], own.device, own


def given(x, g, seed):
    return torch.rand(3, generator=g) + x, torch.empty(2).normal_(generator=g)


def seeded(x, g, seed):
    g.manual_seed(seed)
    return torch.rand(3, generator=g) + x


def varying(x, g, seed):
    return torch.multinomial(x.softmax(0), 2, generator=torch.Generator().manual_seed(seed)) + seed


def states(x, g, seed):
    state = g.get_state()
    a = torch.rand(2, generator=g)
    g.set_state(state)
    return a, torch.rand(2, generator=g), state.shape, x + 1


def initialised(x, g, seed):
    w = nn.init.kaiming_uniform_(torch.empty(4, 3), generator=g)
    return F.linear(x, nn.init.normal_(w, std=0.2, generator=g) + w)


def both(x, g, seed):
    a = torch.rand(3)
    b = torch.rand(3, generator=g)
    return a + b, torch.rand(3) * x


ONE_GRAPH = [made, made_on, given, seeded, varying, states, initialised, both]


@pytest.mark.parametrize("fn", ONE_GRAPH)
def test_generators_are_in_the_graph(program, capture, fn):
    def body(C):
        run, seen, g = C(fn), [], torch.Generator().manual_seed(1)
        for seed in (1, 2, 1, 7, 9):
            found = run(torch.arange(3.0) + seed, g, seed)
            own = [f for f in found if isinstance(f, torch.Generator)]
            seen.append([f for f in found if not isinstance(f, torch.Generator)])
            seen += [torch.rand(1, generator=o) for o in own]
            if seed == 2:
                g = torch.Generator().manual_seed(4)
        return seen, torch.rand(2, generator=g), torch.rand(2)

    assert program(body) <= 2  # a seed, then seeds that vary


def test_a_graph_that_fails_gives_the_numbers_back(program):
    def draws(x, g, i):
        noise = torch.rand(3, generator=g)
        try:
            return noise[i] + x
        except IndexError:
            return noise, torch.rand(2, generator=g)

    def body(C):
        run, seen, g = C(draws), [], torch.Generator().manual_seed(1)
        for i in (0, 9, 1, 9):
            seen += [run(torch.ones(1), g, torch.tensor([i])), torch.rand(1, generator=g)]
        return seen

    program(body)


def test_two_generators_that_become_one(program):
    def draws(a, b):
        return torch.rand(2, generator=a), torch.rand(2, generator=b), torch.rand(1, generator=a)

    def body(C):
        run = C(draws)
        a, b = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
        return [run(a, b), run(a, a), run(b, a), torch.rand(1, generator=a)]

    program(body)


def test_generators_over_a_break(program):
    def draws(x, seed):
        g = torch.Generator().manual_seed(seed)
        a = torch.rand(2, generator=g)
        print(end="", flush=True)
        return a, torch.rand(2, generator=g) + x

    def body(C):
        run = C(draws)
        return [run(torch.ones(2), seed) for seed in (1, 2, 3, 4)]

    assert program(body, broken=True) <= 4


def test_errors_are_the_programs(program):
    def wrong(x, seed):
        torch.Generator().manual_seed(seed)

    def body(C):
        run, seen = C(wrong), []
        for seed in ("text", 2**70, "text"):
            try:
                run(torch.ones(1), seed)
            except (TypeError, RuntimeError, ValueError) as e:
                seen.append((type(e), str(e)))
        return seen

    program(body, broken=True)


def test_other_backends_get_no_generators_and_do_not_recompile_each_time(program, capture):
    del capture.native_nodes

    def body(C):
        run, seen, g = C(seeded), [], torch.Generator()
        make = C(varying)
        for seed in range(12):
            seen += [run(torch.ones(3), g, seed), make(torch.ones(3), g, seed)]
        return seen

    # Four parts of each, a seed and then any seed; two of them have looked at none by then.
    assert program(body, broken=True) == 14
    assert not any(isinstance(x, torch.Generator) for inputs in capture.inputs for x in inputs)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, g: torch.randn(x.shape, generator=g) + x,
        lambda x, g: torch.rand(x.size(0), 3, generator=g, layout=torch.strided) * x,
        lambda x, g: torch.randint(5, x.shape, generator=g) + x,
    ],
)
def test_no_generator_leaves_sizes_symbolic(fn):
    compiled = tracer.compile(fn, backend="eager", fullgraph=True, dynamic=True)
    for rows in (4, 6):
        found = []
        for run in (fn, compiled):
            torch.manual_seed(rows)
            found.append(run(torch.ones(rows, 3), None))
        assert torch.equal(*found)
