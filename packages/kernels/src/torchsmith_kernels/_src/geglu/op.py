"""The operators ``torchsmith::geglu`` and its backward, and the public function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.gated import checks, reference, run
from torchsmith_kernels._src.gated.reference import Kind
from torchsmith_kernels._src.geglu.config import table

NAME = "geglu"
KINDS: dict[str, Kind] = {"none": "gelu", "tanh": "gelu_tanh"}


def _checked(gate: Tensor, up: Tensor, approximate: str) -> Kind:
    checks.tensors(NAME, gate, up)
    check.choice(NAME, "approximate", approximate, tuple(KINDS))
    return KINDS[approximate]


def _forward(gate: Tensor, up: Tensor, approximate: str) -> Tensor:
    kind = _checked(gate, up, approximate)
    if launch.usable(gate.device, NAME):
        return run.forward(gate, up, kind, table)
    return torch.empty_like(gate).copy_(reference.forward(gate, up, kind))


def _forward_fake(gate: Tensor, up: Tensor, approximate: str) -> Tensor:
    _checked(gate, up, approximate)
    return torch.empty_like(gate)


def _backward(
    grad_output: Tensor, gate: Tensor, up: Tensor, approximate: str
) -> tuple[Tensor, Tensor]:
    kind = KINDS[approximate]
    if launch.usable(gate.device, NAME):
        return run.backward(grad_output, gate, up, kind, table)
    dgate, dup = reference.backward(grad_output, gate, up, kind)
    return torch.empty_like(gate).copy_(dgate), torch.empty_like(gate).copy_(dup)


def _backward_fake(
    grad_output: Tensor, gate: Tensor, up: Tensor, approximate: str
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gate), torch.empty_like(gate)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    gate, up, ctx.approximate = inputs
    ctx.save_for_backward(gate, up)


def _grad(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
    gate, up = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: the same formula, differentiable
        return *reference.backward(grad_output, gate, up, KINDS[ctx.approximate]), None
    return *backward_op(grad_output, gate, up, ctx.approximate), None


backward_op = Op(
    "geglu_backward(Tensor grad_output, Tensor gate, Tensor up, str approximate) "
    "-> (Tensor, Tensor)",
    kernel=_backward,
    fake=_backward_fake,
)
op = Op(
    'geglu(Tensor gate, Tensor up, str approximate="none") -> Tensor',
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
)


def geglu(gate: Tensor, up: Tensor, approximate: str = "none") -> Tensor:
    """GeGLU, ``gelu(gate) * up`` (Shazeer, 2020, https://arxiv.org/abs/2002.05202).

    ``approximate="none"`` is ``gelu(x) = x * Phi(x)`` with the normal distribution function,
    ``"tanh"`` is ``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``.

    Low precision is computed in float32 and rounded once. Deterministic. Memory: the result;
    backward keeps ``gate`` and ``up`` only and computes both gradients in one pass. Halves of one
    tensor, as of ``both.chunk(2, -1)``, are read where they are.

    Args:
        gate: floating point tensor of any shape.
        up: tensor of the same shape, dtype and device.
        approximate: ``"none"`` or ``"tanh"``.

    Returns:
        A tensor of ``gate``'s shape and dtype.

    Raises:
        ArgumentTypeError: an argument is not a tensor, or ``approximate`` is another word.
        DtypeError: ``gate`` is not floating point, or ``up`` has another dtype.
        DeviceError: ``up`` is on another device.
        ShapeError: the shapes differ.
    """
    check.is_tensor(NAME, "gate", gate)
    check.is_tensor(NAME, "up", up)
    if not isinstance(approximate, str):
        check.choice(NAME, "approximate", approximate, tuple(KINDS))
    result: Tensor = op(gate, up, approximate)
    return result
