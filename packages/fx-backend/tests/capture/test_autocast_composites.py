"""Autocast casts for what operators without a rule of its own are made of, as in eager."""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torchsmith_fx_backend as backend
from torch import fx, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from composition.machines import Reference
from torchsmith_fx_backend import Settings, compile_graph

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)
torch.manual_seed(0)
A, B = torch.randn(4, 6), torch.randn(6, 5)
LSTM, RNN = nn.LSTM(6, 4), nn.RNN(6, 4)
CELL, THREE = nn.RNNCell(6, 4), nn.Bilinear(6, 6, 3)
CASES = {
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "tensordot": lambda a, b: torch.tensordot(a, b, 1),
    "inner": lambda a, b: torch.inner(a, b.t()),
    "multi_dot": lambda a, b: torch.linalg.multi_dot([a, b, b.t()]),
    "cell": lambda a, b: CELL(a),
    "bilinear": lambda a, b: THREE(a, a),
    "lstm": lambda a, b: LSTM(a.unsqueeze(1))[0],
    "rnn": lambda a, b: RNN(a.unsqueeze(1))[0],
    # Made of others, too, but autocast has a rule: in float32 all through.
    "pinverse": lambda a, b: torch.pinverse(a @ b),
    "cosine": lambda a, b: F.cosine_similarity(a, a + 1),
    "switched off inside": lambda a, b: _off(torch.einsum, "ij,jk->ik", a, b),
}


def _off(function, *args):
    with torch.autocast("cpu", enabled=False):
        return function(*args)


def program(fn):
    """A graph with one call of ``fn``."""
    graph = fx.Graph()
    graph.output((graph.call_function(fn, (graph.placeholder("a"), graph.placeholder("b"))),))
    return fx.GraphModule(nn.Module(), graph)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_inference_under_autocast(name, dtype):
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype), Reference().installed():
        try:
            want = CASES[name](A, B)
        except RuntimeError as error:
            pytest.skip(f"eager does not do this on such a processor: {error}")
        (got,) = compile_graph(program(CASES[name]), [A, B], SETTINGS)(A, B)
    assert got.dtype is want.dtype
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("size", [(2, 1, 3, 5), (2, 1, 1, 4), (2, 1, 3, 4, 2)])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("casts", [False, True])
def test_grids(size, aligned, casts):
    rank = len(size) - 2
    theta = torch.randn(2, rank, rank + 1)
    gm = fx.symbolic_trace(lambda t: (F.affine_grid(t, size, align_corners=aligned),))
    with torch.no_grad(), torch.autocast("cpu", enabled=casts), Reference().installed():
        (want,) = gm(theta)
        (got,) = compile_graph(gm, [theta], SETTINGS)(theta)
    assert (got.dtype, got.stride()) == (want.dtype, want.stride())
    torch.testing.assert_close(got, want, rtol=2e-2 if casts else 1e-5, atol=2e-2 * casts + 1e-6)


def test_a_trace_of_operators_alone_under_autocast():
    fn = CASES["einsum"]
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        graph = backend.make_fx(fn)(A, B)
    assert graph(A, B).dtype is torch.bfloat16
