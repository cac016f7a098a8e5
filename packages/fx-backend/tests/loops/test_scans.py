"""Scans, and searches in sorted rows, against eager: values, positions, layouts."""

import pytest
import torch
from loop_reader import read_kernel
from plans import check, externs, kernels
from torchsmith_fx_backend._src.codegen.c import kernel_function
from torchsmith_fx_backend._src.records.kernels import print_kernel

X = torch.arange(3 * 4 * 5, dtype=torch.float32).reshape(3, 4, 5) * 7 % 11 / 4 - 1
NAN = float("nan")
SPECIAL = torch.tensor([[1.0, NAN, 2.0, NAN], [float("inf"), 1, NAN, 3], [-float("inf"), 1, 1, 0]])

CASES = {
    "cumsum": lambda x, d: (x * 2).cumsum(d) + 1,
    "cumprod": lambda x, d: x.cumprod(d),
    "logcumsumexp": lambda x, d: x.logcumsumexp(d) * 2,
    "cummax": lambda x, d: x.cummax(d),
    "cummin": lambda x, d: x.cummin(d),
    "one of both": lambda x, d: x.cummin(d)[1],
    "two of one row": lambda x, d: (x.cumsum(d), x.cummax(d)[0]),
    "one after the other": lambda x, d: x.cumsum(d).cumsum(d),
    "other dimensions": lambda x, d: x.cumsum(d).cumsum(0),
    "of a softmax": lambda x, d: x.softmax(d).cumsum(d).sum(d),
    "then looked up": lambda x, d: x.gather(d, (x > 0).long().cumsum(d).clamp(max=2)),
}


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", CASES)
def test_scans(name, dim):
    for x in (X, X.transpose(0, 2)):
        plan = check(lambda x: CASES[name](x, dim), x, tolerance=1e-4)
        assert not externs(plan), externs(plan)
        assert any(kernel.scans for kernel in kernels(plan))
        for kernel in kernels(plan):
            assert read_kernel(print_kernel(kernel)) == kernel


DEAR = {
    "before": lambda x: x.exp().cumsum(-1) + x,
    "behind": lambda x: x.cumsum(-1).sin(),
    "on both sides": lambda x: (x.sin().cumsum(-1) * x.cos()).tanh(),
    "between two": lambda x: x.sin().cumsum(-1).cos().cumsum(-1).tanh(),
    "of positions": lambda x: (x.sin().cummax(-1)[0].exp(), x.sin().cummax(-1)[1]),
    "against the order": lambda x: x.exp().flip(-1).cumsum(-1).flip(-1).log(),
    "several results": lambda x: (x.exp(), x.exp().cumsum(-1), x.cumprod(-1).sin()),
    "in place": lambda x: (x * 1).exp_().cumsum_(-1).log_(),
}


@pytest.mark.parametrize("shape", [(70,), (3, 129), (2, 3, 64), (4, 7)])
@pytest.mark.parametrize("name", DEAR)
def test_what_is_dear_beside_a_scan(name, shape):
    """It is computed in vectors, a block of points at a time."""
    size = torch.Size(shape).numel()
    x = torch.arange(size, dtype=torch.float32).reshape(shape) * 7 % 11 / 40 - 0.1
    plan = check(DEAR[name], x, tolerance=1e-4)
    assert any(kernel.scans for kernel in kernels(plan))
    text = "".join(kernel_function(kernel, "k") for kernel in kernels(plan) if kernel.scans)
    assert ("#pragma omp simd" in text) == (shape[-1] >= 8)


@pytest.mark.parametrize("name", ["cumsum", "cummax", "cummin", "logcumsumexp"])
def test_special_values(name):
    check(lambda x: CASES[name](x, 1), SPECIAL)


def test_what_is_the_same_in_all_rows():
    def program(x):
        places = torch.arange(8)[None].expand(len(x), 8)
        return (torch.diff(places, prepend=places[:, :1] - 1) != 1).cumsum(-1)

    plan = check(program, torch.ones(64))
    assert all(kernel_function(kernel, "k") for kernel in kernels(plan))


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    x = (X > 0).to(dtype) if dtype is torch.bool else X.to(dtype)
    check(lambda x: x.cumsum(1), x, tolerance=1e-2)
    check(lambda x: x.cumprod(1), x, tolerance=1e-2)
    if dtype is not torch.bool:
        check(lambda x: x.cummax(1), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9])
def test_searches(length, dtype):
    row = (torch.arange(length) // 2 * 2).to(dtype)
    keys = torch.arange(-3, 13).reshape(2, 8).to(dtype)
    if dtype is torch.float32:
        keys[0, 3] = NAN
    rows = torch.stack([row, row + 1])
    for right in (False, True):
        plans = [
            check(lambda k, b: torch.bucketize(k, b, right=right) + 1, keys, row),
            check(lambda b, k: torch.searchsorted(b, k, right=right), rows, keys),
            check(lambda b, k: torch.searchsorted(b, k, right=right, out_int32=True), row, keys),
        ]
        assert not any(map(externs, plans)), plans
