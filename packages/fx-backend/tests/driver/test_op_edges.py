"""Operators at the edges of what they take, by families: no elements, odd dtypes, odd sizes."""

import math
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torchsmith_guards as guards
from torch import fx

sys.path.insert(0, str(Path(__file__).parent.parent))

from composition.check import compare, prepare
from composition.machines import Native, Planned, Reference
from composition.programs import Input, Program, Step
from torchsmith_fx_backend import Settings, compile_graph
from torchsmith_fx_backend._src.backend import smith
from torchsmith_fx_backend._src.capture.composites import run_composite

SETTINGS = Settings(graph_cache=False, verify=True)


def compiled(function, *inputs):
    with torch.no_grad():
        gm = fx.symbolic_trace(function)
        return compile_graph(gm, [x.clone() for x in inputs], SETTINGS)(*inputs)


def same(got, want):
    for mine, true in zip(got, want, strict=True):
        assert mine.shape == true.shape and mine.stride() == true.stride()
        assert torch.equal(
            torch.signbit(mine) & (mine == mine), torch.signbit(true) & (true == true)
        )
        torch.testing.assert_close(mine, true, equal_nan=True, rtol=1e-6, atol=1e-6)


def written_then_squeezed(x):
    y = x.gather(-1, torch.tensor([0]))
    y.add_(x[1:]).mul_(2)
    y.squeeze_(-1)
    return y, y + 1


def sorted_then_turned(x):
    values, places = x.view(1, 2).sort(-1)
    values.neg_()
    values.squeeze_(0)
    places.unsqueeze_(-1)
    return values * 2, places + 1


RESHAPED_IN_PLACE = {
    "quantile": (lambda x: (x.quantile(torch.tensor(0.3), 0), x.median(0).values),),
    "written, then squeezed": (written_then_squeezed,),
    "several results": (sorted_then_turned,),
}


@pytest.mark.parametrize("name", RESHAPED_IN_PLACE)
def test_a_change_of_sizes_after_writes(name):
    (function,) = RESHAPED_IN_PLACE[name]
    x = torch.tensor([2.5, -1.0])
    same(compiled(function, x), function(x))


@pytest.mark.parametrize("real", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("whole", [torch.int64, torch.int32, torch.int16, torch.int8])
def test_to_integers_and_back(whole, real):
    edges = [-0.25, -0.0, 0.75, 2.5, -3.0]
    if whole is not torch.int8:
        edges += [float("nan"), float("inf"), 1e20]  # as the processor converts them
    x = torch.tensor(edges * 21).to(real)

    def function(x):
        y = x.to(whole)
        return y.to(real), y.to(torch.float32) + 1, torch.cat([x, y.to(real)])

    with Native().installed():
        same(compiled(function, x), function(x))


PLACE = torch.tensor(0)
OF_NUMBERS = [
    lambda x: x.flip(0) * 2,
    lambda x: x.flip([]) + x.flip(-1),
    lambda x: torch.masked_scatter(x, x > 0, x.flip(0) * 3),
    lambda x: x.cumsum(0) + x.softmax(-1),
    lambda x: x.sort(0)[0] + x.topk(1, 0)[1],
    lambda x: x.gather(0, PLACE).scatter(0, PLACE, 2.0),
    lambda x: x.index_select(0, PLACE).index_add(0, PLACE, x),
    lambda x: x.scatter_reduce(0, PLACE, x, "prod") + x.argmax(0),
    lambda x: x.transpose(0, -1).expand(3) - x.amax(0),
]


@pytest.mark.parametrize("number", range(len(OF_NUMBERS)))
def test_tensors_without_dimensions(number):
    function = lambda x: (OF_NUMBERS[number](x),)
    x = torch.tensor(1.5)
    same(compiled(function, x), function(x))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 2), (2, 3, 0)])
def test_batch_norm_of_nothing(shape, training):
    def function(x, mean, var):
        return (F.batch_norm(x, mean, var, training=training),)

    given = (torch.empty(shape), torch.zeros(3), torch.ones(3))
    same(compiled(function, *given), function(*given))


TRUTHS, WHOLE = torch.tensor([[True, False]]), torch.tensor([[1, 2]])
REFUSED = [
    (lambda x: x - 1, TRUTHS),
    (lambda x: 1 - x, TRUTHS),
    (lambda x: WHOLE - True, WHOLE),
    (lambda x: x.abs(), TRUTHS),
    (lambda x: x.floor(), TRUTHS),
    (lambda x: x.clamp(False, True), TRUTHS),
    (lambda x: x.relu(), TRUTHS),
    (lambda x: x.argmax(), TRUTHS),
    (lambda x: x.frac(), WHOLE),
    (lambda x: F.leaky_relu(x), WHOLE),
    (lambda x: F.hardswish(x), WHOLE),
    (lambda x: x.lerp(x, 2), WHOLE),
    (lambda x: x.logcumsumexp(0), WHOLE),
    (lambda x: torch.addcdiv(x, x, x), WHOLE),
    (lambda x: x.var(1), WHOLE),
    (lambda x: x.std(), WHOLE),
    (lambda x: torch.var_mean(x), WHOLE),
    (lambda x: x.softmax(1), WHOLE),
    (lambda x: x.log_softmax(1), WHOLE),
    (lambda x: torch.bucketize(x, WHOLE), WHOLE),
    (lambda x: x & x, WHOLE.float()),
    (lambda x: torch.bitwise_not(x), WHOLE.float()),
    (lambda x: torch.add(x, x, alpha=1.5), WHOLE),
    (lambda x: torch.sub(x, 2, alpha=True), WHOLE),
    (lambda x: torch.rsub(x, 2, alpha=2.5), WHOLE),
    (lambda x: x.add_(x, alpha=True), WHOLE.float()),
    (lambda x: torch.bitwise_right_shift(x, x), TRUTHS),
    (lambda x: F.max_pool2d(x[None], 1), TRUTHS),
    (lambda x: F.max_pool1d(x[None], 1), WHOLE),
    (lambda x: F.hardtanh(x, -1.0, 7e4), WHOLE.half()),
    (lambda x: F.nll_loss(x, x[:, 0] * 0), WHOLE),
    (lambda x: F.interpolate(x[None, None], scale_factor=2.0), WHOLE),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_eager_refuses_is_its_error(number):
    function, x = REFUSED[number]
    with pytest.raises(Exception) as want:  # noqa: PT011 - whatever eager raises
        function(x)
    with warnings.catch_warnings(), pytest.raises(type(want.value)) as got, torch.no_grad():
        warnings.simplefilter("ignore")
        smith(fx.symbolic_trace(function), [x], graph_cache=False)(x)
    assert str(want.value) in str(got.value)


TAKEN = [
    (lambda x: x.clamp(0, 1) + x.remainder(2), TRUTHS),
    (lambda x: x + x * 2, TRUTHS),
    (lambda x: torch.addcdiv(x.float(), x, x.float()), WHOLE),
    (lambda x: x.logical_xor(x[:, :1]) ^ True, TRUTHS),
    (lambda x: torch.add(x, x, alpha=True) + torch.rsub(WHOLE, 2.5, alpha=1.5), TRUTHS),
]


@pytest.mark.parametrize("number", range(len(TAKEN)))
def test_what_eager_takes_is_compiled(number):
    function, x = TAKEN[number]
    same((compiled(lambda x: (function(x),), x)[0],), (function(x),))


FROM_NUMBERS = [
    lambda n: (torch.arange(n, n + 3, 1),),
    lambda n: (torch.logspace(0, n, n),),
    lambda n: (torch.eye(n) * 2, torch.tril_indices(n, n)),
    lambda n: (torch.ones(n).cumsum(0),),
]


@pytest.mark.parametrize("number", range(len(FROM_NUMBERS)))
def test_tensors_that_are_made_from_numbers_alone(number):
    function = FROM_NUMBERS[number]
    env = guards.ShapeEnv()
    fake = guards.FakeMode(env).fakeify(torch.empty(5), guards.LocalSource("x"), {0})
    run = compile_graph(fx.symbolic_trace(function), [fake.shape[0]], SETTINGS)
    same(run(5), function(5))
    for n in (8, 3):
        if all(guard.condition.evaluate(dict.fromkeys(env.hints, n)) for guard in env.guards):
            same(run(n), function(n))


ONE_HOT = {
    "operator": lambda x: torch.ops.aten.one_hot.default(x, 4),
    "function": lambda x: F.one_hot(x, 4),
    "by name": lambda x: F.one_hot(x, num_classes=4),
}


@pytest.mark.parametrize("classes", [[0, 4], [-1, 1], [9, 9]])
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("call", ONE_HOT)
def test_a_class_out_of_range_is_an_error_of_one_hot(call, wanted, classes):
    def program(x, w):
        return ONE_HOT[call](x) * w

    w = torch.randn(4, requires_grad=wanted)
    good = torch.tensor([[3, 0], [1, 1], [2, 3]]).t()
    run = smith(fx.symbolic_trace(program), [good, w])
    same([run(good, w).detach()], [program(good, w).detach()])
    with pytest.raises(RuntimeError):
        run(torch.tensor([classes] * 3).t(), w)
    same([run(good, w).detach()], [program(good, w).detach()])


@pytest.mark.parametrize("sizes", [(3, 4), (2, 3, 4)])
def test_codes_of_a_turned_index_lie_in_rows_on_a_gpu(sizes):
    """There eager, too, puts ones into zeros; what stands for it compares."""
    mode = guards.FakeMode().mode
    with mode, torch.no_grad():
        index = torch.empty(sizes, dtype=torch.int64, device="cuda:0").transpose(0, -1)
        codes = run_composite(torch.ops.aten.one_hot.default, (index, 5), {})
    assert codes.is_contiguous() and codes.shape == (*sizes[::-1], 5)


HOLDS = [
    lambda x, n: x.masked_fill(x > 0, n) + 1,
    lambda x, n: torch.full_like(x, n),
    lambda x, n: x.new_full((2,), n),
    lambda x, n: torch.full((2,), n, dtype=x.dtype) + x[:1],
    lambda x, n: x.clone().fill_(n),
    lambda x, n: F.pad(x, (1, 1), value=n),
    lambda x, n: x.index_fill(0, torch.tensor([0]), n),
    lambda x, n: x.scatter(0, torch.tensor([1]), n),
    lambda x, n: x.clamp(max=n),
    lambda x, n: (x.clone()[:1].fill_(n),)[0],
    lambda x, n: torch.where(x > 0, x, n),
    lambda x, n: x.add(x, alpha=n),
    lambda x, n: torch.addcmul(x, x, x, value=n),
    lambda x, n: F.elu(x.float(), n),
    lambda x, n: x.float().lerp(x.float() + 1, n),
    lambda x, n: x.float().bfloat16() ** n,
]
NUMBERS = [
    *((torch.float32, n) for n in (1e39, -3.4e38, float("inf"), float("nan"))),
    *((torch.float16, n) for n in (-1e9, 65504.0, 65505.0, -float("inf"))),
    *((torch.bfloat16, n) for n in (1e39, 3e38)),
    *((torch.uint8, n) for n in (255, 256, -1, -256, 2.7)),
    *((torch.int8, n) for n in (127, 200, -129)),
    *((torch.int32, n) for n in (2**31, -(2**31))),
    *((torch.bool, n) for n in (2, 0.5)),
]


@pytest.mark.parametrize("program", HOLDS)
def test_numbers_that_elements_cannot_hold_are_eagers_errors(program):
    for dtype, number in NUMBERS:
        x = torch.ones(3).to(dtype)
        try:
            expected = program(x, number)
        except RuntimeError as error:
            with pytest.raises(type(error), match=str(error).partition("(")[0]):
                smith(fx.symbolic_trace(lambda x: program(x, number)), [x])(x)  # noqa: B023
        else:
            got = smith(fx.symbolic_trace(lambda x: program(x, number)), [x])(x)  # noqa: B023
            assert got.dtype == expected.dtype
            torch.testing.assert_close(got, expected, equal_nan=True)


VARY = [(torch.float32, 2.5), (torch.float16, 2.5), (torch.uint8, 3)]
CUT = [(torch.uint8, 2.5), (torch.int64, 2.5), (torch.int32, 2.5), (torch.bool, 0.5)]


@pytest.mark.parametrize("program", HOLDS)
def test_symbols_stand_for_numbers_that_elements_can_hold(program):
    for dtype, known in VARY + (CUT if program is not HOLDS[8] else []):
        x, env = torch.ones(3).to(dtype), guards.ShapeEnv()
        symbol = env.create_symbol(known, guards.LocalSource("n"))
        try:
            program(x, known)
        except RuntimeError:
            continue
        with torch.no_grad():
            run = compile_graph(fx.symbolic_trace(program), [x, symbol], SETTINGS)
        for number in (known + 1, 1e39, 7e4, -1e6, 300):
            if type(number) is not type(known):
                continue
            allowed = all(
                guard.condition.evaluate(dict.fromkeys(env.hints, number)) for guard in env.guards
            )
            try:
                expected = program(x, number)
            except RuntimeError:
                assert not allowed
            else:
                if allowed:
                    torch.testing.assert_close(run(x, number), expected)


@pytest.mark.parametrize("bend", [float("nan"), float("inf"), -1.0, 0.0, 1e-30, 2.0])
@pytest.mark.parametrize("loss", [F.smooth_l1_loss, F.huber_loss])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_losses_that_bend_nowhere_raise_what_eager_raises(loss, reduction, bend):
    def program(x, y):
        return (loss(x, y, reduction=reduction, **{name: bend}),)

    name = "beta" if loss is F.smooth_l1_loss else "delta"
    x, y = torch.linspace(-3, 3, 12), torch.linspace(1, -1, 12)
    for leaf in (x, x.clone().requires_grad_()):
        try:
            expected = program(leaf, y)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error).splitlines()[0]):
                smith(fx.symbolic_trace(program), [leaf, y])(leaf, y)
        else:
            same(smith(fx.symbolic_trace(program), [leaf, y])(leaf, y), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("low, high", [(math.nan, None), (None, math.nan), (math.nan, 1.0)])
def test_bounds_that_are_nan_hold_as_the_running_torch_has_it(low, high, dtype):
    def program(x):
        bounds = [None if n is None else torch.full((), n) for n in (low, high)]
        lone = x.clamp_min(math.nan), x.clamp_max(math.nan)
        return x.clamp(low, high), x.clamp(*bounds), *lone

    x = torch.tensor([-2, 0, 3] * 6).to(dtype)
    same(smith(fx.symbolic_trace(program), [x])(x), program(x))


@pytest.mark.parametrize("part", ["[:3]", "[1]", ".t()", "[:, ::2]", ".diagonal()", ""])
@pytest.mark.parametrize(
    "write", ["clamp_(-1, {0})", "mul_({0}.item())", "add_(1, alpha={0}.item())"]
)
@pytest.mark.parametrize("read", ["x0.flatten()[0]", "x0.sum()"])
def test_numbers_read_from_what_is_written_before_and_after(part, write, read):
    lines = ("torch.maximum(x1, x1, out=x0)", f"x0{part}.{write.format(read)}", "x0.add_(1)")
    steps = tuple(Step(None, line, ("x0", "x1")) for line in lines)
    inputs = Input((6, 6), torch.float32), Input((6, 6), torch.float32, seed=1)
    machine = Reference()
    for symbolic in (True, False):
        ready = prepare(
            Program(inputs, steps, ("x1", "x0"), rounds=True), machine, symbolic=symbolic
        )
        machine.prepare()
        assert compare(ready, machine.signs) is None
        assert not (symbolic and ready.skipped)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("reduction", ["std([1, 0])", "sum()", "float().mean([0, 1])", "amax()"])
def test_sums_in_any_order_are_not_joined_with_reductions_of_what_they_add(reduction, first):
    scatter = Step("v0", "x2.scatter_add(1, (x0 > 0).long() * 0, x0)", ("x2", "x0"))
    total = Step("v1", f"x0.{reduction}", ("x0",))
    steps = (scatter, total) if first else (total, scatter)
    inputs = tuple(Input((4, 4), torch.float32, seed=n) for n in range(3))
    machine = Planned()
    ready = prepare(Program(inputs, steps, ("v0", "v1"), rounds=True), machine, symbolic=False)
    machine.prepare()
    assert ready.compiled is not None and compare(ready, machine.signs) is None
