"""Operators that others define keep sizes symbolic, and equal eager at each size."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torchsmith_guards as guards
from torch import fx, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from composition.machines import Reference
from torchsmith_fx_backend import Settings, compile_graph
from torchsmith_fx_backend._src.driver import compile_training

torch.manual_seed(0)
WINDOW = torch.hann_window(16)
LSTM = nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True).requires_grad_(False)
GRU = nn.GRU(6, 5, batch_first=True).requires_grad_(False)
RNN = nn.RNN(6, 5, batch_first=True).requires_grad_(False)


def scaled(mode, **more):
    return lambda x: F.interpolate(x, scale_factor=1.5, mode=mode, **more)


def sized(mode, rank):
    return lambda x: F.interpolate(x, size=(9,) * rank, mode=mode)


CASES = {
    "nearest 1": (scaled("nearest"), (3, 6)),
    "nearest 2": (scaled("nearest"), (3, 6, 6)),
    "nearest 3 to a size": (sized("nearest", 3), (3, 4, 4, 4)),
    "nearest-exact 2": (scaled("nearest-exact"), (3, 6, 6)),
    "linear": (scaled("linear"), (3, 6)),
    "bilinear": (scaled("bilinear"), (3, 6, 6)),
    "bilinear to a size": (sized("bilinear", 2), (3, 6, 6)),
    "bilinear, corners aligned": (scaled("bilinear", align_corners=True), (3, 6, 6)),
    "bilinear, factors computed": (scaled("bilinear", recompute_scale_factor=True), (3, 6, 6)),
    "bilinear, smoothed": (scaled("bilinear", antialias=True), (3, 6, 6)),
    "bicubic": (scaled("bicubic"), (3, 6, 6)),
    "trilinear": (scaled("trilinear"), (3, 4, 4, 4)),
    "stft": (lambda x: torch.stft(x, 16, 4, window=WINDOW, return_complex=True).abs(), (64,)),
    "lstm": (lambda x: LSTM(x)[0], (3, 6)),
    "gru": (lambda x: GRU(x)[0], (3, 6)),
    "rnn": (lambda x: RNN(x)[1], (3, 6)),
}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_any_batch_size_is_served(name, train):
    fn, shape = CASES[name]
    env = guards.ShapeEnv()
    mode = guards.FakeMode(env)
    example = torch.randn(6, *shape, requires_grad=train)
    fake = mode.fakeify(example, guards.LocalSource("x"), {0})
    program = lambda x: (fn(x) * 1,)  # noqa: E731
    with torch.set_grad_enabled(train), Reference().installed():
        run = compile_training(program, [fake], Settings(graph_cache=False))
        assert not [g for g in env.guards if " == " in g.condition.text()]
        for size in (6, 5, 7):
            x = torch.randn(size, *shape)
            sides = []
            for f in (run, program):
                given = x.clone().requires_grad_(train)
                (y,) = f(given)
                if train:
                    y.sin().sum().backward()
                sides.append([y.detach(), given.grad])
            (mine, grad), (theirs, expected) = sides
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
            assert mine.stride() == theirs.stride()
            if train:
                torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [None, 2])
def test_a_spectrum_taken_back_serves_any_length(scale):
    def fn(x):
        spectrum = torch.stft(x, 16, 4, window=WINDOW, return_complex=True)
        return (torch.istft(spectrum * scale if scale else spectrum, 16, 4, window=WINDOW),)

    mode = guards.FakeMode(guards.ShapeEnv())
    fake = mode.fakeify(torch.randn(2, 80), guards.LocalSource("x"), {0, 1})
    with torch.no_grad():
        run = compile_graph(fx.symbolic_trace(fn), [fake], Settings(graph_cache=False))
        for size in ((2, 80), (3, 64), (5, 72)):
            x = torch.randn(size)
            torch.testing.assert_close(run(x), fn(x))
