"""Pooling over small windows and resampling, against eager."""

import pytest
import torch
import torch.nn.functional as F
from plans import check, externs, kernels
from torch import fx
from torchsmith_fx_backend import compile_graph
from torchsmith_fx_backend._src.loops import windows
from torchsmith_fx_backend._src.loops.ir import Load
from torchsmith_fx_backend._src.schedule import inlining

X = torch.randn(2, 3, 8, 9)
HOLES = X.clone()
HOLES[0, 0, :3, :3] = float("nan")
HOLES[1, 1] = -float("inf")
HOLES[1, 2, ::2] = 1.0
POOLS = {
    "max": lambda x: F.max_pool2d(x, 2) * 2,
    "max, padded": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max, more at the edge": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max, dilated": lambda x: F.max_pool2d(x, 2, 1, 0, 2),
    "max, uneven": lambda x: F.max_pool2d(x, (3, 1), (1, 2)),
    "positions": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "average": lambda x: F.avg_pool2d(x, 2) + 1,
    "average, padded": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average of what is there": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average by another number": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "average, more at the edge": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "average, more at the edge of what is there": lambda x: F.avg_pool2d(
        x, (2, 3), (3, 2), (1, 0), ceil_mode=True, count_include_pad=False
    ),
    "average, ceil without padding": lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True),
}
RESAMPLED = {
    "nearest, twice": lambda x: F.interpolate(x, scale_factor=2) + 1,
    "nearest, three times": lambda x: F.interpolate(x, scale_factor=3),
    "nearest, 1.7 times": lambda x: F.interpolate(x, scale_factor=1.7),
    "nearest, smaller": lambda x: F.interpolate(x, size=(5, 4)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, 1.7 times": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    "bilinear, as large": lambda x: F.interpolate(x, scale_factor=1.04, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(
        x, size=(11, 5), mode="bilinear", align_corners=True
    ),
    "bilinear, smaller": lambda x: F.interpolate(x, size=(3, 4), mode="bilinear"),
    "bilinear, of one point": lambda x: F.interpolate(x[:, :, :1, :1], size=4, mode="bilinear"),
}
UNFOLDED = {
    "patches": lambda x: F.unfold(x, 2, stride=2) + 1,
    "patches, padded": lambda x: F.unfold(x, 3, padding=1),
    "patches, dilated": lambda x: F.unfold(x, (3, 2), (2, 3), (0, 2), (1, 2)),
    "patches as large as images": lambda x: F.unfold(x, (8, 8)),
    "patches of one point": lambda x: F.unfold(x, 1) * 2,
    "patches that lie outside": lambda x: F.unfold(x, 2, padding=3, stride=2).mean(-2),
    "patches, weighed": lambda x: (F.unfold(x, 3, padding=1).unflatten(-2, (3, 9)) * x.mean()).sum(
        -2
    ),
}
FOLDED = {
    "tiles": ((8, 12), (2, 3), {"stride": (2, 3)}),
    "overlapping": ((7, 9), 3, {"padding": 1}),
    "wide": ((9, 9), 5, {"padding": 2}),
    "dilated": ((8, 9), (3, 2), {"dilation": (2, 3), "padding": (1, 2)}),
    "in steps": ((9, 11), 3, {"stride": 2, "padding": 1}),
    "in long steps": ((9, 11), (3, 2), {"stride": (2, 4)}),
    "dilated on one side, in steps on the other": (
        (9, 11),
        2,
        {"dilation": (2, 1), "stride": (1, 3)},
    ),
    "of one point": ((4, 5), 1, {}),
    "far outside": ((4, 5), 2, {"padding": 3, "stride": 2}),
}
ROWS = {
    "plain": lambda x, w, b: F.conv1d(x, w, groups=3),
    "padded": lambda x, w, b: F.conv1d(x, w, b, padding=3, groups=3)[..., :-3].relu(),
    "in steps": lambda x, w, b: F.conv1d(x, w, stride=2, padding=2, groups=3) * 2,
    "dilated": lambda x, w, b: F.conv1d(x, w, b, padding=(4,), dilation=3, groups=3),
    "two results each": lambda x, w, b: F.conv1d(x[:, :1], w, b, padding=3).relu(),
}
WINDOWS = {**POOLS, **RESAMPLED, **UNFOLDED}
CALLED, CALLED_IN_ROWS_OF_CHANNELS = ("bilinear",), ("average, more", "average, ceil")
LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3),
    "three dimensions": lambda x: x[0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", WINDOWS)
def test_against_eager(name, layout):
    x = LAYOUTS[layout](X)
    if name in RESAMPLED and x.dim() == 3:
        x = x[:, None]
    called = externs(check(WINDOWS[name], x, tolerance=2e-6))
    left = CALLED_IN_ROWS_OF_CHANNELS if layout == "channels last" else CALLED
    assert bool(called) == name.startswith(left)


@pytest.mark.parametrize("name", ["max", "average", "nearest, twice", "patches"])
def test_what_comes_before_and_after_is_in_the_same_kernel(name):
    pool = WINDOWS[name]
    plan = check(lambda x: pool(x.relu()) - 1, X)
    assert len(kernels(plan)) == 1 and not externs(plan)


@pytest.mark.parametrize("name", [n for n in POOLS if n.startswith(("max", "positions"))])
def test_special_values_and_ties(name):
    check(POOLS[name], HOLES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.uint8])
def test_dtypes(dtype):
    check(POOLS["max, padded"], (X * 9).abs().to(dtype))
    if dtype.is_floating_point:
        x = LAYOUTS["channels last"](X).to(dtype)
        for name in ("average, padded", "bilinear", "nearest, 1.7 times", "patches, padded"):
            check(WINDOWS[name], x)


def test_large_windows_and_empty_tensors_are_left_to_aten():
    assert externs(check(lambda x: F.max_pool2d(x, 5), X))
    check(POOLS["max"], X[:0])


def test_symbolic_sizes():
    for name in ("max, padded", "average", "nearest, twice", "patches, padded"):
        check(WINDOWS[name], X, mode="symbolic")


AVERAGED = {  # kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    "tiles": (2, 2, 0, False, True, None),
    "overlapping": (3, 1, 1, False, True, None),
    "of what is there": ((3, 2), (1, 2), (1, 0), False, False, None),
    "more at the edge": (3, 2, 1, True, True, None),
    "more at the edge of what is there": (3, 2, 1, True, False, None),
    "by another number": ((2, 4), (2, 3), (0, 1), True, True, 3),
    "in long steps": (2, (3, 4), 1, False, True, None),
    "of one point": (1, 2, 0, True, False, None),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", AVERAGED)
def test_gradients_of_averages(name, dtype, monkeypatch):
    monkeypatch.setattr(windows, "in_threads", lambda value: True)
    kernel, *settings = AVERAGED[name]
    for change in LAYOUTS.values():
        x = change(X).to(dtype)
        y = F.avg_pool2d(x, kernel, *settings)
        # Averages and sums of such numbers are exact; eager's on a CPU round after each addition.
        grad = torch.randint_like(y, -3, 4) * 36
        kernels_of = [[n, n] if isinstance(n, int) else list(n) for n in (kernel, *settings[:2])]
        given = *kernels_of, *settings[2:]
        for mode in ("fake", "symbolic"):
            plan = check(
                lambda g, x: torch.ops.aten.avg_pool2d_backward(g, x, *given) * 2,  # noqa: B023
                grad,
                x,
                mode=mode,
                tolerance=2e-6 if dtype.itemsize > 2 else 2e-2,
            )
            assert len(kernels(plan)) == 1 and not externs(plan)


MAXIMA = {  # kernel, stride, padding, dilation, ceil_mode
    "tiles": (2, 2, 0, 1, False),
    "padded": (3, 2, 1, 1, False),
    "more at the edge": (3, 2, 1, 1, True),
    "uneven": ((3, 1), (1, 2), 0, 1, False),
    "dilated": (2, 1, 0, 2, False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", MAXIMA)
def test_gradients_of_maxima(name, dtype, monkeypatch):
    monkeypatch.setattr(windows, "in_threads", lambda value: True)
    settings = MAXIMA[name]
    given = *([n, n] if isinstance(n, int) else list(n) for n in settings[:4]), settings[4]
    for change in LAYOUTS.values():
        x = change(HOLES).to(dtype)
        y, places = F.max_pool2d(x, *settings, return_indices=True)
        for mode in ("fake", "symbolic"):
            plan = check(
                lambda g, x, i: (
                    torch.ops.aten.max_pool2d_with_indices_backward(g, x, *given, i) + 1
                ),
                torch.randint_like(y, -8, 9),
                x,
                places,
                mode=mode,
            )
            assert len(kernels(plan)) == 1 and bool(externs(plan)) == (name == "dilated")


def test_what_a_cpu_leaves_to_aten():
    for x, left in (X, 1), (X.to(memory_format=torch.channels_last), 2):
        backward, called = torch.ops.aten.avg_pool2d_backward, []
        for kernel, stride in ((2, 2), (3, 1), (3, 2)):
            given = [kernel] * 2, [stride] * 2, [kernel // 3] * 2, False, True, None
            y = torch.ops.aten.avg_pool2d(x, *given)
            called += externs(check(lambda g, x: backward(g, x, *given) * 2, y, x))  # noqa: B023
        assert len(called) == left


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ROWS)
def test_convolutions_of_each_channel_with_a_row_of_its_own(name, dtype):
    rows, w, b = (torch.randn(size, dtype=dtype) for size in ((2, 14, 3), (3, 1, 4), (3,)))
    tolerance = 2e-6 if dtype.itemsize > 2 else 2e-2
    for x in (rows.mT, rows.mT.contiguous(), rows[:1].mT):
        for mode in ("fake", "symbolic"):
            plan = check(ROWS[name], x, w, b, mode=mode, tolerance=tolerance)
            assert mode == "symbolic" or not externs(plan)


def test_taps_beside_the_row_are_nothing_times_any_weight():
    x, w, b = torch.rand(2, 3, 14) + 1, torch.rand(3, 1, 4) + 1, torch.randn(3)
    w[0, 0, 0], w[1, 0, 3] = float("inf"), -float("inf")
    result = ROWS["padded"](x, w, b)
    assert (
        not result.isnan().any()
        and result[0, 0, 0] < 1e3
        and not externs(check(ROWS["padded"], x, w, b, tolerance=2e-6))
    )


def test_what_reads_a_part_of_rows_on_a_gpu_computes_it(monkeypatch):
    x, w, b = torch.randn(2, 3, 14), torch.randn(3, 1, 4), torch.randn(3)
    assert len(kernels(check(ROWS["padded"], x, w, b))) == 2
    monkeypatch.setattr(inlining, "FAST", frozenset({"cpu"}))
    assert len(kernels(check(ROWS["padded"], x, w, b))) == 1


def test_other_convolutions_of_rows_are_left_to_the_library():
    x = torch.randn(2, 3, 20)
    for width, groups, call in (
        ((3, 3, 4), 1, F.conv1d),
        ((6, 1, 9), 3, F.conv1d),
        ((3, 1, 10), 3, F.conv1d),
        ((3, 1, 4), 3, F.conv_transpose1d),
    ):
        w = torch.randn(width)
        plan = check(lambda x, w, c=call, g=groups: c(x, w, groups=g), x, w, tolerance=2e-5)
        assert externs(plan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", FOLDED)
def test_sums_of_patches(name, dtype):
    size, kernel, options = FOLDED[name]
    image = torch.randn(2, 3, *size)
    others = (image[0], image.to(memory_format=torch.channels_last))
    for x in (image, *(others if dtype is torch.float32 else ())):
        # Sums of such numbers are exact; eager's on a CPU round after each addition.
        patches = F.unfold(x, kernel, **options).cos().mul(4).round().to(dtype)
        for given in (patches, patches.mT.contiguous().mT):
            for mode in ("fake", "symbolic"):
                plan = check(lambda x: F.fold(x, size, kernel, **options) * 2, given, mode=mode)
                assert not externs(plan) and len(kernels(plan)) == 1


@pytest.mark.parametrize("name", FOLDED)
def test_sums_of_patches_in_c(name):
    size, kernel, options = FOLDED[name]
    patches = F.unfold(torch.randn(2, 3, *size), kernel, **options)

    def fn(x):
        return F.fold(x.relu() - 1, size, kernel, **options)

    compiled = compile_graph(fx.symbolic_trace(fn), [patches])
    torch.testing.assert_close(compiled(patches), fn(patches), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", FOLDED)
def test_sums_of_patches_begin_with_a_zero_without_a_sign(name):
    size, kernel, options = FOLDED[name]
    zeros = F.unfold(torch.zeros(2, 3, *size), kernel, **options).neg()

    def fn(x):
        return F.fold(x, size, kernel, **options).neg()

    compiled = compile_graph(fx.symbolic_trace(fn), [zeros])
    assert torch.equal(compiled(zeros).signbit(), fn(zeros).signbit())


def test_what_patches_are_made_of_is_not_stored():
    """As a gradient of an involution sums it; where each point is read, no division tells."""

    def fn(image, weight):
        product = weight.view(2, 2, 1, 9, 6, 7) * image.view(2, 2, 2, 1, 6, 7)
        return F.fold(product.view(2, 36, 42), (6, 7), 3, padding=1)

    plan = check(fn, torch.randn(2, 4, 6, 7), torch.randn(2, 18, 6, 7))
    (kernel,) = kernels(plan)
    indices = [str(node.index) for node in kernel.body if isinstance(node, Load)]
    assert len(indices) == 18 and not any(sign in text for text in indices for sign in "/%")


def test_patches_in_steps_of_spread_points_are_left_to_the_library():
    assert externs(check(lambda x: F.fold(x, 9, 2, dilation=2, stride=3), torch.randn(2, 8, 9)))
    assert externs(check(lambda x: F.fold(x, 9, 7, padding=3), torch.randn(2, 49, 81)))
