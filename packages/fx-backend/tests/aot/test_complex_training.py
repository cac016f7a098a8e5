"""Gradients of complex inputs and results are eager's, in its convention of conjugates."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training
from torchsmith_fx_backend.errors import UnsupportedError

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)


pytestmark = pytest.mark.usefixtures("reference_machine")


def numbers(*size, seed=0, dtype=torch.complex128):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=dtype)


def leaves(sizes=4):
    real = numbers(sizes, 2, dtype=torch.float64)
    return [real.requires_grad_(), numbers(sizes, seed=1).requires_grad_()]


def written(a, c):
    z = c * 1
    z.real.mul_(2)
    return z, (c * 2).mul_(c).add_(1j)


# Each gives results from a real tensor of 4 x 2 and a complex one of 4.
PROGRAMS = {
    "products": lambda a, c: (c * a[:, 0], c[:, None] @ c[None].conj()),
    "absolute value": lambda a, c: (c.abs(), (c * c.conj()).real.sum(), c.norm()),
    "angle and sign": lambda a, c: (c.angle() * a[:, 1], c.sgn()),
    "analytic": lambda a, c: ((c * 1j).exp(), c.log(), c.sqrt(), c.tanh(), c.pow(1 + 2j)),
    "quotients": lambda a, c: (c / (c + 2), 1 / c, c.reciprocal()),
    "as two numbers": lambda a, c: (torch.view_as_real(c * 2) * a, c.real * c.imag),
    "from two numbers": lambda a, c: (
        torch.view_as_complex(a) * c,
        torch.polar(a[:, 0].abs(), a[:, 1]),
        torch.complex(a[:, 0], a[:, 1]),
    ),
    "transforms": lambda a, c: (torch.fft.fft(c), torch.fft.irfft(c), torch.fft.rfft(a[:, 0])),
    "conjugates inside": lambda a, c: ((c.conj() * 2).resolve_conj(), c.conj().imag * 2),
    "reductions": lambda a, c: (c.prod(), c.cumsum(0), c.mean(), (c * a.sum()).var()),
    "moves": lambda a, c: (c[[0, 0, 2]] * 2, torch.cat([c.flip(0), a[:, 0].to(c.dtype)])),
    "choice": lambda a, c: (torch.where(a[:, 0] > 0, c, c * 2j), c.detach() * c),
    "writes": written,
    "another precision": lambda a, c: (c.to(torch.complex64) * a[:, 0].float(),),
}


def tangents(results, how):
    for number, result in enumerate(results):
        tangent = numbers(*result.shape, seed=number + 9, dtype=result.dtype)
        if how == "lazy":
            tangent = tangent.conj() if tangent.is_complex() else tangent._neg_view()
        elif how == "expanded":
            tangent = tangent.new_ones(()).expand(tangent.shape)
        yield tangent


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_eager(name):
    program = PROGRAMS[name]
    run = compile_training(program, leaves(), SETTINGS)
    for how in ("plain", "lazy", "expanded"):
        sides = []
        for function in (run, program):
            given = leaves()
            results = function(*given)
            chosen = list(tangents(results, how))
            grads = torch.autograd.grad(results, given, chosen, allow_unused=True)
            found = [t for t in (*results, *grads) if t is not None]
            facts = [(t.dtype, t.stride(), t.is_conj(), t.is_neg()) for t in found]
            sides.append((found, facts))
        torch.testing.assert_close(sides[0][0], sides[1][0])
        assert sides[0][1] == sides[1][1]


def test_a_lazily_conjugated_result_runs_as_captured():
    with pytest.raises(UnsupportedError, match="lazily conjugated"):
        compile_training(lambda a, c: (c.conj(), a * 2), leaves(), SETTINGS)


def test_optimizers_of_complex_parameters_go_the_same_way():
    step = lambda a, c: ((torch.view_as_complex(a) * c).abs().square().sum(),)  # noqa: E731
    run = compile_training(step, leaves(), SETTINGS)
    sides = []
    for function in (run, step):
        given = leaves()
        optimizer = torch.optim.Adam(given, lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            function(*given)[0].backward()
            optimizer.step()
        sides.append([t.detach() for t in given])
    torch.testing.assert_close(*sides)


class Counted(TorchDispatchMode):
    """Counts the calls of each operator."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func] += 1
        return func(*args, **kwargs or {})


def normalised(c, w):
    z = c * w
    return (z / (z.abs() + 1e-3)) @ w.t()


@pytest.mark.parametrize(("budget", "again"), [(1.0, False), (0.5, False), (0.0, True)])
def test_what_aten_computes_is_computed_again_only_to_save_memory(budget, again):
    """It would cost as much as before: no kernel does it beside what it does anyway."""
    c, w = numbers(3, 4).requires_grad_(), numbers(3, 4, seed=1).requires_grad_()
    run = compile_training(normalised, [c, w], SETTINGS.with_options(memory_budget=budget))
    counts = []
    for fn in (run, run, normalised):
        result = fn(c, w)
        tangent = torch.ones_like(result)
        with Counted() as counted:
            torch.autograd.grad(result, [c, w], tangent)
        counts.append(counted.calls[torch.ops.aten.abs.default])
    assert (counts[1] > counts[2]) is again
