"""Every scalar operation, printed and run, against the reference evaluator."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from samples import Body, check, f32, f64, i64
from torchsmith_fx_backend._src.codegen.triton.config import Config, Schedule
from torchsmith_fx_backend._src.loops.index import var
from torchsmith_fx_backend._src.loops.ir import Op

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, 2.5, -2.5, 1e-40, 80.0, -90.0]
UNARY = [
    Op.NEG,
    Op.ABS,
    Op.EXP,
    Op.EXP2,
    Op.EXPM1,
    Op.LOG,
    Op.LOG2,
    Op.LOG1P,
    Op.SQRT,
    Op.RSQRT,
    Op.SIN,
    Op.COS,
    Op.TANH,
    Op.ERF,
    Op.SIGMOID,
    Op.RECIPROCAL,
    Op.FLOOR,
    Op.CEIL,
    Op.TRUNC,
    Op.ROUND,
    Op.ISNAN,
    Op.ISINF,
]
BINARY = [
    Op.ADD,
    Op.SUB,
    Op.MUL,
    Op.DIV,
    Op.FLOORDIV,
    Op.TRUNCDIV,
    Op.MOD,
    Op.FMOD,
    Op.MINIMUM,
    Op.MAXIMUM,
    Op.POW,
    Op.EQ,
    Op.NE,
    Op.LT,
    Op.LE,
    Op.GT,
    Op.GE,
]
INT_UNARY = [Op.NEG, Op.ABS, Op.NOT]
INT_BINARY = [
    Op.ADD,
    Op.SUB,
    Op.MUL,
    Op.FLOORDIV,
    Op.TRUNCDIV,
    Op.MOD,
    Op.FMOD,
    Op.MINIMUM,
    Op.MAXIMUM,
    Op.AND,
    Op.OR,
    Op.XOR,
    Op.SHL,
    Op.SHR,
    Op.EQ,
    Op.NE,
    Op.LT,
    Op.LE,
    Op.GT,
    Op.GE,
]
POINTWISE = Config(Schedule.POINTWISE, 64)


def pointwise(op: Op, inputs: list[torch.Tensor], folder: Path, **options: object) -> None:
    body = Body()
    loaded = [body.load(i, var(0), t.dtype) for i, t in enumerate(inputs)]
    body.store(len(inputs), var(0), body.op(op, *loaded))
    out = torch.full((inputs[0].numel(),), 99).to(body.dtypes[-1])
    kernel = body.kernel([inputs[0].numel()])
    check(kernel, [*inputs, out], folder, config=POINTWISE, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.value)
def test_unary_float(op: Op, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.cat([torch.tensor(SPECIAL, dtype=dtype), torch.randn(90, dtype=dtype) * 3])
    pointwise(op, [x], tmp_path, rtol=1e-6 if dtype is f32 else 1e-12, atol=1e-38)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.value)
def test_binary_float(op: Op, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(1)
    special = torch.tensor([s for s in SPECIAL if abs(s) != 1e-40], dtype=dtype)
    a, b = (t.reshape(-1) for t in torch.meshgrid(special, special, indexing="ij"))
    a = torch.cat([a, torch.randn(40, dtype=dtype) * 3])
    b = torch.cat([b, torch.randn(40, dtype=dtype) * 3])
    pointwise(op, [a, b], tmp_path, rtol=1e-6 if dtype is f32 else 1e-12, atol=1e-38)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, i64, torch.uint8], ids=str)
@pytest.mark.parametrize("op", INT_UNARY, ids=lambda op: op.value)
def test_unary_int(op: Op, dtype: torch.dtype, tmp_path: Path) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([0, 1, 5, 100, info.min, info.max, info.max - 1], dtype=dtype)
    pointwise(op, [x], tmp_path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, i64, torch.uint8], ids=str)
@pytest.mark.parametrize("op", INT_BINARY, ids=lambda op: op.value)
def test_binary_int(op: Op, dtype: torch.dtype, tmp_path: Path) -> None:
    info = torch.iinfo(dtype)
    values = [1, 2, 3, 7, 100, info.max, max(info.min, -5), max(info.min + 1, -2)]
    if op in (Op.SHL, Op.SHR):
        right = [0, 1, 3, 7, 8, 31, 63, 70]
    else:
        right = [v for v in values if v != 0]
    a, b = torch.meshgrid(
        torch.tensor([*values, 0], dtype=dtype), torch.tensor(right, dtype=dtype), indexing="ij"
    )
    a, b = a.reshape(-1).contiguous(), b.reshape(-1).contiguous()
    keep = b != 0 if op not in (Op.SHL, Op.SHR) else torch.ones_like(b, dtype=torch.bool)
    pointwise(op, [a[keep], b[keep]], tmp_path)


@pytest.mark.parametrize("op", [Op.AND, Op.OR, Op.XOR, Op.EQ, Op.NE], ids=lambda op: op.value)
def test_binary_bool(op: Op, tmp_path: Path) -> None:
    a = torch.tensor([True, True, False, False])
    b = torch.tensor([True, False, True, False])
    pointwise(op, [a, b], tmp_path)


def test_not_bool(tmp_path: Path) -> None:
    pointwise(Op.NOT, [torch.tensor([True, False])], tmp_path)


@pytest.mark.parametrize("exponent", [-3, -2, 0, 1, 2, 5, 31, 63])
def test_integer_power(exponent: int, tmp_path: Path) -> None:
    base = torch.tensor([-3, -2, -1, 1, 2, 3, 10])
    if exponent < 0:
        # aten on the CPU raises for scalars only; for tensors it follows the same rule as CUDA.
        base = torch.tensor([-1, 1, 2, 3])
    body = Body()
    value = body.op(Op.POW, body.load(0, var(0), i64), body.load(1, var(0), i64))
    body.store(2, var(0), value)
    kernel = body.kernel([base.numel()])
    powers = torch.full_like(base, exponent)
    if exponent >= 0:
        check(kernel, [base, powers, torch.zeros_like(base)], tmp_path, config=POINTWISE)
        return
    from samples import DEVICE, run_source
    from torchsmith_fx_backend._src.codegen.triton.kernel import generate

    out = torch.full_like(base, 9).to(DEVICE)
    run_source(generate(kernel, POINTWISE), [base.to(DEVICE), powers.to(DEVICE), out], {}, tmp_path)
    assert out.tolist() == [1 if exponent % 2 == 0 else -1, 1, 0, 0]


def test_fma(tmp_path: Path) -> None:
    torch.manual_seed(2)
    pointwise(Op.FMA, [torch.randn(50) for _ in range(3)], tmp_path)


@pytest.mark.parametrize("dtype", [f32, i64, torch.bool], ids=str)
def test_where(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(3)
    condition = torch.rand(40) > 0.5
    pointwise(
        Op.WHERE,
        [condition, (torch.randn(40) * 9).to(dtype), (torch.randn(40) * 9).to(dtype)],
        tmp_path,
    )


ALL = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    i64,
    torch.float16,
    torch.bfloat16,
    f32,
    f64,
]


@pytest.mark.parametrize("target", ALL, ids=str)
@pytest.mark.parametrize("source", ALL, ids=str)
def test_cast(source: torch.dtype, target: torch.dtype, tmp_path: Path) -> None:
    values = [0.0, 1.0, 2.0, 3.75, 100.0, 0.5, 57.3]
    if source.is_floating_point and target.is_floating_point:
        values += [math.inf, -math.inf, math.nan, -3.1415926]
    if source is not torch.uint8 and target is not torch.uint8 and source is not torch.bool:
        values += [-1.0, -2.75, -100.0]
    x = torch.tensor(values, dtype=f64).to(source)
    body = Body()
    body.store(1, var(0), body.cast(body.load(0, var(0), source), target))
    check(
        body.kernel([x.numel()]),
        [x, torch.ones(x.numel()).to(target)],
        tmp_path,
        config=POINTWISE,
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_nan_is_true_and_large_integers_survive_casts(dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.tensor([math.nan, 0.0, -0.0, 1e-40], dtype=dtype)
    body = Body()
    body.store(1, var(0), body.cast(body.load(0, var(0), dtype), torch.bool))
    check(body.kernel([4]), [x, torch.zeros(4, dtype=torch.bool)], tmp_path, config=POINTWISE)


@pytest.mark.parametrize("value", [0.1, math.inf, -math.inf, math.nan, -0.0, 1e300])
@pytest.mark.parametrize("op", [Op.ADD, Op.MAXIMUM, Op.LT], ids=lambda op: op.value)
def test_literals_keep_double_precision(op: Op, value: float, tmp_path: Path) -> None:
    body = Body()
    result = body.op(op, body.load(0, var(0), f64), body.literal(value, f64))
    body.store(1, var(0), result)
    x = torch.tensor([0.3, -1.0, 5.0], dtype=f64)
    check(
        body.kernel([3]),
        [x, torch.zeros(3).to(body.dtypes[result])],
        tmp_path,
        config=POINTWISE,
        exact=True,
    )


def test_scalar_arguments(tmp_path: Path) -> None:
    body = Body()
    x = body.load(0, var(0))
    scaled = body.op(Op.MUL, x, body.scalar("scale", f32))
    shifted = body.op(Op.ADD, scaled, body.cast(body.scalar("count", i64), f32))
    flag = body.op(Op.WHERE, body.scalar("flag", torch.bool), shifted, x)
    body.store(1, var(0), flag)
    kernel = body.kernel([20], symbols=["scale", "count", "flag"])
    for flag_value in (True, False):
        check(
            kernel,
            [torch.randn(20), torch.zeros(20)],
            tmp_path,
            symbols={"scale": 0.1, "count": 2**40, "flag": flag_value},
            config=POINTWISE,
        )
