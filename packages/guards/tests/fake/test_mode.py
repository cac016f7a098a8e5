"""Fake tensors: static binding, symbolic binding, and operators with symbolic sizes."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torchsmith_guards import (
    FakeMode,
    Guard,
    GuardKind,
    GuardSet,
    LocalSource,
    ShapeEnv,
    ShapeRelation,
    TensorSpec,
    hint_of,
    is_symbolic,
    stride_dependents,
)
from torchsmith_guards.errors import UnsupportedTensorError

X = LocalSource("x")


def numbers(values):
    return tuple(hint_of(v) for v in values)


# --- binding -------------------------------------------------------------------------------------

STATIC = {
    "contiguous": lambda: torch.ones(2, 3),
    "scalar": lambda: torch.tensor(1),
    "transposed": lambda: torch.ones(2, 3).t(),
    "sliced": lambda: torch.ones(4, 6)[1:, ::2],
    "expanded": lambda: torch.ones(1, 3).expand(4, 3),
    "empty": lambda: torch.ones(0, 3),
    "channels last": lambda: torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "requires grad": lambda: torch.ones(2, requires_grad=True),
    "not a leaf": lambda: torch.ones(2, requires_grad=True) * 2,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 3)),
    "frozen parameter": lambda: torch.nn.Parameter(torch.ones(2), requires_grad=False),
    "bfloat16": lambda: torch.ones(2, dtype=torch.bfloat16),
    "bool": lambda: torch.ones(2, dtype=torch.bool),
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "negative": lambda: torch._neg_view(torch.ones(2)),
    "meta": lambda: torch.ones(2, device="meta"),
}


@pytest.mark.parametrize("name", STATIC)
@pytest.mark.parametrize("env", [False, True])
def test_static_binding_keeps_everything(name, env):
    real = STATIC[name]()
    fake = FakeMode(ShapeEnv() if env else None).fakeify(real, X)
    for attribute in ("dtype", "device", "layout", "requires_grad", "is_leaf"):
        assert getattr(fake, attribute) == getattr(real, attribute), attribute
    assert tuple(fake.shape) == tuple(real.shape)
    assert fake.stride() == real.stride()
    assert fake.storage_offset() == real.storage_offset()
    assert fake.is_conj() == real.is_conj()
    assert fake.is_neg() == real.is_neg()
    assert isinstance(fake, torch.nn.Parameter) == isinstance(real, torch.nn.Parameter)


def test_the_same_tensor_has_the_same_fake():
    mode = FakeMode()
    one, two = torch.ones(2), torch.ones(2)
    assert mode.fakeify(one, X) is mode.fakeify(one, X)
    assert mode.fakeify(one, X) is not mode.fakeify(two, X)
    fake = mode.fakeify(one, X)
    assert mode.fakeify(fake) is fake


def test_fakes_do_not_keep_real_tensors_alive():
    import weakref

    mode, tensor = FakeMode(), torch.ones(2)
    mode.fakeify(tensor, X)
    ref = weakref.ref(tensor)
    del tensor
    assert ref() is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, 3).to_sparse(),
        lambda: torch.ones(2, 3).to_mkldnn(),
        lambda: torch.ones(2).as_subclass(type("Sub", (torch.Tensor,), {})),
        pytest.param(
            lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8),
            marks=pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
        ),
    ],
)
def test_unsupported_tensors_are_named(make):
    with pytest.raises(UnsupportedTensorError, match="TS-G005"):
        FakeMode().fakeify(make(), X)


def test_dynamic_sizes_and_strides():
    env = ShapeEnv()
    mode = FakeMode(env)
    fake = mode.fakeify(torch.ones(4, 5, 6), X, {0, 1})
    assert [str(s) for s in fake.shape] == ["s0", "s1", "6"]
    assert [str(s) for s in fake.stride()] == ["6*s1", "6", "1"]
    relations = [g.expected for g in env.shape_guards() if isinstance(g.expected, ShapeRelation)]
    assert "x.stride(0) == 6*x.size(1)" in [r.text() for r in relations]
    assert env.guards == []


def test_sizes_zero_and_one_stay_static():
    env = ShapeEnv()
    fake = FakeMode(env).fakeify(torch.ones(1, 0, 3), X, {0, 1, 2})
    assert [str(s) for s in fake.shape] == ["1", "0", "s0"]


def test_dynamic_view_with_offset():
    env = ShapeEnv()
    real = torch.ones(9, 5)[2:]
    fake = FakeMode(env).fakeify(real, X, {0})
    assert str(fake.shape[0]) == "s0"
    assert fake.storage_offset() == 10


def test_tensor_spec_and_shape_guards_accept_exactly_the_same_layouts():
    env = ShapeEnv()
    real = torch.ones(4, 5, 6)
    FakeMode(env).fakeify(real, X, {0, 1})
    guards = [Guard(X, GuardKind.TENSOR, TensorSpec.of(real, {0, 1})), *env.shape_guards()]
    made = GuardSet(guards).compile(["x"])
    for good in (real, torch.ones(2, 3, 6), torch.ones(5, 4, 6)):
        assert made.check(good) is True, made.code
    for bad in (
        torch.ones(1, 5, 6),
        torch.ones(4, 1, 6),
        torch.ones(4, 5, 7),
        torch.ones(5, 4, 6).transpose(0, 1),
        torch.ones(4, 9, 6)[:, :5],
    ):
        assert made.check(bad) is False


def test_rollback_forgets_fakes_with_their_symbols():
    env = ShapeEnv()
    mode, real = FakeMode(env), torch.ones(4, 3)
    mark = env.checkpoint()
    first = mode.fakeify(real, X, {0})
    env.rollback(mark)
    assert env.bindings == {}
    second = mode.fakeify(real, X, {0})
    assert second is not first
    assert list(env.bindings) == ["s0"]


# --- operators -----------------------------------------------------------------------------------


def norm_weight(a):
    return a.new_ones(a.shape[-1])


# name -> (function, input shapes with their dynamic dims, conditions that it may record)
OPERATORS = {
    "add": (lambda a, b: a + b, [((5, 4), {0}), ((5, 4), {0})], []),
    "add broadcast": (lambda a, b: a + b, [((5, 4), {0}), ((4,), set())], []),
    "add row": (lambda a, b: a + b, [((5, 4), {0, 1}), ((1, 4), {1})], []),
    "mm": (lambda a, b: a @ b, [((5, 4), {0}), ((4, 6), set())], []),
    "mm inner": (lambda a: a.t() @ a, [((5, 4), {0})], []),
    "bmm": (lambda a, b: a @ b, [((5, 7, 4), {0, 1}), ((5, 4, 6), {0})], []),
    "linear": (F.linear, [((5, 3, 4), {0, 1}), ((6, 4), set()), ((6,), set())], []),
    "view": (lambda a: a.view(-1), [((5, 4), {0})], []),
    "view heads": (lambda a: a.view(*a.shape[:2], 2, 4), [((5, 7, 8), {0, 1})], []),
    "reshape": (lambda a: a.reshape(a.shape[0] * a.shape[1], -1), [((5, 6, 4), {0, 1})], []),
    "reshape copy": (lambda a: a.mT.reshape(a.shape[0], -1), [((5, 6, 4), {0, 1})], []),
    "cat": (lambda a, b: torch.cat([a, b]), [((5, 4), {0}), ((7, 4), {0})], []),
    "stack": (lambda a: torch.stack([a, a]), [((5, 4), {0})], []),
    "softmax": (lambda a: a.softmax(-1), [((5, 4), {0, 1})], []),
    "layer norm": (lambda a: F.layer_norm(a, (4,)), [((5, 7, 4), {0, 1})], []),
    "layer norm weights": (
        lambda a, w: F.layer_norm(a, (4,), w, w), [((5, 4), {0}), ((4,), set())], []
    ),
    "rms norm": (lambda a: F.rms_norm(a, (4,)), [((5, 4), {0})], []),
    "group norm": (lambda a: F.group_norm(a, 2), [((5, 4, 6), {0})], []),
    "expand": (lambda a: a.unsqueeze(1).expand(-1, a.shape[0], -1), [((5, 4), {0})], []),
    "slice": (lambda a: a[1:-1], [((5, 4), {0})], ["4 <= s0"]),
    "slice half": (lambda a: a[:, : a.shape[1] // 2], [((5, 8), {0, 1})], ["2 <= s1//2"]),
    "last": (lambda a: a[:, -1], [((5, 8), {0, 1})], []),
    "attention": (F.scaled_dot_product_attention, [((5, 2, 7, 8), {0, 2})] * 3, []),
    "attention causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [((5, 2, 7, 8), {0, 2})] * 3,
        [],
    ),
    "transpose": (lambda a: a.transpose(0, 1), [((5, 4), {0})], []),
    "permute copy": (lambda a: a.permute(1, 0, 2).contiguous(), [((5, 3, 4), {0})], []),
    "sum": (lambda a: a.sum(0), [((5, 4), {0, 1})], []),
    "sum all": (lambda a: a.sum(), [((5, 4), {0, 1})], []),
    "mean": (lambda a: a.mean(-1, keepdim=True), [((5, 4), {0, 1})], []),
    "arange": (lambda a: torch.arange(a.shape[0]), [((5, 4), {0})], []),
    "arange step": (lambda a: torch.arange(0, a.shape[0] * 2, 2), [((5, 4), {0})], []),
    "arange start": (lambda a: torch.arange(1, a.shape[0] + 1), [((5, 4), {0})], []),
    "ones tril": (lambda a: torch.ones(a.shape[0], a.shape[0]).tril(), [((5, 4), {0})], []),
    "full": (lambda a: a.new_full((a.shape[0], 3), 1.0), [((5, 4), {0})], []),
    "gelu": (F.gelu, [((5, 4), {0, 1})], []),
    "where": (lambda a: torch.where(a > 0, a, 0.0), [((5, 4), {0})], []),
    "masked fill": (lambda a: a.masked_fill(a > 0, -1.0), [((5, 4), {0})], []),
    "embedding": (
        lambda a: F.embedding(a.long().abs() % 3, torch.zeros(10, 4)), [((5, 4), {0})], []
    ),
    "index": (lambda a: a[torch.arange(a.shape[0]), 0], [((5, 4), {0})], []),
    "split": (lambda a: a.split(2, -1)[1], [((5, 4), {0})], []),
    "chunk": (lambda a: a.chunk(2, -1)[1], [((5, 4), {0})], []),
    "convolution": (
        lambda a, w: F.conv2d(a, w, padding=1),
        [((5, 3, 8, 8), {2, 3}), ((4, 3, 3, 3), set())],
        [],
    ),
    "max pool": (lambda a: F.max_pool2d(a, 2), [((5, 3, 8, 8), {0})], []),
    "adaptive pool": (lambda a: F.adaptive_avg_pool2d(a, 1), [((5, 3, 8, 8), {0})], []),
    "batch norm": (lambda a, w: F.batch_norm(a, w, w), [((5, 3, 8, 8), {0}), ((3,), set())], []),
    "interpolate": (lambda a: F.interpolate(a, scale_factor=2.0), [((5, 3, 8, 8), {0})], []),
    "pad": (lambda a: F.pad(a, (1, 2)), [((5, 4), {0, 1})], []),
    "roll": (lambda a: a.roll(2, 0), [((5, 4), {0})], []),
    "cumsum": (lambda a: a.cumsum(0), [((5, 4), {0})], []),
    "topk": (lambda a: a.topk(2)[0], [((5, 4), {0})], []),
    "argmax": (lambda a: a.argmax(-1), [((5, 4), {0})], []),
    "repeat": (lambda a: a.repeat(2, 1), [((5, 4), {0})], []),
    "repeat interleave": (lambda a: a.repeat_interleave(2, 0), [((5, 4), {0})], []),
    "einsum": (
        lambda a, b: torch.einsum("bij,jk->bik", a, b), [((5, 3, 4), {0}), ((4, 5), set())], []
    ),
    "unfold": (lambda a: a.unfold(0, 2, 1), [((5, 4), {0})], ["3 <= s0"]),
    "to bfloat16": (lambda a: a.to(torch.bfloat16), [((5, 4), {0})], []),
    "channels last": (
        lambda a: a.contiguous(memory_format=torch.channels_last) + 1, [((5, 3, 8, 8), {0})], []
    ),
    "divide by a root": (lambda a: a / (a.shape[0] ** 0.5), [((5, 4), {0})], []),
    "branch": (
        lambda a: a.view(a.shape[0] * 2, -1) if a.shape[0] > 3 else a,
        [((5, 4), {0})],
        ["4 <= s0"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_with_symbolic_sizes(name):
    function, inputs, conditions = OPERATORS[name]
    env = ShapeEnv()
    mode = FakeMode(env)
    reals = [torch.randn(shape) for shape, _ in inputs]
    fakes = [
        mode.fakeify(real, LocalSource(f"x{i}"), dims)
        for i, (real, (_, dims)) in enumerate(zip(reals, inputs))
    ]
    with torch.no_grad():
        expected = function(*reals)
        with mode.mode:
            result = function(*fakes)
    assert numbers(result.shape) == tuple(expected.shape)
    assert numbers(result.stride()) == expected.stride()
    assert result.dtype == expected.dtype
    assert [g.condition.text() for g in env.guards] == conditions


@pytest.mark.parametrize("name", OPERATORS)
def test_symbolic_shapes_are_right_for_other_sizes(name):
    """The expressions found for one size give the shapes of another one."""
    function, inputs, conditions = OPERATORS[name]
    if conditions:
        return  # the other size may take the other branch
    env = ShapeEnv()
    mode = FakeMode(env)
    fakes = [
        mode.fakeify(torch.randn(shape), LocalSource(f"x{i}"), dims)
        for i, (shape, dims) in enumerate(inputs)
    ]
    with torch.no_grad(), mode.mode:
        result = function(*fakes)
    other = {name: hint + 2 * hint for name, hint in env.hints.items()}
    reals = [torch.randn([_number(s, other) for s in fake.shape]) for fake in fakes]
    with torch.no_grad():
        expected = function(*reals)
    assert tuple(_number(s, other) for s in result.shape) == tuple(expected.shape)


def _number(size, values):
    return size.node.value.evaluate(values) if isinstance(size, torch.SymInt) else size


def test_shape_errors_are_torch_errors(caplog):
    env = ShapeEnv()
    mode = FakeMode(env)
    a = mode.fakeify(torch.ones(5, 4), X, {0})
    b = mode.fakeify(torch.ones(5, 6), LocalSource("y"))
    with mode.mode, pytest.raises(RuntimeError, match="same reduction dim"):
        a @ b
    assert caplog.records == []  # torch logs a traceback of its own, which is not the user's


def test_static_mode_runs_operators():
    mode = FakeMode()
    fake = mode.fakeify(torch.ones(3, 4), X)
    with mode.mode:
        out = F.softmax(fake @ fake.t(), -1)
    assert out.shape == (3, 3)


def test_modes_nest():
    env = ShapeEnv()
    mode = FakeMode(env)
    fake = mode.fakeify(torch.ones(5, 4), X, {0})
    with mode.mode:
        with mode.mode:
            inner = fake + 1
        outer = inner * 2
    assert str(outer.shape[0]) == "s0"
    assert type(torch.ones(2)) is torch.Tensor


def test_new_tensors_are_what_the_constructor_makes():
    mode = FakeMode()
    for device in (torch.device("cpu"), torch.device("meta")):
        meta = torch.empty_strided((2, 3), (1, 2), dtype=torch.float16, device="meta")
        wanted = FakeTensor(mode.mode, meta, device)
        for _ in range(2):  # the second is a copy of the first
            found = mode.new_strided((2, 3), (1, 2), torch.float16, device)
            assert vars(found) == vars(wanted) and type(found) is FakeTensor
            assert torch._C._dispatch_keys(found) == torch._C._dispatch_keys(wanted)
            assert (found.device, found.stride()) == (device, (1, 2))
            assert not found.requires_grad and found.is_leaf


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("order", [(0, 3, 1, 2), (3, 2, 1, 0), (1, 2, 3, 0)])
def test_strides_of_axes_of_one_stand_in_no_way(channels, order):
    """Strides that follow from a size that varies are products of it, in channels-last images of
    one channel, too."""
    for stored in ((2, 6, 8, channels), (2, channels, 6, 8), (1, 6, 8, channels)):
        image = torch.rand(stored).permute(order)
        varies = image.size().index(8)
        fake = FakeMode(ShapeEnv()).fakeify(image, LocalSource("x"), {varies})
        other = torch.rand([10 if n == 8 else n for n in stored]).permute(order)
        scaled = {d for d in range(4) if image.stride(d) != other.stride(d)}
        assert {d for d in range(4) if is_symbolic(fake.stride(d))} == scaled
        assert stride_dependents(image, {varies}) == scaled


@pytest.mark.parametrize("value", [1.5, 2])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: x.clamp(max=n),
        lambda x, n: torch.clamp(x, n, 3),
        lambda x, n: x.clamp_min(n),
        lambda x, n: x + n,
        lambda x, n: x**n,
        lambda x, n: torch.where(x > 1, x, n),
    ],
)
def test_a_float_that_varies_widens_integers_as_a_known_one_does(fn, value):
    env = ShapeEnv()
    mode, x = FakeMode(env), torch.tensor([1, 2, 3])
    number = env.create_symbol(value, LocalSource("n"), "unspecified")
    fake = mode.fakeify(x, X)
    with mode.mode:
        assert fn(fake, number).dtype is fn(x, value).dtype


@pytest.mark.skipif(torch.version.cuda is None, reason="needs a build for GPUs, but none of them")
def test_views_of_a_row_of_a_varying_batch_on_a_gpu() -> None:
    """No size of the row is a symbol, but the extent of its storage is."""
    fake = FakeMode(ShapeEnv())
    batch = fake.fakeify(torch.ones(5, 10), LocalSource("x"), dynamic_dims=[0])
    device = torch.device("cuda", 0)
    with fake.mode:
        row = fake.new_strided(batch.shape, batch.stride(), torch.float32, device)[1]
    view = fake.view(row, (2, 5), (5, 1), row.storage_offset())
    assert (view.shape, view.device) == ((2, 5), device)


def test_tensors_are_made_on_the_gpu_that_is_current(monkeypatch):
    import sympy  # noqa: F401 - torch remembers results once it is there

    current = [0]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    for number in (0, 1, 0, 2, 1):
        current[0] = number
        with FakeMode(None).mode:
            made, fixed = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda:0")
        assert [made.device.index, fixed.device.index] == [number, 0]
