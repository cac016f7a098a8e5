"""Resampling along one to three axes, and at places that a tensor says, against eager."""

import functools

import pytest
import torch
import torch.nn.functional as F
from plans import check, externs
from torchsmith_fx_backend._src.loops import resampling

X = torch.randn(2, 3, 7, 9, generator=torch.manual_seed(0))
GRID = torch.randn(2, 5, 6, 2, generator=torch.manual_seed(1)) * 0.8
GRID[0, 0, :2] = torch.tensor([[1.0, -1.0], [5.0, -7.0]])


def resized(x, mode, size=None, factor=None, corners=None, exact=False):
    mode = "nearest-exact" if exact else mode
    return F.interpolate(x, size, factor, mode, corners) * 2


def sampled(x, mode, outside, corners):
    return F.grid_sample(x + 1, GRID.to(x.dtype), mode, outside, corners).relu()


row = functools.partial(torch.flatten, start_dim=2)
volume = lambda x: x[:, :, None].repeat(1, 1, 3, 1, 1)  # noqa: E731
PROGRAMS = {
    "row, nearest": lambda x: resized(row(x), "nearest", 40),
    "row, nearest, as large": lambda x: resized(row(x), "nearest", factor=1.01),
    "row, nearest, nearly twice": lambda x: resized(row(x), "nearest", factor=2.01),
    "row, nearest, exact": lambda x: resized(row(x), "nearest", 101, exact=True),
    "row, linear": lambda x: resized(row(x), "linear", 100),
    "row, linear, corners": lambda x: resized(row(x), "linear", 50, corners=True),
    "row, linear, factor": lambda x: resized(row(x), "linear", factor=1.7),
    "plane, exact": lambda x: resized(x, "nearest", (9, 5), exact=True),
    "plane, bilinear": lambda x: resized(x, "bilinear", (11, 5)),
    "plane, bicubic": lambda x: resized(x, "bicubic", (11, 13)),
    "plane, bicubic, smaller": lambda x: resized(x, "bicubic", (3, 4)),
    "plane, bicubic, corners": lambda x: resized(x, "bicubic", (8, 20), corners=True),
    "plane, bicubic, as large": lambda x: resized(x, "bicubic", (7, 9)),
    "volume, nearest": lambda x: resized(volume(x), "nearest", (5, 4, 8)),
    "volume, nearest, as large": lambda x: resized(volume(x), "nearest", factor=1.1),
    "volume, nearest, nearly twice": lambda x: resized(volume(x), "nearest", factor=2.1),
    "volume, trilinear": lambda x: resized(volume(x), "trilinear", (5, 9, 4)),
    "volume, trilinear, corners": lambda x: resized(volume(x), "trilinear", 6, corners=True),
    **{
        f"places, {mode}, {outside}, {corners}": functools.partial(
            sampled, mode=mode, outside=outside, corners=corners
        )
        for mode in ("bilinear", "nearest")
        for outside in ("zeros", "border")
        for corners in (False, True)
    },
}


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """As on a GPU, where each point is computed by itself."""
    monkeypatch.setattr(resampling, "in_threads", lambda value: True)


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "transposed"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_resampling_is_a_kernel(name, layout):
    x = X.double()
    if layout != "contiguous":
        last = x.to(memory_format=torch.channels_last)
        x = last if layout == "channels last" else x.mT.contiguous().mT
    plan = check(PROGRAMS[name], x)
    assert not externs(plan)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if "places" not in name])
def test_low_precision_is_as_near_as_eager(name):
    check(PROGRAMS[name], X.to(torch.bfloat16))


def test_what_has_no_kernel_stays_with_the_library():
    for mode, outside in (("bicubic", "zeros"), ("bilinear", "reflection")):
        plan = check(functools.partial(sampled, mode=mode, outside=outside, corners=False), X)
        assert len(externs(plan)) == 1
