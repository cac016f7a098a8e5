"""Calls over lists of tensors become kernels: values, types and layouts as eager gives them."""

import pytest
import torch
from torchsmith_fx_backend import Settings, compile_graph, make_fx

STRICT = Settings(graph_cache=False, verify=True, strict=True)
ALONE = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 "
    "neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc max norm clone"
).split()
TWO = "add sub mul div pow maximum minimum clamp_min clamp_max".split()
CALLS = {
    **{name: (lambda f, a, b, c: f(a)) for name in ALONE if hasattr(torch, f"_foreach_{name}")},
    **{f"{name} number": (lambda f, a, b, c: f(a, 1.5)) for name in TWO},
    **{f"{name} numbers": (lambda f, a, b, c: f(a, [2.0, 0.5, 1.25])) for name in TWO},
    **{f"{name} tensors": (lambda f, a, b, c: f(a, b)) for name in TWO},
    **{f"{name} tensor": (lambda f, a, b, c: f(a, b[2])) for name in ("mul", "div")},
    **{f"{name} alpha": (lambda f, a, b, c: f(a, b, alpha=3)) for name in ("add", "sub")},
    **{f"{name} value": (lambda f, a, b, c: f(a, b, c, 0.5)) for name in ("addcmul", "addcdiv")},
    **{f"{name} plain": (lambda f, a, b, c: f(a, b, c)) for name in ("addcmul", "addcdiv")},
    **{
        f"{name} values": (lambda f, a, b, c: f(a, b, c, [2.0, 0.5, 1.25]))
        for name in ("addcmul", "addcdiv")
    },
    "lerp number": lambda f, a, b, c: f(a, b, 0.25),
    "lerp numbers": lambda f, a, b, c: f(a, b, [0.25, 0.75, 0.5]),
    "lerp tensors": lambda f, a, b, c: f(a, b, c),
    "pow of a number": lambda f, a, b, c: f(2.0, a[1:]),
    "norm of the first order": lambda f, a, b, c: f(a, 1),
    "norm in another type": lambda f, a, b, c: f(a, 2, torch.float64),
}


def tensors(dtype):
    torch.manual_seed(0)

    def one(shape):
        made = torch.rand(shape).to(dtype) + 0.25
        return made.t().contiguous().t() if made.dim() == 2 else made

    return [one(shape) for _ in range(3) for shape in ((3, 4), (5,), ())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("call", CALLS)
def test_each_call_is_made_of_kernels(call, dtype):
    function = getattr(torch, f"_foreach_{call.partition(' ')[0]}")

    def program(*given):
        return CALLS[call](function, *(list(given[i : i + 3]) for i in (0, 3, 6)))

    given = tensors(dtype)
    expected = program(*given)
    compiled = compile_graph(make_fx(program)(*given), given, STRICT)
    for x, y in zip(compiled(*given), expected, strict=True):
        assert (x.dtype, x.stride()) == (y.dtype, y.stride())
        rough = (
            {"rtol": 1e-5, "atol": 1e-6} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 0}
        )
        torch.testing.assert_close(x, y, equal_nan=True, **rough)
    assert "_foreach" not in compiled.source
