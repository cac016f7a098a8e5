"""Graphs and inputs as source: what is written runs, and gives what was there."""

import operator

import pytest
import torch
from torch import fx
from torchsmith_guards.records import graph_text, printing


def executed(text: str) -> dict[str, object]:
    space: dict[str, object] = {"__name__": "printed"}
    exec(compile(text, "printed.py", "exec"), space)
    return space


def plain() -> tuple[fx.GraphModule, list[object]]:
    graph = fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    y = graph.call_function(torch.clamp, (x,), {"max": float("inf"), "min": -float("inf")})
    graph.output((graph.call_function(torch.mul, (y, n)), graph.call_method("type_as", (y, x))))
    return fx.GraphModule({}, graph), [torch.randn(3, 1).expand(3, 4), 2]


def holding() -> tuple[fx.GraphModule, list[object]]:
    """A tensor of the graph's own, used twice, below a submodule."""
    owner = torch.nn.Module()
    owner.inner = torch.nn.Module()
    owner.inner.weight = torch.nn.Parameter(torch.randn(4, 4).t())
    graph = fx.Graph()
    x = graph.placeholder("x")
    for _ in range(2):
        x = graph.call_function(torch.matmul, (x, graph.get_attr("inner.weight")))
    graph.output(x)
    return fx.GraphModule(owner, graph), [torch.randn(2, 4)]


def nested() -> tuple[fx.GraphModule, list[object]]:
    branches = torch.nn.Module()
    for name, fn in (("sine", torch.sin), ("cosine", torch.cos)):
        branch = fx.Graph()
        branch.output((branch.call_function(fn, (branch.placeholder("x"),)),))
        setattr(branches, name, fx.GraphModule({}, branch))
    graph = fx.Graph()
    p, x = graph.placeholder("p"), graph.placeholder("x")
    sine, cosine = graph.get_attr("sine"), graph.get_attr("cosine")
    graph.output(graph.call_function(torch.ops.higher_order.cond, (p, sine, cosine, (x,))))
    return fx.GraphModule(branches, graph), [torch.tensor(True), torch.randn(3)]


@pytest.mark.parametrize("make", [plain, holding, nested])
def test_a_graph_runs_from_its_text_as_it_does(make) -> None:
    gm, inputs = make()
    space = executed(printing.runnable(gm, inputs, 'Its """title""" \\ has quotes.'))
    printed, given = space["graph"], space["inputs"]()
    for value, made in zip(inputs, given):
        if isinstance(value, torch.Tensor):
            assert (made.shape, made.stride()) == (value.shape, value.stride())
        else:
            assert made == value
    results = printed(*inputs, *given[len(inputs) :])
    wanted = gm(*inputs)
    found, wanted = ([x] if torch.is_tensor(x) else list(x) for x in (results, wanted))
    assert [x.shape for x in found] == [x.shape for x in wanted]
    if make is not holding:  # its weight is another, random one
        assert all(map(torch.equal, found, wanted))


def test_what_has_no_text_is_none_in_the_file_and_an_error_for_the_minifier() -> None:
    def local(x: object) -> object:
        return x

    graph = fx.Graph()
    graph.output(graph.call_function(local, (graph.placeholder("x"),)))
    gm = fx.GraphModule({}, graph)
    sparse = torch.eye(3).to_sparse()
    space = executed(printing.runnable(gm, [sparse], "A graph."))
    assert space["inputs"]() == [None]
    with pytest.raises(printing.UnprintableError, match="local"):
        printing.print_graph(gm, "graph")


TENSORS = {
    "numbers": torch.tensor([1.5, float("nan"), -float("inf")]),
    "empty": torch.empty(0, 3),
    "integers": torch.arange(4, dtype=torch.int16),
    "leaf": torch.ones(2, requires_grad=True),
    "transposed": torch.randn(3, 4).t(),
    "expanded": torch.randn(3, 1).expand(3, 5),
    "strided": torch.randn(40)[::2],
    "bfloat16": torch.randn(9, 9, dtype=torch.bfloat16),
    "float8": torch.randn(9, 9).to(torch.float8_e4m3fn),
    "complex": torch.randn(9, 9, dtype=torch.complex64),
    "conjugate": torch.randn(9, 9, dtype=torch.complex64).conj(),
    "booleans": torch.randn(9, 9) > 0,
}


@pytest.mark.parametrize("name", TENSORS)
def test_inputs_have_their_layout_again_and_their_numbers_where_these_are_written(name) -> None:
    value = TENSORS[name]
    texts = [printing.literal(value), printing.generated(value, always=True)]
    for text in filter(None, texts):
        made = eval(text, {"torch": torch})
        kept = (made.dtype, made.shape, made.stride(), made.requires_grad, made.is_leaf)
        assert kept == (value.dtype, value.shape, value.stride(), value.requires_grad, True)
    if texts[0] is not None:
        made = eval(texts[0], {"torch": torch})
        torch.testing.assert_close(made, value, rtol=0, atol=0, equal_nan=True)
    sensible = name not in ("integers", "booleans", "float8", "conjugate")
    assert (printing.generated(value) is not None) == sensible


def test_a_trace_has_a_line_for_each_node() -> None:
    gm, _ = holding()
    assert graph_text(gm.graph).splitlines() == [
        "def forward(x):",
        "    inner_weight = self.inner.weight",
        "    matmul = torch.matmul(x, inner_weight)",
        "    inner_weight_1 = self.inner.weight",
        "    matmul_1 = torch.matmul(matmul, inner_weight_1)",
        "    return matmul_1",
    ]
    graph = fx.Graph()
    x = graph.placeholder("x")
    x = graph.call_function(torch.ops.aten.add.Tensor, (x, 1), {"alpha": 2})
    x = graph.call_function(operator.getitem, (x, (0, slice(None))))
    graph.output((graph.call_method("view", (x, -1)), None))
    assert graph_text(graph).splitlines() == [
        "def forward(x):",
        "    add_tensor = torch.ops.aten.add.Tensor(x, 1, alpha=2)",
        "    getitem = operator.getitem(add_tensor, (0, slice(None, None, None)))",
        "    view = getitem.view(-1)",
        "    return (view, None)",
    ]
