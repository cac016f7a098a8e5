"""Every pointwise lowering against eager, for the dtypes it takes, with the values that hurt."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from plans import check, externs, graph_of, kernels, run_plan
from torch._subclasses import FakeTensor, FakeTensorMode
from torchsmith_fx_backend._src.driver import functional_graph
from torchsmith_fx_backend._src.loops.ir import Op
from torchsmith_fx_backend._src.loops.registry import LOWERINGS, Pointwise, register
from torchsmith_fx_backend._src.schedule import schedule_graph
from torchsmith_fx_backend._src.schedule.plan import Launch

aten = torch.ops.aten
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 1e-6, -1e-6, 20.5, -20.5]
SPECIAL += [math.inf, -math.inf, math.nan]


def floats(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.cat([torch.tensor(SPECIAL, dtype=dtype), torch.randn(15).to(dtype)]).view(4, 8)


def positive(dtype=torch.float32):
    return floats(dtype).abs()


INTS = torch.tensor([[0, 1, -1, 7, -7, 12, -13, 100], [3, -3, 2, -2, 5, -5, 127, -128]])
BOOLS = torch.tensor([[True, False, True, True], [False, False, True, False]])


def fused(fn, *args, **kwargs):
    """``check``, and nothing was left to aten."""
    plan = check(fn, *args, **kwargs)
    assert not externs(plan), externs(plan)
    assert len(kernels(plan)) == 1
    return plan


FLOAT_UNARY = (
    "exp exp2 expm1 sin cos tanh erf sigmoid reciprocal silu mish neg abs relu square sign sgn "
    "floor ceil trunc round frac hardsigmoid hardswish isnan isinf isfinite relu6 "
    "logical_not cosh"
).split()
POSITIVE_UNARY = "log log2 log10 log1p sqrt rsqrt".split()
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FLOAT_UNARY + POSITIVE_UNARY)
def test_float_unary(name, dtype):
    op = getattr(aten, name).default
    if name == "cosh":
        x = torch.randn(4, 8).to(dtype)
    else:
        x = positive(dtype) if name in POSITIVE_UNARY else floats(dtype)
    fused(lambda x: op(x), x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8], ids=str)
@pytest.mark.parametrize(
    "name", "neg abs relu square sign sgn floor ceil trunc round bitwise_not logical_not".split()
)
def test_int_unary(name, dtype):
    op = getattr(aten, name).default
    fused(lambda x: op(x), INTS.to(dtype))


@pytest.mark.parametrize("name", "exp sigmoid sqrt sin reciprocal erf".split())
def test_float_functions_of_ints_give_floats(name):
    op = getattr(aten, name).default
    fused(lambda x: op(x), INTS.abs())


@pytest.mark.parametrize("name", "isnan isinf isfinite".split())
def test_predicates_of_ints_are_constant(name):
    fused(getattr(torch, name), INTS)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "name", "add sub mul div maximum minimum fmax fmin remainder fmod pow".split()
)
def test_float_binary(name, dtype):
    op = getattr(torch, name)
    x = floats(dtype)
    y = floats(dtype).flip(0).flip(1)
    if name == "pow":
        x = x.abs()
    fused(lambda x, y: op(x, y), x, y)


@pytest.mark.parametrize("name", "remainder fmod floor_divide".split())
def test_division_signs(name):
    a = torch.tensor([7.0, -7.0, 7.5, -7.5, 6.0, -6.0, 0.3])
    b = torch.tensor([2.0, 2.0, -2.0, -2.0, 3.0, -3.0, 0.1])
    fused(getattr(torch, name), a, b)
    for divisor in (20, -20, 3):
        fused(lambda x: getattr(torch, name)(x, divisor), (a * 2).long())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize(
    "name",
    "add sub mul div maximum minimum bitwise_and bitwise_or bitwise_xor".split(),
)
def test_int_binary(name, dtype):
    op = getattr(torch, name)
    fused(lambda x, y: op(x, y), INTS.to(dtype), (INTS.flip(1) + 1).to(dtype))


@pytest.mark.parametrize("name", "bitwise_left_shift bitwise_right_shift".split())
def test_shifts(name):
    fused(getattr(torch, name), INTS, torch.arange(8).expand(2, 8).contiguous())


@pytest.mark.parametrize("name", "add mul logical_and logical_or logical_xor bitwise_and".split())
def test_bool_binary(name):
    fused(getattr(torch, name), BOOLS, BOOLS.flip(1))


@pytest.mark.parametrize("name", "eq ne lt le gt ge".split())
def test_comparisons(name):
    op = getattr(torch, name)
    x, y = floats(), floats().flip(1)
    fused(lambda x, y: op(x, y), x, y)
    fused(lambda x: op(x, 0.5), x)
    fused(lambda x: op(x, 0.5), INTS)
    fused(lambda x, y: op(x, y), INTS, x[:2])
    fused(lambda x, y: op(x, y), x.bfloat16(), y.bfloat16())


def test_mixed_dtypes_promote():
    x, y = floats(), floats(torch.float64)
    fused(lambda a, b: a + b, x, y)
    fused(lambda a, b: a * b, INTS, x[:2])
    fused(lambda a, b: a + b, x.bfloat16(), x)
    fused(lambda a, b: a + b, BOOLS, torch.ones(2, 4, dtype=torch.int32))
    fused(lambda a, b: a + b, x, torch.tensor(2.5, dtype=torch.float64))
    fused(lambda a: a * 2.5, INTS)
    fused(lambda a: a / 2, INTS)
    fused(lambda a: a * 2.5, x.bfloat16())


def test_broadcasting():
    fused(lambda a, b: a + b, torch.randn(4, 1, 8), torch.randn(5, 1))
    fused(lambda a, b: a * b, torch.randn(3, 4), torch.randn(()))
    fused(lambda a, b: a - b, torch.randn(1, 1), torch.randn(1))


def test_alpha_scales_the_right_operand():
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    fused(lambda a, b: torch.add(a, b, alpha=3), x, y)
    fused(lambda a, b: torch.sub(a, b, alpha=0.5), x, y)
    fused(lambda a, b: torch.rsub(a, b, alpha=2), x, y)
    fused(lambda a: 1.0 - a, x)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_div_modes(mode):
    fused(lambda a, b: torch.div(a, b, rounding_mode=mode), floats()[1:], floats().flip(1)[1:])
    fused(lambda a: torch.div(a, 4, rounding_mode=mode), INTS)


@pytest.mark.parametrize("exponent", [0.5, -0.5, 1, 2, 3, -1, -2, 2.5, 0, 4])
def test_pow_scalar(exponent):
    fused(lambda a: a**exponent, positive())


@pytest.mark.parametrize("exponent", [4, 5, 7.0, 9, 12, 15, 16, 17, 4.5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_powers_of_two_byte_numbers(exponent, dtype):
    x = torch.cat([floats().flatten(), torch.linspace(-2, 2, 97)]).to(dtype)
    plan = fused(lambda a: torch.pow(a, exponent), x)
    powers = [n for k in kernels(plan) for n in k.body if getattr(n, "op", None) is Op.POW]
    assert bool(powers) is (exponent not in range(17))


def test_pow_of_scalar_base_and_of_ints():
    fused(lambda a: torch.pow(2.0, a), torch.randn(4, 8))
    fused(lambda a: a**2, INTS)
    plan = check(lambda a: a**5, INTS)
    assert externs(plan)  # integer powers keep aten's error rules


def test_where_and_masks():
    x, y = floats(), floats().flip(1)
    fused(lambda a, b: torch.where(a > 0, a, b), x, y)
    fused(lambda a: torch.where(a > 0, a, 0.0), x)
    fused(lambda a, b: torch.where(a, b, 1), BOOLS, torch.randn(2, 4).double())
    fused(lambda a, m: a.masked_fill(m, -math.inf), x, x > 0.1)


def test_clamp_family():
    x = floats()
    fused(lambda a: a.clamp(-0.5, 1), x)
    fused(lambda a: a.clamp(min=0), x)
    fused(lambda a: a.clamp(max=0), x)
    fused(lambda a: a.clamp_min(0.25), x)
    fused(lambda a: a.clamp_max(0.25), x)
    fused(lambda a, b: a.clamp(min=b), x, x.flip(0))
    fused(lambda a: F.hardtanh(a), x)
    fused(lambda a: F.threshold(a, 0.1, 20.0), x)
    fused(lambda a: a.clamp(-5, 5), INTS)
    fused(lambda a: torch.nan_to_num(a), x)
    fused(lambda a: torch.nan_to_num(a, 1.0, 2.0, -3.0), x)


def test_activations():
    x = floats()
    finite = x.nan_to_num(0.0, 30.0, -30.0)  # aten's vectorised gelu gives NaN for infinity
    fused(lambda a: F.gelu(a), finite)
    fused(lambda a: F.gelu(a, approximate="tanh"), finite)
    fused(lambda a: F.leaky_relu(a, 0.2), x)
    fused(lambda a: F.elu(a, 1.5), x)
    fused(lambda a: F.celu(a, 1.5), x)
    fused(lambda a: F.selu(a), x)
    fused(lambda a: F.softplus(a, 2.0, 10.0), x)
    fused(lambda a: F.glu(a, -1), torch.randn(4, 8))
    fused(lambda a: F.glu(a, 0), torch.randn(4, 8))


def test_composites_that_capture_may_keep():
    fused(lambda a: F.logsigmoid(a), floats())
    fused(aten.relu6.default, floats())


def test_three_operands():
    x, y, z = torch.randn(4, 8), torch.randn(4, 8), torch.randn(4, 8)
    fused(lambda a, b, c: torch.addcmul(a, b, c, value=0.5), x, y, z)
    fused(lambda a, b, c: torch.addcdiv(a, b, c, value=2), x, y, z)
    fused(lambda a, b: torch.lerp(a, b, 0.3), x, y)
    fused(lambda a, b: torch.lerp(a, b, 0.9), x, y)
    fused(lambda a, b, c: torch.lerp(a, b, c), x, y, z)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.float64], ids=str
)
def test_casts(dtype):
    x = torch.tensor([[0.0, 0.4, 1.6, -2.7], [100.2, -0.0, 3.0, 7.5]])
    if dtype is not x.dtype:
        fused(lambda a: a.to(dtype), x)
    fused(lambda a: a.to(dtype) if dtype is not torch.bfloat16 else a * 2, x.bfloat16())
    fused(lambda a: a.to(dtype), INTS)


def test_low_precision_is_rounded_where_eager_rounds():
    # 256 + 1 is 256 in bfloat16: a fused comparison or integer cast must see the rounded sum.
    x = torch.full((4,), 256.0, dtype=torch.bfloat16)
    fused(lambda a: (a + 1) > 256, x)
    fused(lambda a: (a + 1).to(torch.int64), x)
    fused(lambda a: torch.floor(a + 0.9), x)


def test_strides_follow_eager():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    fused(lambda a: a * 2, x)
    fused(lambda a: a + 1, torch.randn(6, 7).t())
    fused(lambda a, b: a + b, torch.randn(6, 7).t(), torch.randn(7, 6))


def test_registering_twice_raises():
    rule = next(r for r in LOWERINGS.values() if isinstance(r, Pointwise))
    with pytest.raises(ValueError, match="already"):
        register(aten.add.Tensor, rule)


BOUNDS = [
    (aten.clamp_min.default, (math.nan,), False),
    (aten.clamp.default, (None, math.nan), False),
    (aten.clamp.default, (0.0, math.nan), True),
]


@pytest.mark.parametrize("op, bounds, hides", BOUNDS)
def test_a_bound_that_is_nan_does_on_a_gpu_as_its_kernels(op, bounds, hides):
    gm = graph_of(op, floats(), *bounds)
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if value is not None:  # a GPU's tensors, run here
            node.meta["val"] = FakeTensor(value.fake_mode, value.to("meta"), torch.device("cuda:0"))
    plan = schedule_graph(gm)
    allocate, *rest = plan.steps
    here = replace(allocate, layout=replace(allocate.layout, device=torch.device("cpu")))
    (got,) = run_plan(replace(plan, steps=(here, *rest)), [floats()])
    want = torch.full_like(got, math.nan) if hides else floats()
    torch.testing.assert_close(got, want, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("product", "column", "row"),
    [
        (torch.mm, (4, 1), (1, 8)),
        (torch.mm, (1, 1), (1, 5)),
        (torch.bmm, (3, 4, 1), (3, 1, 8)),
    ],
)
def test_products_of_columns_by_rows_are_loops(product, column, row, dtype):
    torch.manual_seed(0)
    x, y = torch.randn(column).to(dtype), torch.randn(row).to(dtype)
    plan = check(product, x, y)
    assert not externs(plan)
    across = lambda x, y: product(y.transpose(-1, -2), x.transpose(-1, -2))  # noqa: E731
    assert not externs(check(across, x, y))
    fused(lambda x, y: product(x, y) * 2, x, y)


def test_other_products_stay_library_calls():
    x = torch.randn(1, 1)
    for fn in (lambda x: x @ x, lambda x: x.expand(3, 1) @ x.expand(1, 4)):
        check(fn, x)
    check(torch.mm, torch.randn(0, 1), torch.randn(1, 4))
    wide = check(torch.mm, torch.randn(4, 2), torch.randn(2, 4))
    whole = check(torch.mm, torch.ones(4, 1).bool().long(), torch.ones(1, 4).long())
    assert [len(externs(plan)) for plan in (wide, whole)] == [1, 1]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_functions_that_aten_has_vectors_for_are_loops_on_a_gpu_only(device):
    def program(x):
        angles = x.acos() + x.asin() * x.atan() - torch.atan2(x, x + 1)
        return angles + x.tan().sinh() + x.asinh() * x.acosh() + x.atanh() - x.erfc() * x.lgamma()

    x = FakeTensor(FakeTensorMode(), torch.empty(64, 64, device="meta"), torch.device(device))
    plan = schedule_graph(functional_graph(program, [x]).module)
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    assert (len(launches) == 1 and not externs(plan)) is (device != "cpu")
