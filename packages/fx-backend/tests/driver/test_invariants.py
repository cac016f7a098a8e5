"""Torch's invariants survive raw pointers: version counters, lazy bits, aliases, refused writes."""

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import compile_graph, smith
from torchsmith_fx_backend._src.capture.make_fx import make_fx
from torchsmith_fx_backend.errors import UnsupportedError

FUNCTIONS = {
    "once": lambda x, y: x.add_(y),
    "twice": lambda x, y: x.add_(y).mul_(2),
    "through a view": lambda x, y: x[1:].mul_(y[1:]),
    "two inputs": lambda x, y: (x.add_(1), y.sub_(x))[0],
    "read only": lambda x, y: x + y,
    "out": lambda x, y: torch.add(y, 1, out=x),
    "extern": lambda x, y: x.copy_(torch.cumsum(y, 0)).neg_(),
    "set item": lambda x, y: x.__setitem__(0, 1.0) or x,
}


def traced(fn):
    return fx.symbolic_trace(fn)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_version_counters_advance_as_in_eager(name):
    fn = FUNCTIONS[name]
    mine, theirs = ([torch.randn(4), torch.randn(4)] for _ in range(2))
    with torch.no_grad():
        graph = make_fx(fn)(*(t.clone() for t in mine))
        compiled = compile_graph(graph, mine)
        compiled(*mine)
        fn(*theirs)
    assert [t._version for t in mine] == [t._version for t in theirs]


def test_autograd_sees_that_a_kernel_wrote_what_it_saved():
    weight, x = torch.randn(8, requires_grad=True), torch.ones(8, requires_grad=True)
    with torch.no_grad():
        step = compile_graph(traced(lambda p, g: p.add_(g, alpha=-1.0)), [weight, torch.ones(8)])
    loss = (x * weight).sum()
    with torch.no_grad():
        step(weight, torch.ones(8))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_counters_of_views_and_attributes_advance_and_inference_tensors_have_none():
    gm = traced(lambda x: x.add_(1))
    with torch.no_grad():
        compiled = compile_graph(gm, [torch.zeros(3)])
        base = torch.zeros(5)
        compiled(base[1:4])
        assert base._version == 1
    with torch.inference_mode():
        compiled(torch.zeros(3))

    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(2))

        def forward(self, x):
            return x + self.n.add_(1)

    module = traced(Counter())
    with torch.no_grad():
        compile_graph(module, [torch.zeros(2)])(torch.zeros(2))
    assert module.n._version == 1


LAZY = {
    "conj times two": lambda a: a.conj() * 2,
    "square of the magnitude": lambda a: (a.conj() * a).sum().real,
    "imaginary part of conj": lambda a: a.conj().imag,
    "its sum": lambda a: a.conj().imag.sum() + 1,
    "resolved": lambda a: (a.conj().resolve_conj(), a.conj().imag.resolve_neg()),
    "adjoint": lambda a: (a.mH, a.adjoint() @ a),
    "returned": lambda a: a.conj(),
    "double": lambda a: a.conj().conj() + 1,
    "view as real": lambda a: torch.view_as_real(a.conj().resolve_conj()) * 2,
    "of a result": lambda a: (a * 2).conj(),
    "written": lambda a: (a.conj().mul_(2j), a * 1),
    "part written": lambda a: (a.conj().imag.mul_(3), a * 1),
    "copied into": lambda a: (a.conj().copy_(torch.ones_like(a) * 1j), a * 1),
    "matrix product": lambda a: a @ a.conj().transpose(0, 1),
    "rows of conj": lambda a: a.conj()[0].imag * 2 + 1,
}


@pytest.mark.parametrize("conjugated", [False, True])
@pytest.mark.parametrize("name", LAZY)
def test_lazy_conjugation_and_negation(name, conjugated):
    fn = LAZY[name]
    base = torch.randn(2, 2, dtype=torch.cfloat)
    mine, theirs = base.clone(), base.clone()
    if conjugated:
        mine, theirs = mine.conj(), theirs.conj()
    with torch.no_grad():
        got, want = smith(traced(fn), [mine])(mine), fn(theirs)
    got, want = ((o if isinstance(o, tuple) else (o,)) for o in (got, want))
    for a, b in zip(got, want, strict=True):
        assert (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg())
        torch.testing.assert_close(a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg())
    torch.testing.assert_close(mine.resolve_conj(), theirs.resolve_conj())


def test_a_negated_input():
    x = torch.randn(3, dtype=torch.cfloat).conj().imag
    assert x.is_neg()
    fn = lambda a: a * 2 + 1
    with torch.no_grad():
        assert torch.equal(smith(traced(fn), [x])(x), fn(x))


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.ones(4))
        self.b = torch.nn.Parameter(self.a.data)

    def forward(self, x):
        self.a.mul_(2)
        return self.b + x


def test_attributes_that_share_memory_with_a_written_one():
    module = traced(Tied())
    x = torch.zeros(4)
    with torch.no_grad():
        compiled = smith(module, [x])
        for factor in (2, 4, 8):
            assert torch.equal(compiled(x), torch.full((4,), float(factor)))


def test_an_attribute_that_shares_memory_with_a_written_input():
    class Adds(torch.nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = torch.nn.Parameter(weight)

        def forward(self, x):
            x.add_(1)
            return self.weight * x

    weight = torch.ones(3)
    module = traced(Adds(weight))
    with torch.no_grad():
        compiled = smith(module, [torch.zeros(3)])
        assert torch.equal(compiled(torch.zeros(3)), torch.ones(3))
        assert torch.equal(compiled(weight), torch.full((3,), 4.0))


def test_a_parameter_among_the_inputs_that_shares_memory_with_a_written_input():
    fn = lambda p, x: (x.add_(1), p * 2)[1]
    p = torch.nn.Parameter(torch.zeros(4))
    with torch.no_grad():
        compiled = smith(traced(fn), [p, torch.zeros(4)])
        assert torch.equal(compiled(p, torch.zeros(4)), torch.zeros(4))
        assert torch.equal(compiled(p, p.data), torch.full((4,), 2.0))


def test_neighbouring_slices_of_one_buffer_are_compiled(caplog):
    fn = lambda a, b: a.add_(b)
    with torch.no_grad(), caplog.at_level("INFO", "torchsmith.backend"):
        compiled = smith(traced(fn), [torch.ones(2), torch.ones(2)])
        buffer = torch.arange(4.0)
        compiled(buffer[:2], buffer[2:])
        assert buffer.tolist() == [2.0, 4.0, 2.0, 3.0]
        assert "share memory" not in caplog.text
        with pytest.raises(RuntimeError, match="single memory location"):
            compiled(buffer[:2], buffer[1:3])
        assert "share memory" in caplog.text


def test_gradients_of_attributes_are_kept():
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            return (x * self.weight).sum()

    module = traced(Scale())
    smith(module, [torch.ones(3)])(torch.full((3,), 2.0)).backward()
    assert torch.equal(module.weight.grad, torch.full((3,), 2.0))


REFUSED = {
    "neighbours": lambda x: x[0:2].add_(x[1:3]),
    "assigned": lambda x: x.__setitem__(slice(0, 3), x[1:4]),
    "out": lambda x: torch.mul(x[1:3], 2, out=x[0:2]),
    "expanded": lambda x: x[:1].expand(6).add_(torch.ones(6)),
    "scatter": lambda x: x.scatter_(0, torch.arange(3), x),
}
ALLOWED = {
    "itself": lambda x: x.add_(x.view(6)),
    "halves": lambda x: x[:3].add_(x[3:]),
    "every other": lambda x: x[::2].add_(x[1::2]),
    "copied": lambda x: x[0:2].add_(x[1:3].clone()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_overlapping_writes_raise_what_eager_raises(name):
    fn = REFUSED[name]
    x = torch.arange(6.0)
    with torch.no_grad():
        with pytest.raises(RuntimeError) as eager:
            fn(x.clone())
        with pytest.raises(RuntimeError) as ours:
            smith(traced(fn), [x])(x.clone())
    first = str(eager.value).splitlines()[0]
    assert first == str(ours.value).splitlines()[0] and type(ours.value) is RuntimeError


@pytest.mark.parametrize("name", ALLOWED)
def test_writes_that_eager_allows_are_compiled(name):
    fn = ALLOWED[name]
    mine, theirs = torch.arange(6.0), torch.arange(6.0)
    with torch.no_grad():
        try:
            compile_graph(traced(fn), [mine])(mine)
        except UnsupportedError as error:
            pytest.fail(str(error))
        fn(theirs)
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("norm", [torch.batch_norm, torch.instance_norm])
def test_running_statistics_have_the_dtype_that_they_have(norm, dtype):
    fn = lambda x, m, v: norm(x, None, None, m, v, True, 0.5, 1e-5, False)
    mine, theirs = (
        [torch.arange(48.0).reshape(2, 3, 8).to(dtype), torch.zeros(3, dtype=dtype)]
        + [torch.ones(3, dtype=dtype)]
        for _ in range(2)
    )
    with torch.no_grad():
        got, want = smith(make_fx(fn)(*(t.clone() for t in mine)), mine)(*mine), fn(*theirs)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(mine, theirs)


def test_a_result_whose_fake_is_wrong_is_made_what_kernels_expect():
    lib = torch.library.Library("torchsmith_test_invariants", "DEF")
    lib.define("odd(Tensor x) -> Tensor")
    lib.impl("odd", lambda x: (x + 1).t().contiguous().t().double(), "CPU")
    lib.impl("odd", lambda x: torch.empty_like(x), "Meta")
    fn = lambda x: torch.ops.torchsmith_test_invariants.odd(x) * 2
    x = torch.arange(6.0).reshape(2, 3)
    with torch.no_grad():
        assert torch.equal(smith(traced(fn), [x])(x), (x + 1) * 2)


@pytest.mark.parametrize("write", [lambda a: a.logit_(0.1), lambda a: a.ldexp_(torch.tensor(1))])
def test_results_of_another_kind_of_dtype_are_not_written(write):
    x = torch.ones(3, dtype=torch.int64)
    with torch.no_grad(), pytest.raises(RuntimeError, match="can't be cast"):
        smith(traced(write), [x])(x)


def asserting(x, y):
    doubled = y * 2
    torch.ops.aten._assert_async((x > 0).all())
    y.detach().add_(1)
    return doubled + x


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_an_assertion_raises_before_anything_is_written(needs_gradient):
    def given(sign):
        return torch.full((3,), sign, requires_grad=needs_gradient), torch.ones(3)

    compiled = smith(traced(asserting), list(given(1.0)))
    x, y = given(1.0)
    assert (compiled(x, y) == 3).all()
    assert (y == 2).all()
    x, y = given(-1.0)
    with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value"):
        compiled(x, y)
    assert (y == 1).all()


def test_operators_of_others_are_not_paired_by_their_names():
    lib = torch.library.Library("torchsmith_test_pairs", "DEF")
    ops = torch.ops.torchsmith_test_pairs
    lib.define("more(Tensor x) -> Tensor")
    lib.define("more_(Tensor(a!) x) -> Tensor(a!)")
    lib.define("less(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    lib.define("less.other(Tensor x) -> Tensor")
    kind = "CompositeExplicitAutograd"
    lib.impl("more", lambda x: x * 100, kind)
    lib.impl("more_", lambda x: x.add_(1), kind)
    lib.impl("less", lambda x, out: out.copy_(x - 1), kind)
    lib.impl("less.other", lambda x: x * 100, kind)
    fn = lambda x: ops.more_(x + 1) * ops.less(x, out=torch.empty_like(x))
    x = torch.arange(3.0)
    with torch.no_grad():
        assert torch.equal(smith(traced(fn), [x])(x), (x + 2) * (x - 1))
