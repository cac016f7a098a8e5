"""Branches on random draws that are decided whatever is drawn, and those that are not."""

import math
import operator

import pytest
import torch
from torch import nn
from torchsmith_tracer import compile, explain

X = torch.randn(3, 4)


class Dropping(nn.Module):
    """Layers that are left out at random."""

    def __init__(self, layerdrop=0.0, layers=4):
        super().__init__()
        self.layerdrop = layerdrop
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))

    def forward(self, x):
        taken = 0
        for layer in self.layers:
            if self.training:
                drawn = torch.rand([])
                if drawn < self.layerdrop:
                    continue
            x = layer(x).relu()
            taken += 1
        return x, taken


def agree(fn, compiled, *args, seeds=(0,)):
    """Results, errors and where the generator stands afterwards are eager's."""
    for seed in seeds:
        outcomes = []
        for run in (fn, compiled):
            torch.manual_seed(seed)
            try:
                result = run(*args)
            except Exception as e:
                result = list(repr(e).encode())
            outcomes.append((result, torch.rand(()).item()))
        torch.testing.assert_close(outcomes[1], outcomes[0], rtol=0, atol=0, equal_nan=True)


def pieces(fn, *args):
    found = explain(fn)(*args)
    return found.graph_count, found.break_count


def test_no_layer_is_left_out_in_one_graph():
    assert pieces(Dropping(), X) == (1, 0)
    graph = explain(Dropping())(X).graphs[0]
    assert sum(node.target is torch.rand for node in graph.graph.nodes) == 4


def test_the_probability_and_the_mode_change_between_calls():
    module = Dropping()
    compiled = compile(module)
    for p in (0.0, 0.3, 0.0, 1.0, 0.7, 2.0, -1.0, math.nan, 0.5, 0.0):
        module.layerdrop = p
        for training in (True, False, True):
            module.train(training)
            agree(module, compiled, X, seeds=range(3))


def test_pieces_of_layers_that_are_left_out_are_bounded():
    """Each branch is a break; the pieces are those of the layers, however the draws come out."""
    calls = []

    def backend(gm, inputs):
        calls.append(gm)
        return gm

    module = Dropping(0.5)
    compiled = compile(module, backend=backend)
    agree(module, compiled, X, seeds=range(60))
    known = len(calls)
    agree(module, compiled, X, seeds=range(60, 120))
    assert len(calls) == known <= 2 * len(module.layers) + 2


def compared(op, dtype):
    def fn(x, p):
        drawn = torch.rand((), dtype=dtype)
        return x + 1 if getattr(drawn, op)(p) else x - 1

    return fn


OPS = "lt le gt ge eq ne".split()
DECIDED = {
    0.0: "lt ge",
    1.0: "lt le gt ge eq ne",
    1.5: "lt le gt ge eq ne",
    -2.0: "lt le gt ge eq ne",
    math.nan: "lt le gt ge eq ne",
    math.inf: "lt le gt ge eq ne",
    0.5: "",
    -1e-60: "lt ge",  # zero in the types of tensors
    1 - 1e-12: "",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", OPS)
def test_comparisons_with_numbers(op, dtype):
    fn = compared(op, dtype)
    for number, decided in DECIDED.items():
        broken = explain(fn)(X, number).break_count
        assert broken == (op not in decided.split()), number
        agree(fn, compile(fn), X, number, seeds=range(3))


def numbers_of(tensor, p):
    return p < tensor, tensor >= p, torch.lt(tensor, p), ~(tensor.lt(p)), not tensor <= p


DRAWS = {
    "like": lambda: torch.rand_like(torch.ones(1)),
    "half open": lambda: torch.empty(1).uniform_(),
    "closed": lambda: torch.zeros(1).uniform_(-1, 0.5),
    "integers": lambda: torch.randint(3, 7, ()),
    "from zero": lambda: torch.randint(5, (1, 1), dtype=torch.int32),
    "moved": lambda: torch.rand(1).to(torch.float32).view(1, 1).squeeze().detach().clone(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws(name):
    draw = DRAWS[name]

    def fn(x, p):
        return [bool(truth) for truth in numbers_of(draw(), p)], x + 1

    def combined(x, p):
        drawn = torch.cat([draw()]) if draw().dim() else draw()
        return x + 1 if drawn.lt(p).any() else x

    compiled, other = compile(fn), compile(combined)
    for p in (-5, -1.0, 0, 0.5, 1, 3, 4, 6, 7, 30, -1.0):
        agree(fn, compiled, X, p, seeds=range(4))
        agree(combined, other, X, p, seeds=range(4))
    assert pieces(fn, X, -5) == pieces(fn, X, 30) == (1, 0)


def written_later(x):
    drawn = torch.rand(1)
    seen = drawn.view(())
    seen.add_(5)
    return x + 1 if drawn < 1.0 else x - 1


def written_before(x):
    place = torch.zeros(2)
    drawn = place[:1].uniform_()
    place.mul_(-1)
    return x + 1 if drawn >= 0 else x - 1


def filled_twice(x):
    place = torch.zeros(1)
    seen = place.view(1)
    place.uniform_(0, 1)
    seen.uniform_(4, 5)
    return x + 1 if place < 1 else x - 1


def other_data(x):
    drawn = torch.zeros(1).uniform_()
    drawn.data = torch.full((1,), 7.0)
    return x + 1 if drawn < 1 else x - 1


def other_memory(x):
    drawn = torch.rand(1)
    drawn.set_(torch.full((1,), 7.0))
    return x + 1 if drawn < 1 else x - 1


def truth_written(x):
    low = torch.rand(1) < 0.0
    low[0] = True
    return x + 1 if low else x - 1


def bits(x):
    return x + 1 if torch.rand(1).view(torch.int32) > 1 else x - 1


def several(x):
    return x + 1 if torch.rand(2) < 0.0 else x - 1


def nothing(x):
    return x + 1 if (torch.rand(0) < 0.0).all() else x - 1


def complex_numbers(x):
    return x + 1 if (torch.rand(1, dtype=torch.complex64) == 2.0) else x - 1


def negated(x):
    return x + 1 if torch.zeros(1).uniform_(-1, 1).logical_not() else x - 1


def given_memory(x):
    x.uniform_()
    return x + 1 if x[0, 0] < 0.0 else x.clone()


def rounded_integers(x):
    drawn = torch.randint(2**40 - 1, 2**40, (1,))
    return x + 1 if drawn < float(2**40) else x - 1


@pytest.mark.parametrize(
    "fn",
    [
        *(written_later, written_before, filled_twice, other_data, other_memory, truth_written),
        *(bits, several, nothing, complex_numbers, negated, given_memory, rounded_integers),
    ],
)
def test_what_is_not_known_is_asked(fn):
    agree(fn, compile(fn), X.clone(), seeds=range(4))


def test_truth_values_are_read():
    def fn(x, p):
        low = torch.rand(()) < p
        return low.item(), int(low), float(low), x + 1

    assert pieces(fn, X, 0.0) == pieces(fn, X, 1.0) == (1, 0)
    compiled = compile(fn)
    for p in (0.0, 1.0, 0.5, 0.0):
        agree(fn, compiled, X, p, seeds=range(3))


def test_a_probability_that_varies_is_guarded_where_it_decides():
    def fn(x, p):
        low = torch.rand(()) < p
        return (x + 1 if low else x - 1) * p

    compiled = compile(fn, dynamic=True)
    for p in (0.25, 0.5, 0.0, 1.0, 1.5, -0.5, 0.125, math.nan, 0.75):
        agree(fn, compiled, X, p, seeds=range(3))

    def mask(x, p):
        return torch.where(torch.rand(3, 4) < p, x, 0.0)

    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm

    compiled = compile(mask, dynamic=True, backend=backend)
    for p in (0.25, 0.5, 2.0, -1.0):
        agree(mask, compiled, X, p)
    assert len(graphs) == 1


def chunks(x):
    """As sliding windows of attention are counted."""
    n = torch.div(x.numel(), 4, rounding_mode="trunc")
    again = torch.div(x.numel(), 4, rounding_mode="trunc")
    return x.view(n, 4), x.new_zeros((again + 1, 2)), x.view(again, 4), int(n) - again.item()


def sizes(x):
    a, b = torch.tensor(2), torch.tensor(4)
    counted = [[len(list(torch.arange(n))), torch.ones(n).sum()] for n in (a, b, a * b)]
    return counted, [x.reshape(n, -1).sum(0) for n in (a, b)], x[: int(a)]


def branches(x):
    n = torch.tensor(3)
    return x + 1 if n > 2 else x - 1, float(n), int(n / 2), not n - 3, torch.tensor(True).item()


@pytest.mark.parametrize("fn", [chunks, sizes])
def test_graphs_have_known_sizes_as_numbers(fn):
    (graph,) = explain(fn)(X).graphs
    calls = [n for n in graph.graph.nodes if n.op.startswith("call")]
    sized = [n for n in calls if "tensor" not in str(n.target) and n.target is not torch.div]
    of_sizes = {torch.tensor, torch.div, operator.add, operator.sub, operator.mul}
    given = {a.target for n in sized if n.target not in of_sizes for a in n.all_input_nodes}
    assert sized and given.isdisjoint(of_sizes)


@pytest.mark.parametrize("fn", [chunks, sizes, branches])
def test_numbers_that_the_program_puts_into_tensors_are_known(fn):
    assert pieces(fn, X) == (1, 0)
    compiled = compile(fn)
    for size in (3, 5, 3, 8):
        agree(fn, compiled, torch.randn(size, 4))


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: x[[n, 0]],
        lambda x, n: x[[n]],
        lambda x, n: x[:, [n, 0]],
        lambda x, n: x[[[n, 0], [1, 2]]],
        lambda x, n: (y := x.clone(), y.__setitem__([n, 0], 9.0))[0],
    ],
)
def test_a_list_with_a_known_number_indexes_as_in_eager(fn):
    program = lambda x: fn(x, torch.tensor(1))
    agree(program, compile(program), X)


def filled(n):
    n.fill_(7)


def filled_by_view(n):
    n.view(1)[0] = 7


def filled_from(n):
    n.copy_(torch.arange(8)[-1])


def out(n):
    torch.add(torch.tensor(3), torch.tensor(4), out=n)


def data(n):
    n.data = torch.arange(8)[-1].clone()


def data_of_data(n):
    n.data.add_(2)


def memory(n):
    n.set_(torch.full((), 7))


def array(n):
    n.numpy()[...] = 7


def random(n):
    n.random_(7, 8)


@pytest.mark.parametrize(
    "change",
    [filled, filled_by_view, filled_from, out, data, data_of_data, memory, array, random],
)
def test_a_number_that_is_written_to_is_no_longer_known(change):
    def fn(x):
        n = torch.tensor(5)
        seen, copied = n.view(1), n.clone()
        before = n.item(), x[: int(n), 0]
        change(n)
        after = n.item(), seen.item(), copied.item(), x + 1 if n > 6 else x - 1
        return before, after, x.reshape(-1)[: int(n)], torch.arange(n)

    agree(fn, compile(fn), X, seeds=range(2))
