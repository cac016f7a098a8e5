"""Gated activations, squared ReLU, dropout, and bias + GELU + dropout.

Liger's GeGLU is the tanh form, so that is compared. Its backward of gates writes over the saved
inputs, which are copies here; only its first result can be compared. Masks of dropout differ from
version to version, so their results are not compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import torch
import torch.nn.functional as F
import torchsmith_kernels as tk
from case import Case, Versions, compiled
from torch import Tensor

DTYPE = torch.bfloat16
#: Rows and width; the first is small, the others have 64 MiB a tensor or more.
SHAPES = [(65536, 128), (65536, 1024), (16384, 4096), (8192, 11008), (1024, 32768)]
P = 0.1

Function = Callable[..., Tensor]


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _geglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate) * up


def _geglu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh") * up


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _dropout(x: Tensor) -> Tensor:
    return F.dropout(x, P)


def _bias_gelu_dropout(x: Tensor, bias: Tensor) -> Tensor:
    return F.dropout(F.gelu(x + bias), P)


def _liger(module: str, name: str) -> Function | None:
    """``apply`` of one of Liger's autograd functions, None where this version has none."""
    if find_spec("liger_kernel") is None or find_spec(f"liger_kernel.ops.{module}") is None:
        return None
    function = getattr(import_module(f"liger_kernel.ops.{module}"), name)

    def call(*args: Tensor) -> Tensor:
        result = function.apply(*args)
        first: Tensor = result[0] if isinstance(result, tuple) else result
        return first

    return call


#: Op, label, ours, eager, Liger's module and class, tensors of the input's size that forward and
#: backward move, number of inputs of the whole shape, and whether there is a bias.
OPS: list[tuple[str, str, Function, Function, tuple[str, str] | None, int, int, int, bool]] = [
    ("swiglu", "", tk.swiglu, _swiglu, ("swiglu", "LigerSiLUMulFunction"), 3, 5, 2, False),
    ("geglu", "exact", tk.geglu, _geglu, None, 3, 5, 2, False),
    (
        "geglu",
        "tanh",
        partial(tk.geglu, approximate="tanh"),
        _geglu_tanh,
        ("geglu", "LigerGELUMulFunction"),
        3,
        5,
        2,
        False,
    ),
    (
        "relu_squared",
        "",
        tk.relu_squared,
        _relu_squared,
        ("relu_squared", "LigerReLUSquaredFunction"),
        2,
        3,
        1,
        False,
    ),
    ("dropout", "", partial(tk.dropout, p=P), _dropout, None, 2, 2, 1, False),
    (
        "bias_gelu_dropout",
        "",
        partial(tk.bias_gelu_dropout, p=P),
        _bias_gelu_dropout,
        None,
        2,
        3,
        1,
        True,
    ),
]


def _call(
    function: Function, tensors: list[Tensor], direction: str, random: bool
) -> Callable[[], object]:
    if direction == "forward":

        def call() -> object:
            result = function(*tensors)
            return None if random else result

        return call
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    result = function(*leaves)
    grad = torch.randn(
        result.shape,
        device="cuda",
        dtype=DTYPE,
        generator=torch.Generator("cuda").manual_seed(1),
    )

    def backward() -> object:
        grads = torch.autograd.grad(result, leaves, grad, retain_graph=True)
        return None if random else grads

    return backward


def _build(
    ours: Function,
    eager: Function,
    liger: tuple[str, str] | None,
    inputs: int,
    bias: bool,
    shape: tuple[int, int],
    direction: str,
) -> Versions:
    tensors = [torch.randn(shape, device="cuda", dtype=DTYPE) for _ in range(inputs)]
    if bias:
        tensors.append(torch.randn(shape[1], device="cuda", dtype=DTYPE))
    functions: dict[str, Function | None] = {
        "ours": ours,
        "eager": eager,
        "compile": compiled(eager),
        "liger": None if liger is None else _liger(*liger),
    }
    random = "dropout" in getattr(eager, "__name__", "")
    return {
        name: _call(function, tensors, direction, random)
        for name, function in functions.items()
        if function is not None
    }


def cases() -> list[Case]:
    """All lines of the table."""
    return [
        Case(
            op=op,
            shape=f"{rows} x {width}" + (f", {label}" if label else ""),
            dtype=DTYPE,
            direction=direction,
            build=partial(_build, ours, eager, liger, inputs, bias, (rows, width), direction),
            bytes=moved * rows * width * DTYPE.itemsize,
        )
        for op, label, ours, eager, liger, forward, backward, inputs, bias in OPS
        for direction, moved in (("forward", forward), ("backward", backward))
        for rows, width in SHAPES
    ]
