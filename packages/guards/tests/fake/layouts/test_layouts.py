"""Layout rules against the real operators, on a GPU where there is one; without, its layouts are
compared with those of torch's fake mode."""

import itertools
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from layout_cases import LAYOUTS, WHOLE_CALLS, WITH_SETTINGS, overload
from network_cases import GPU_CALLS, NETWORK_CALLS, ORDERS, maker
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map
from torchsmith_guards import (
    FakeMode,
    LocalSource,
    ShapeEnv,
    hint_of,
    is_symbolic,
    layout_of,
)
from torchsmith_guards._src.fake.layouts.base import entry_of

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)
DEVICES = ["cpu", "cuda:0"][: 1 + torch.cuda.is_available()]


def described(value):
    """Containers and metadata of a result."""
    if isinstance(value, torch.Tensor):
        return (
            tuple(value.shape),
            value.stride(),
            value.dtype,
            value.device,
            value.storage_offset(),
        )
    if isinstance(value, list | tuple):
        return ("list" if isinstance(value, list) else "tuple", [described(v) for v in value])
    return value


def run(func, args, kwargs):
    try:
        with torch.no_grad():
            return described(func(*args, **kwargs))
    except (RuntimeError, IndexError, NotImplementedError, ValueError, TypeError):
        return None


def faked(mode, convert, args, kwargs):
    with mode:
        return tree_map(lambda a: convert(a) if isinstance(a, torch.Tensor) else a, (args, kwargs))


def moved(x, device):
    """``x`` on ``device``, laid out as it is."""
    if not isinstance(x, torch.Tensor) or device == "cpu":
        return x
    base = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return base.to(device).as_strided(x.shape, x.stride(), x.storage_offset())


def compare(name, call, device="cpu"):
    """Run one call by rule and for real.

    Eager decides: where torch's fake mode differs from it (axes of one, empty tensors), the rule
    follows eager. None when the rule has no answer, else a list of complaints.
    """
    func = overload(name)
    try:
        args, kwargs = call()
    except (RuntimeError, IndexError):
        return None
    args, kwargs = tree_map(lambda a: moved(a, device), (args, kwargs))
    mode = FakeMode()
    ours, our_kwargs = faked(mode.mode, mode.fakeify, args, kwargs)
    if entry_of(func).result(ours, our_kwargs) is None:
        return None
    with mode.mode:
        result = run(func, ours, our_kwargs)
    args_before = describe_all(args)
    real = run(func, args, kwargs)
    if result == real or (real is None and device != "cpu"):  # takes fewer types there
        return []
    peer = FakeTensorMode(allow_non_fake_inputs=True)
    theirs, their_kwargs = faked(peer, peer.from_tensor, args, kwargs)
    with peer:
        expected = run(func, theirs, their_kwargs)
    return [f"{name}{args_before}: rule {result}, eager {real}, fake mode {expected}"]


def describe_all(args):
    return tree_map(lambda a: described(a) if isinstance(a, torch.Tensor) else a, args)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_rules_match(name, device):
    complaints = [
        compare(name, lambda s=settings, k=layout, d=dtype: s(LAYOUTS[k](d)), device)
        for dtype, layout in itertools.product(DTYPES, LAYOUTS)
        for settings in WITH_SETTINGS[name]
    ]
    answered = [c for c in complaints if c is not None]
    assert answered, "the rule never answers"
    assert [line for c in answered for line in c] == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index", range(len(WHOLE_CALLS)))
def test_whole_calls_match(index, device):
    name, call = WHOLE_CALLS[index]
    lines = compare(name, call, device)
    assert lines == [] or (lines is None and device != "cpu")  # the rule is sure of a CPU only


NETWORK_NAMES = sorted({name for name, _ in NETWORK_CALLS})
FLOATS = (torch.float32, torch.bfloat16, torch.float64)


def network_calls(name, known=NETWORK_CALLS, orders=ORDERS, dtypes=FLOATS):
    """Calls of an operator: the memory order, and a function that gives the arguments."""
    for order, dtype in itertools.product(orders, dtypes):
        if dtype != dtypes[0] and order not in ORDERS[:2]:
            continue
        for given, call in known:
            if given == name:
                yield order, lambda c=call, m=maker(order, dtype): c(m)


def mixed(first, rest):
    """A maker whose first tensor, of a backward pass the gradient, lies otherwise."""
    made = []

    def m(*size):
        made.append(size)
        return (first if len(made) == 1 else rest)(*size)

    return m


@pytest.mark.parametrize("name", NETWORK_NAMES)
def test_operators_of_networks_match_where_layouts_are_mixed(name):
    complaints = []
    for given, call in NETWORK_CALLS:
        for orders in itertools.permutations((*ORDERS, "expanded"), 2) if given == name else ():
            sides = [maker(order, torch.float32) for order in orders]
            lines = compare(name, lambda c=call, s=sides: c(mixed(*s)))
            complaints += [f"{orders}: {line}" for line in lines or ()]
    assert [line for line in complaints if "eager None" not in line] == []  # which it refuses


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NETWORK_NAMES)
def test_operators_of_networks_match(name, device):
    found = [(order, compare(name, call, device)) for order, call in network_calls(name)]
    assert [line for _, lines in found for line in lines or ()] == []
    answered = [lines is not None for order, lines in found if order == "row-major"]
    assert sum(answered) * 3 >= len(answered), "the rule rarely answers"


def on_gpu(mode, args):
    """The arguments as fake tensors of another device, in the same memory."""

    def fake(x):
        count = x.untyped_storage().nbytes() // x.element_size()
        base = torch.empty(count, dtype=x.dtype, device="cuda:0")
        return base.as_strided(tuple(x.shape), x.stride(), x.storage_offset())

    with mode:
        return tree_map(lambda a: fake(a) if isinstance(a, torch.Tensor) else a, args)


@pytest.mark.parametrize("name", sorted({*NETWORK_NAMES, *dict(GPU_CALLS)}))
def test_operators_of_networks_on_another_device_are_as_torch_describes_them(name):
    orders, dtypes = ORDERS[:2], FLOATS[:2]
    mode, peer = FakeMode().mode, FakeTensorMode()
    answered = 0
    for _, call in network_calls(name, [*NETWORK_CALLS, *GPU_CALLS], orders, dtypes):
        try:
            args, kwargs = call()
        except RuntimeError:
            continue  # the CPU has no kernel that would give the rest of the arguments
        ours = on_gpu(mode, args)
        if entry_of(overload(name)).result(ours, kwargs) is None:
            continue
        answered += 1
        with mode:
            got = run(overload(name), ours, kwargs)
        theirs = on_gpu(peer, args)
        with peer:
            wanted = run(overload(name), theirs, kwargs)
        if wanted is None and torch.version.cuda is None:
            continue  # torch asks for a number of the device on the way
        if name == "native_layer_norm_backward" and not args[1].is_contiguous():
            continue  # torch's fakes keep the order of the input, kernels do not
        if "margin_loss" in name and args[0].dim() < 2:
            continue  # torch's fakes of one row's loss have a dimension, kernels' results have not
        assert got == wanted, describe_all(args)
    assert answered


SYMBOLIC = [name for name in WITH_SETTINGS if not name.split(".")[0].endswith("_")]


@pytest.mark.parametrize("name", SYMBOLIC)
@pytest.mark.parametrize("layout", ["row-major", "transposed", "sliced", "strided", "matrix"])
def test_symbolic_sizes_give_the_same_numbers_and_no_guards(name, layout):
    func = overload(name)
    for settings in WITH_SETTINGS[name]:
        real = LAYOUTS[layout]()
        env = ShapeEnv()
        mode = FakeMode(env)
        symbolic = mode.fakeify(real, LocalSource("x"), {0})
        try:
            args, kwargs = settings(real)
            with mode.mode:
                ours, our_kwargs = settings(symbolic)
                ours, our_kwargs = tree_map(
                    lambda a, m=mode: m.fakeify(a) if type(a) is torch.Tensor else a,
                    (ours, our_kwargs),
                )
        except (RuntimeError, IndexError):
            continue
        before = list(env.guards)
        layout_found = entry_of(func).result(ours, our_kwargs)
        assert env.guards == before
        if layout_found is None:
            continue
        with mode.mode:
            got = described(func(*ours, **our_kwargs))
        assert numbers(got) == numbers(run(func, args, kwargs))


def numbers(value):
    if isinstance(value, list | tuple):
        return [numbers(v) for v in value]
    return hint_of(value) if is_symbolic(value) else value


ATTENTION = {
    "_scaled_dot_product_flash_attention": ((), {}),
    "_scaled_dot_product_efficient_attention": ((None, True), {}),
    "_scaled_dot_product_cudnn_attention": ((None, True), {}),
}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("length", [5, 64])
def test_attention_on_another_device_is_as_torch_describes_it(name, transposed, length):
    more, kwargs = ATTENTION[name]

    def call(mode):
        with mode:
            q = torch.empty(2, 4, 5, 8, dtype=torch.float16, device="cuda:0")
            k = torch.empty(2, 4, length, 8, dtype=torch.float16, device="cuda:0")
            if transposed:
                q = torch.empty_strided(
                    (2, 4, 5, 8), (160, 8, 32, 1), dtype=torch.float16, device="cuda:0"
                )
            func = overload(name)
            assert type(mode) is FakeTensorMode or layout_of(func, (q, k, k, *more), kwargs)
            return described(func(q, k, k, *more, **kwargs))

    assert call(FakeMode().mode) == call(FakeTensorMode())


def test_views_share_storage_and_writes_return_their_argument():
    mode = FakeMode()
    x = mode.fakeify(torch.ones(4, 6))
    storage = x.untyped_storage()._cdata
    with mode.mode:
        for view in (x[1:], x.t(), x.view(-1), *x.split(2), *x.unbind(1), x.detach()):
            assert view.untyped_storage()._cdata == storage
            assert view is not x
        assert (x + 1).untyped_storage()._cdata != storage
        before = x._version
        assert x.t().add_(1)._version == x._version == before + 1
        assert x.mul_(2) is x


def test_real_and_foreign_tensors_are_left_to_torch_and_known_ones_stay_known(monkeypatch):
    asked = []
    original = FakeTensorMode.dispatch
    monkeypatch.setattr(
        FakeTensorMode,
        "dispatch",
        lambda self, func, *args: asked.append(str(func)) or original(self, func, *args),
    )
    mode = FakeMode()
    x, other = mode.fakeify(torch.ones(3)), FakeMode().fakeify(torch.ones(3))
    real = torch.ones(3)
    with mode.mode:
        known = torch.tensor(2.0)
        asked.clear()
        assert type(x + x) is type(x)
        assert asked == []
        changed = (known * known).add_(1)
        assert changed.to(torch.float64).item() == 5.0 and known.item() == 2.0
        assert not {"aten.mul.Tensor", "aten.add_.Tensor", "aten._to_copy.default"} & {*asked}
        known.add_(x.sum())
        with pytest.raises(torch._subclasses.fake_tensor.DataDependentOutputException):
            known.item()
        for operand in (real, other):
            asked.clear()
            x.add(operand)
            assert "aten.add.Tensor" in asked


MIXED = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16)
BINARY = "add.Tensor sub.Tensor mul.Tensor div.Tensor maximum pow.Tensor_Tensor lt.Tensor atan2"


def strided(choose, size, dtype):
    """A tensor of some layout: permuted, with gaps, or expanded."""
    order = choose.sample(range(len(size)), len(size))
    wide = [size[i] * choose.choice((1, 1, 2)) for i in order]
    x = torch.randint(0, 3, wide).to(dtype).permute([order.index(i) for i in range(len(size))])
    x = x[tuple(slice(n) for n in size)]
    return x[:1].expand(size) if choose.random() < 0.2 else x


def test_mixed_types_are_cast_before_the_strides_are_chosen():
    choose = random.Random(0)
    wrong = []
    for _ in range(1500):
        size = tuple(choose.choice((1, 2, 3, 4)) for _ in range(choose.choice((1, 2, 3, 4))))
        args = [strided(choose, size, choose.choice(MIXED)) for _ in range(2)]
        names = ("exp", "sqrt", "sigmoid") if choose.random() < 0.2 else BINARY.split()
        name = choose.choice(names)
        given = args[: 1 if "." not in name and name not in ("maximum", "atan2") else 2]
        wrong += compare(name, lambda given=given: (given, {})) or []
    assert not wrong, "\n".join(wrong[:3])


def test_axes_of_one_beside_symbolic_sizes_are_laid_out_as_in_eager():
    choose = random.Random(1)
    answered, wrong = 0, []
    for _ in range(1500):
        size = tuple(choose.choice((1, 2, 3, 4)) for _ in range(choose.choice((2, 3, 4, 4, 4))))
        count = choose.choice((1, 2))
        real = [strided(choose, size, torch.float32) for _ in range(count)]
        if len(size) == 4 and choose.random() < 0.5:
            real = [x.contiguous(memory_format=torch.channels_last) for x in real]
        env = ShapeEnv()
        mode = FakeMode(env)
        dims = {d for d, n in enumerate(size) if n > 1 and choose.random() < 0.5}
        ours = [mode.fakeify(x, LocalSource(f"x{i}"), dims) for i, x in enumerate(real)]
        func = overload(choose.choice(("tanh", "relu", "neg")) if count == 1 else "add.Tensor")
        before = list(env.guards)
        found = layout_of(func, ours, {})
        assert env.guards == before
        if found is None:
            continue
        answered += dims != set()
        if [hint_of(n) if is_symbolic(n) else n for n in found[1]] != list(func(*real).stride()):
            wrong.append((size, dims, [x.stride() for x in real], found[1], func(*real).stride()))
    assert not wrong, wrong[:3]
    assert answered > 600


def test_images_in_any_order_with_symbolic_sizes_are_laid_out_as_in_eager():
    choose = random.Random(2)
    answered, wrong = 0, []
    for _ in range(600):
        size = tuple(choose.choice((1, 2, 3, 4, 5)) for _ in range(4))
        order = choose.choice([(0, 2, 3, 1), tuple(choose.sample(range(4), 4))])
        stored = torch.empty([size[i] for i in order])
        image = stored.permute([order.index(i) for i in range(4)])
        env = ShapeEnv()
        dims = {d for d, n in enumerate(size) if n > 1 and choose.random() < 0.6 and d != 1}
        fake = FakeMode(env).fakeify(image, LocalSource("x"), dims)
        channels = torch.ones(size[1])
        shifts = [choose.randint(-3, 3) for _ in range(choose.randint(1, 2))]
        for name, rest in (
            ("native_batch_norm", (channels, channels, channels, channels, False, 0.1, 1e-5)),
            ("roll", (shifts, choose.sample(range(-4, 0), len(shifts)))),
        ):
            func = overload(name)
            before = list(env.guards)
            found = layout_of(func, (fake, *rest), {})
            assert env.guards == before
            if found is None:
                continue
            answered += dims != set()
            mine, true = (v[0] if isinstance(v, (list, tuple)) and name != "roll" else v
                          for v in (found, func(image, *rest)))  # fmt: skip
            if [hint_of(n) if is_symbolic(n) else n for n in mine[1]] != list(true.stride()):
                wrong.append((name, rest[0], size, dims, image.stride(), mine[1], true.stride()))
    assert not wrong, wrong[:3]
    assert answered > 400


@pytest.mark.parametrize("dims", [{0}, {1}, {0, 1}])
@pytest.mark.parametrize(
    "write",
    [
        lambda row, x: torch.slice_scatter(row, x[1:] * 2, 0, 1),
        lambda row, x: torch.select_scatter(row, x[1] * 2, 0, 1),
        lambda row, x: torch.diagonal_scatter(row, x.diagonal() * 2),
    ],
)
def test_copies_of_what_is_expanded_have_memory_of_their_own(write, dims):
    call = lambda x: write(x[:1].expand(x.shape[0], -1), x)  # noqa: E731
    real = torch.rand(6, 5)
    mode = FakeMode(ShapeEnv())
    fake = mode.fakeify(real, LocalSource("x"), dims)
    with mode.mode:
        got = described(call(fake))
    assert numbers(got) == numbers(described(call(real)))
