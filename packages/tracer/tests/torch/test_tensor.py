"""Tensor values: attributes, operators, methods, items, in-place changes."""

import enum
import math
import operator

import pytest
import torch
import torchsmith_tracer

X = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"])
def test_operators_with_tensors(check, op):
    fn = getattr(operator, op)
    right = X.T.contiguous() if op == "matmul" else X + 2
    check(lambda a, b: fn(a, b), X + 1, right, graphs=1, fullgraph=True)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"])
def test_operators_with_numbers_on_both_sides(check, op):
    fn = getattr(operator, op)
    check(lambda a: (fn(a, 3), fn(2, a), fn(a, 0.5)), X + 1, graphs=1, fullgraph=True)


@pytest.mark.parametrize("op", ["and_", "or_", "xor", "lshift", "rshift"])
def test_bit_operators(check, op):
    fn = getattr(operator, op)
    i = torch.tensor([1, 2, 3])
    check(lambda a, b: fn(a, b), i, torch.tensor([1, 1, 2]), graphs=1, fullgraph=True)


def test_unary_and_comparison(check):
    def f(a, b):
        return -a, +a, abs(a), ~(a > 2), a < b, 3 <= a, a == 2, a != b, a >= 1.5

    check(f, X, X.flip(0), graphs=1, fullgraph=True)


def test_comparison_with_other_objects_is_identity(check):
    check(lambda a: (a is None, a is not None, a == None), X, fullgraph=True)  # noqa: E711


class Whole(enum.IntEnum):
    ONE, TWO = 1, 2


class Bits(enum.IntFlag):
    ONE, TWO = 1, 2


class Real(float, enum.Enum):
    HALF = 0.5


class Word(str, enum.Enum):
    A = "a"


@pytest.mark.parametrize("member", [Whole.TWO, Bits.ONE | Bits.TWO, Real.HALF, Word.A])
def test_comparison_with_a_member_of_an_enum(check, member):
    f = lambda x: (x == member, member == x, x != member)
    check(f, torch.arange(4.0), fullgraph=True)


@pytest.mark.parametrize("member", [Whole.TWO, Bits.ONE | Bits.TWO, Real.HALF])
def test_operators_with_a_member_of_an_enum(check, member):
    f = lambda x: (x + member, member - x, x**member, x > member, member >= x)
    check(f, torch.arange(4.0), fullgraph=True)


def test_metadata_is_constant(check, capture):
    def f(a):
        facts = (
            a.shape,
            a.size(),
            a.size(1),
            a.size(-1),
            a.ndim,
            a.dim(),
            a.dtype,
            a.device,
            a.numel(),
            a.nelement(),
            a.stride(),
            a.stride(0),
            a.is_contiguous(),
            a.is_floating_point(),
            a.is_cuda,
            a.requires_grad,
            a.element_size(),
            a.itemsize,
            a.is_leaf,
            a.grad is None,
            a.layout,
            a.type(),
            len(a),
        )
        return facts, a + 1

    check(f, X, fullgraph=True)
    assert len(capture.targets()) == 1


def test_transposes(check):
    def f(a, c):
        return a.T, a.mT, a.transpose(0, 1).contiguous(), c.real, c.imag, c.H

    check(f, X, torch.randn(2, 2, dtype=torch.complex64), graphs=1, fullgraph=True)


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        slice(1, 3),
        (slice(None), 1),
        (..., 0),
        (None, 1),
        [0, 2],
        (slice(None, None, 2), None, slice(0, 1)),
        torch.tensor([2, 0]),
        (torch.tensor([0, 1]), torch.tensor([1, 3])),
        True,
    ],
    ids=str,
)
def test_indexing(check, index):
    check(lambda a: a[index] * 2, X, graphs=1, fullgraph=True)


def test_index_by_mask_breaks_and_is_right(check):
    check(lambda a: a[a > 3] * 2, X, breaks=["data-dependent-op"])


def test_iteration_and_unpacking(check):
    def f(a):
        p, q, r = a
        total = 0
        for row in a:
            total = total + row
        first, *rest = a
        return p, q * r, total, [x + 1 for x in rest], list(a)[1]

    check(f, X, graphs=1, fullgraph=True)


def test_in_place_keeps_identity(check):
    def f(a):
        b = a + 1
        c = b
        b += 2
        b.mul_(3)
        b[0] = 7
        return b, c, b is c

    check(f, X, graphs=1, fullgraph=True)


def test_in_place_on_an_argument_is_visible(check):
    def f(a):
        a.add_(1)
        a[1:, 0] = -1
        v = a.view(-1)
        v *= 2
        return a, v

    check(f, X, graphs=1, fullgraph=True)


def test_in_place_makes_aliases_distinct(capture):
    import torchsmith_tracer

    def f(a, b):
        a.add_(1)
        return a + b

    compiled = torchsmith_tracer.compile(f, backend=capture, fullgraph=True)
    x, y = torch.ones(3), torch.ones(3)
    assert torch.equal(compiled(x, y), torch.full((3,), 3.0))
    z = torch.ones(3)
    assert torch.equal(compiled(z, z), torch.full((3,), 4.0))
    assert capture.n == 2


def test_the_very_same_object_comes_back(check):
    def f(a):
        b = a.contiguous()
        c = a.to(torch.float32)
        d = torch.nn.functional.dropout(a, 0.5, False)
        return b is a, c is a, d is a, a + 1

    check(f, X, fullgraph=True)


def test_conversions(check):
    def f(a):
        return (
            a.to(torch.float64),
            a.double(),
            a.int(),
            a.to(dtype=torch.bfloat16),
            a.type(torch.long),
            a.type_as(a.double()),
            a.bool(),
            a.to("cpu"),
            a.to(a.device, torch.float16),
        )

    check(f, X, graphs=1, fullgraph=True)


@pytest.mark.parametrize(
    "read",
    [
        lambda a: a.sum().item(),
        lambda a: a.tolist(),
        lambda a: float(a.sum()),
        lambda a: int(a.max()),
        lambda a: math.sqrt(a.sum()),
        lambda a: operator.index(a.int().sum()),
    ],
)
def test_reading_data_breaks(check, read):
    check(lambda a: (read(a + 1), a * 2), X, breaks=["item"])


def test_texts_of_data_are_made_after_the_graph(check):
    check(lambda a: (f"{(a + 1).sum():.3f}", a * 2), X, graphs=1, breaks=[], fullgraph=True)


def test_branch_on_data(check):
    def f(a):
        if a.sum() > 0:
            return a + 1
        return a - 1

    check(f, X, breaks=["data-dependent-branch"])


def test_user_attributes(check):
    def f(a):
        return a + getattr(a, "scale", 2), hasattr(a, "nothing")

    x = X.clone()
    check(f, x, graphs=1, fullgraph=True)


def test_results_with_names(check):
    def f(a):
        m = a.max(dim=1)
        values, indices = torch.sort(a, descending=True)
        return m.values, m.indices, m[0], values, indices, torch.topk(a, 2)

    check(f, X, graphs=1, fullgraph=True)


def test_split_chunk_unbind(check):
    def f(a):
        q, k = a.chunk(2, dim=1)
        return q, k, a.split([1, 3], dim=1), torch.unbind(a), a.split(2)

    check(f, X, graphs=1, fullgraph=True)


def test_isinstance_and_identity(check):
    def f(a, b):
        return (
            isinstance(a, torch.Tensor),
            isinstance(a, torch.nn.Parameter),
            type(a) is torch.Tensor,
            a is b,
            a is a,
            torch.is_tensor(a),
            torch.is_tensor(3),
            a + b,
        )

    check(f, X, X.clone(), fullgraph=True)


def test_identity_of_arguments_is_guarded(capture):
    import torchsmith_tracer

    compiled = torchsmith_tracer.compile(lambda a, b: (a is b, a + b), backend=capture)
    x, y = torch.ones(2), torch.ones(2)
    assert compiled(x, y)[0] is False
    assert compiled(x, x)[0] is True
    assert compiled(x, y)[0] is False


def test_one_object_twice_is_one_input(capture):
    import torchsmith_tracer

    compiled = torchsmith_tracer.compile(lambda a, b: a + b, backend=capture)
    x, y = torch.ones(2), torch.ones(2)
    compiled(x, x)
    assert len(capture.placeholders()) == 1
    assert torch.equal(compiled(x, y * 3), torch.full((2,), 4.0))
    assert len(capture.placeholders()) == 2


def test_failing_operator_raises_what_eager_raises(check):
    check(lambda a, b: a @ b, X, torch.ones(3, 4), breaks=["op-failed"])


def test_failing_operator_can_be_caught(check):
    def f(a, b):
        try:
            return a @ b
        except RuntimeError:
            return a * 2

    check(f, X, torch.ones(3, 4), breaks=["op-failed"])


def test_arrays_are_right():
    import torchsmith_tracer

    def f(a):
        array = (a + 1).numpy() + 1
        return array.tolist(), a * 2

    assert torchsmith_tracer.compile(f)(X)[0] == f(X)[0]


def test_sparse_tensors_are_right(capture):
    import torchsmith_tracer

    compiled = torchsmith_tracer.compile(lambda a: a + a, backend=capture)
    out = compiled(X.to_sparse())
    assert out.is_sparse
    assert torch.equal(out.to_dense(), X + X)
    assert capture.n == 0


def test_symbolic_facts_survive_a_rollback(check):
    def f(a):
        b = a + 1
        print(end="", flush=True)
        b += 1
        return b

    check(f, X, breaks=["print"])


def test_types_of_python_stand_for_dtypes(check):
    def f(x):
        made = [torch.zeros(3, dtype=float), torch.ones(2, dtype=int), x.new_zeros(2, dtype=bool)]
        sums = [x.sum(dtype=float), torch.softmax(x, 0, dtype=float)]
        return made, sums, x.to(float), x.to(int), x.to(dtype=complex), x.to("cpu", bool)

    check(f, torch.ones(2), graphs=1)


@pytest.mark.parametrize("kind", [2.5, True, torch.device("cpu"), 1j])
def test_other_objects_are_no_types(agree, kind):
    agree(lambda x: x.type(kind), X)


def test_a_keyword_called_like_a_word_of_the_language(agree):
    agree(lambda x: x.random_(**{"from": 3, "to": 4}), torch.ones(2))


def test_sizes_given_to_old_constructors_are_no_data(program):
    """A tuple of the same numbers is data."""

    def f(a):
        one = torch.Size(list(a.shape[:1]))
        sizes = a.shape, a.shape[1:], a.shape[:0], one + a.shape, torch.Size((2, *a.shape))
        made = [(a.new(s).shape, torch.Tensor(s).shape) for s in sizes]
        return made, a.new(a.shape, device="cpu").fill_(2), a.new(3, 4).shape, a.new((3.0, 4.0))

    def body(C):
        run = C(f)
        return [run(torch.ones(n, 2, dtype=torch.double)) for n in (3, 3, 4, 5)]

    assert program(body) == 2


@pytest.mark.parametrize("handles", [True, False])
def test_a_whole_graph_ends_with_an_operator_that_only_fails_while_tracing(handles):
    with torch.library._scoped_library("smith_odd", "FRAGMENT") as library:
        library.define("plus_one(Tensor x) -> Tensor")
        library.impl("plus_one", lambda x: x + 1, "CPU")
        library.impl("plus_one", lambda x: x.new_empty(1, 2).view(7), "Meta")
        plus_one = torch.ops.smith_odd.plus_one.default

        def f(x):
            try:
                return plus_one(x * 2) * 3
            except (ValueError, RuntimeError):
                if not handles:
                    raise
                return None

        split = torchsmith_tracer.compile(f, backend="eager")
        assert torch.equal(split(torch.ones(2)), f(torch.ones(2)))
        whole = torchsmith_tracer.compile(f, backend="eager", fullgraph=True)
        with pytest.raises(torchsmith_tracer.errors.FullGraphError, match="TS-T032"):
            whole(torch.ones(2))


def test_a_known_tensor_as_an_index(capture):
    def run(x):
        first = torch.tensor(1)
        y = x[first] * 2
        z = x.clone()
        z[first] = 7
        return y, z, x[first, None], x[torch.tensor([1])]

    compiled = torchsmith_tracer.compile(run, backend=capture, fullgraph=True)
    for n in (3, 4):
        x = torch.randn(n, 2)
        torch.testing.assert_close(compiled(x), run(x))
    targets = [node for node in capture.graphs[0].graph.nodes if node.op == "call_function"]
    keys = [node.args[1] for node in targets if node.target.__name__ == "getitem"]
    assert keys[0] == 1
