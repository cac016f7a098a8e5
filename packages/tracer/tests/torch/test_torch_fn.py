"""Torch callables: graph nodes, folded queries, state, random and creation operators."""

import pytest
import torch
import torch.nn.functional as F
import torchsmith_tracer
from torchsmith_tracer._src.values.torch_fn import is_torch_callable

X = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    "fn",
    [
        torch.add,
        F.relu,
        F.softmax,
        F.linear,
        F.max_pool2d,
        F.scaled_dot_product_attention,
        torch.einsum,
        torch.Tensor.add,
        torch.Tensor.split,
        torch.is_tensor,
        torch.zeros,
        torch.ops.aten.add.Tensor,
        torch.ops.aten.add,
        torch.linalg.norm,
        torch.fft.rfft,
        torch.special.erf,
        torch.compiler.is_compiling,
        torch._C._nn.gelu,
    ],
)
def test_known_as_torch_callable(fn):
    assert is_torch_callable(fn)


@pytest.mark.parametrize("fn", [torch.nn.init.zeros_, len, print, torch.nn.Linear.forward])
def test_not_a_torch_callable(fn):
    assert not is_torch_callable(fn)


def test_functions_become_nodes(check):
    def f(a):
        h = F.gelu(a, approximate="tanh")
        h = F.layer_norm(h, (4,))
        h = torch.cat([h, a], dim=-1)
        h = torch.einsum("ij,kj->ik", h, h)
        h = torch.ops.aten.mul.Tensor(h, 2)
        h = torch.Tensor.add(h, 1)
        h = F.max_pool2d(h[None, None], 2)
        return torch.where(h > 0, h, torch.zeros_like(h)), torch.stack((a, a)).sum(0)

    check(f, X, graphs=1, fullgraph=True)


def test_functional_forms_of_many_kinds(check):
    def f(a):
        q = a.reshape(1, 1, 3, 4)
        return (
            F.scaled_dot_product_attention(q, q, q, is_causal=True),
            F.pad(a, (1, 1)),
            F.interpolate(q, scale_factor=2.0, mode="nearest"),
            F.normalize(a, dim=0),
            F.one_hot(torch.tensor([0, 2]), 3),
            F.embedding(torch.tensor([1, 0]), a),
            F.cross_entropy(a, torch.tensor([0, 1, 2])),
            torch.outer(a[0], a[1]),
            torch.meshgrid(a[0], a[1], indexing="ij"),
            F.adaptive_avg_pool2d(q, (1, 1)),
            F.unfold(q, (2, 2)),
        )

    check(f, X, graphs=1, fullgraph=True)


def test_queries_fold(check, capture):
    def f(a):
        facts = (
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.is_floating_point(a),
            torch.numel(a),
            torch.finfo(a.dtype).min,
            torch.finfo(torch.float16).eps,
            torch.iinfo(torch.int32).max,
            torch.jit.is_scripting(),
            torch.jit.is_tracing(),
            torch.cuda.is_available(),
            torch.is_autocast_enabled("cpu"),
            torch.promote_types(a.dtype, torch.float64),
            torch.result_type(a, 1.0),
            torch.device("cpu"),
            torch.Size([2, 3]),
            torch.broadcast_shapes((2, 1), (1, 3)),
            torch.are_deterministic_algorithms_enabled(),
            torch.Size((2, 3)).numel(),
            a.dtype.is_floating_point,
            a.device.type,
            a.dtype.itemsize,
        )
        return facts, a + 1

    check(f, X, fullgraph=True)
    assert len(capture.targets()) == 1


def test_is_compiling_is_true_only_while_tracing(capture):
    def f(a):
        return torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling(), a + 1

    assert not f(X)[0]
    assert torchsmith_tracer.compile(f, backend=capture, fullgraph=True)(X)[:2] == (True, True)


def test_a_path_for_compilers_that_raises_is_left_for_eagers(capture):
    def raises(a):
        b = a + 1
        if torch.compiler.is_compiling():
            raise ValueError("not for compilers")
        return b * 2

    def forgets(a, mask=None):
        if mask is None and not torch.compiler.is_dynamo_compiling():
            mask = a > 0
        return a.sin() * mask.shape[0]

    for f in (raises, forgets):
        compiled = torchsmith_tracer.compile(f, backend=capture, fullgraph=True)
        assert torch.equal(compiled(X), f(X))
    assert len(capture.graphs) == 2

    def always(a):
        if torch.compiler.is_compiling():
            a = a + 1
        raise ValueError(f"of {a.dim()}")

    with pytest.raises(ValueError, match="of 2"):
        torchsmith_tracer.compile(always, backend=capture)(X)


def test_creation_in_the_graph(check):
    def f(a):
        n = a.shape[0]
        return (
            torch.zeros(n, 2),
            torch.ones_like(a),
            torch.full((2,), 3.5),
            torch.arange(n),
            torch.arange(0, 1, 0.25),
            torch.tensor([1, 2, n]),
            torch.tensor(2.5, dtype=torch.float64),
            torch.eye(n),
            torch.linspace(0, 1, 5),
            a.new_zeros(2),
            a.new_full((1,), 2),
            torch.empty(2, 0),
            torch.tril(torch.ones(n, n, dtype=torch.bool)),
        )

    check(f, X, graphs=1, fullgraph=True)


def test_random_numbers_are_those_of_eager(check):
    def f(a):
        b = torch.rand(3) + torch.randn(3)
        c = torch.nn.functional.dropout(a, 0.5, True)
        return b, c, torch.randint(0, 10, (4,)), torch.randperm(5), torch.rand_like(a)

    check(f, X, graphs=1, fullgraph=True)


def test_tracing_consumes_no_random_numbers(capture):
    compiled = torchsmith_tracer.compile(
        lambda a: torch.rand(3) + a[0, 0].bernoulli(0.5), backend=lambda gm, ex: lambda *a: (a[0],)
    )
    torch.manual_seed(3)
    before = torch.get_rng_state()
    compiled(X)
    assert torch.equal(torch.get_rng_state(), before)


def test_seeding_breaks_and_is_right(check):
    def f(a):
        torch.manual_seed(7)
        return a[0, :3] + torch.rand(3)

    check(f, X, breaks=["torch-state"])


def test_check_and_assert(check):
    def f(a):
        torch._check(a.shape[0] == 3, lambda: "three rows")
        torch._assert(a.ndim == 2, "matrix")
        assert a.shape[1] == 4
        return a + 1

    check(f, X, graphs=1, fullgraph=True)
    check(f, torch.ones(2, 4))


def test_custom_operator(check):
    @torch.library.custom_op("torchsmith_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x):
        return torch.empty_like(x)

    check(lambda a: torch.ops.torchsmith_tests.twice(a) + 1, X, graphs=1, fullgraph=True)


def written(x):
    out = torch.empty(3, 4)
    result = torch.add(x, 1, out=out)
    return out * 2, result is out


def written_to_an_argument(x, out):
    torch.mul(x, 2, out=out)
    out.add_(1)
    return torch.maximum(x, out, out=out) is out, out


def written_to_several(x):
    values, indices = torch.empty(3), torch.empty(3, dtype=torch.int64)
    found = torch.max(x, 1, out=(values, indices))
    return found, found[0] is values, values + 1, indices


def resized(x):
    out = torch.empty(0)
    torch.add(x, 1, out=out)
    return out, out.shape


def cast(x):
    out = torch.empty(3, 4, dtype=torch.float64)
    return torch.add(x, 1, out=out)


def strided(x):
    out = torch.empty(4, 3).t()
    torch.add(x, 1, out=out)
    return out


@pytest.mark.parametrize("fn", [written, written_to_several, resized, cast, strided])
def test_out_argument(check, fn):
    check(fn, X, graphs=1)


def test_out_argument_of_the_caller(check, agree):
    check(written_to_an_argument, X, torch.zeros(3, 4), graphs=1)
    log = agree(written_to_an_argument, X, torch.zeros(0))
    assert [b.name for b in log.breaks] == ["out-argument"]
    agree(written_to_an_argument, X, torch.zeros(3, 4, dtype=torch.int64))
    agree(written_to_an_argument, X, torch.zeros(3, 4, requires_grad=True))


def test_in_place_functions(check):
    def f(a):
        b = a - 5
        c = F.relu(b, inplace=True)
        torch.relu_(b)
        return b, c, b is c

    check(f, X, graphs=1, fullgraph=True)


def test_checkpoint_without_gradients_is_the_plain_call(check):
    from torch.utils.checkpoint import checkpoint

    def f(a):
        with torch.no_grad():
            return checkpoint(lambda x, k: x * k, a, 3, use_reentrant=False)

    check(f, X, graphs=1, fullgraph=True)


def test_data_dependent_sizes_break(check):
    check(lambda a: torch.nonzero(a > 4) + 1, X, breaks=["data-dependent-op"])
    check(lambda a: torch.unique(a).sum(), X, breaks=["data-dependent-op"])


def test_nodes_carry_metadata(capture):
    def inner(a):
        return F.relu(a)

    def f(a):
        return inner(a) + 1

    torchsmith_tracer.compile(f, backend=capture, fullgraph=True)(X)
    nodes = {n.name: n for n in capture.graphs[0].graph.nodes}
    relu = nodes["relu"]
    assert relu.meta["example_value"].shape == (3, 4)
    trace = relu.meta["stack_trace"]
    assert "in f\n" in trace
    assert "return F.relu(a)" in trace
    assert trace.index("in f") < trace.index("in inner")


@torch.library.custom_op("torchsmith_tests::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("torchsmith_tests::writes", mutates_args={"x"})
def writes(x: torch.Tensor, k: float) -> None:
    x.add_(k)


def test_custom_operators(check):
    def f(x):
        y = x.clone()
        writes(y, 2.0)
        writes(x, 1.0)
        return y * 2

    check(f, X, graphs=1)
    check(lambda x: without_fake(x + 1) + 1, X, breaks=["op-without-fake"])


def test_an_operator_writes_what_its_schema_says(check):
    """A kernel below autograd advances no version."""
    lib = torch.library.Library("torchsmith_tests_writes", "DEF")
    lib.define("double_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
    lib.impl("double_", lambda x, y: x.mul_(2).add_(y), "CompositeExplicitAutograd")
    lib.define("both(Tensor(a!) x, Tensor(b!)[] ys) -> ()")
    lib.impl(
        "both", lambda x, ys: (x.add_(1), [y.add_(2) for y in ys])[0:0] or None,
        "CompositeExplicitAutograd",
    )  # fmt: skip
    ops = torch.ops.torchsmith_tests_writes

    def program(x, y):
        first = ops.double_(x, y) + 1
        ops.both.default(x, ys=[y])
        return first, x * 2, y - 1, ops.double_(x, y) is x

    check(program, torch.ones(3), torch.arange(3.0), graphs=1, fullgraph=True)


@pytest.mark.parametrize("dropout", [torch.nn.Dropout(0.0), torch.nn.AlphaDropout(0.0)])
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_of_nothing_gives_its_argument(dropout, wanted, dynamic):
    def f(x):
        y = x * 1
        z = dropout(y)
        z += 1
        return y, dropout(x)

    x = torch.randn(3, 4, requires_grad=wanted)
    compiled = torchsmith_tracer.compile(f, backend="eager", dynamic=dynamic)
    y, same = compiled(x)
    torch.testing.assert_close(y, x + 1)
    assert same is x


PAIR, TABLE = (1, 2), {"rows": [[0.5, 1], [2, 3]], "both": [(X, [X + 1])]}


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[:2, :2] * torch.tensor([PAIR, (3, 4)], dtype=x.dtype),
        lambda x: x[:2, :2] * torch.tensor(TABLE["rows"]),
        lambda x, pair=(1.5, 2): x[:, :2] + torch.tensor([[pair]]),
        lambda x: torch.vmap(lambda row, t: row + t[0][1][0])(x, TABLE["both"]),
    ],
)
def test_lists_within_existing_lists_are_arguments(check, program):
    """What no code has looked at yet is read when an operator takes it."""
    check(program, X, graphs=1, fullgraph=True)


def test_numbers_within_existing_lists_may_change(check):
    compiled = torchsmith_tracer.compile(lambda x, pair: x * torch.tensor([pair]), fullgraph=True)
    for pair in ([1, 2], [1, 3], [4, 2], [5, 9]):
        torch.testing.assert_close(compiled(X[:, :2], pair), X[:, :2] * torch.tensor([pair]))
