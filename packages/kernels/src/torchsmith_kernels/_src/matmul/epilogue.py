"""The matrix product as a compiler sees it: two aten ops, and a place for a fused epilogue."""

from __future__ import annotations

import ast
import hashlib
import linecache
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch, store, tables
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.matmul import run
from torchsmith_kernels._src.matmul.op import op as matmul_op
from torchsmith_kernels._src.sizes import LOW_PRECISION
from torchsmith_kernels._src.template import Template
from torchsmith_kernels.errors import ArgumentTypeError, ShapeError

#: ``run(arguments, extras)``: the arguments of the template's op, and what the epilogue reads.
FusedCall = Callable[[Sequence[Any], Sequence[Tensor]], Tensor]


def _mm(self: Tensor, mat2: Tensor) -> Tensor:
    result: Tensor = matmul_op(self, mat2, None, None, None, 1.0, False)[0]
    return result


def _mm_fake(self: Tensor, mat2: Tensor) -> Tensor:
    return self.new_empty((self.size(0), mat2.size(1)))


def _mm_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _mm_grad(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    a, b = ctx.saved_tensors
    wants_a, wants_b = ctx.needs_input_grad
    return grad @ b.t() if wants_a else None, a.t() @ grad if wants_b else None


def _terms(self: Tensor, mat1: Tensor, mat2: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """``self`` as a bias or as a residual."""
    shape = (mat1.size(0), mat2.size(1))
    if self.dim() == 1 and self.size(0) == shape[1]:
        return self, None
    return None, self.expand(shape)


def _wide(tensor: Tensor) -> Tensor:
    """In at least float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _addmm(self: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    if beta == 0:
        bias, residual = None, None  # not even its NaN counts
    else:
        bias, residual = _terms(self if beta == 1 else _wide(self) * beta, mat1, mat2)
    result: Tensor = matmul_op(mat1, mat2, bias, None, residual, float(alpha), False)[0]
    return result


def _addmm_fake(
    self: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    return mat1.new_empty((mat1.size(0), mat2.size(1)))


def _addmm_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    self, mat1, mat2, ctx.beta, ctx.alpha = inputs
    ctx.save_for_backward(mat1, mat2)
    ctx.shape = self.shape


def _addmm_grad(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    mat1, mat2 = ctx.saved_tensors
    wants = ctx.needs_input_grad
    return (
        (ctx.beta * grad).sum_to_size(ctx.shape) if wants[0] else None,
        ctx.alpha * (grad @ mat2.t()) if wants[1] else None,
        ctx.alpha * (mat1.t() @ grad) if wants[2] else None,
        None,
        None,
    )


mm_op = Op(
    "mm(Tensor self, Tensor mat2) -> Tensor",
    kernel=_mm,
    fake=_mm_fake,
    setup_context=_mm_setup,
    backward=_mm_grad,
)
addmm_op = Op(
    "addmm(Tensor self, Tensor mat1, Tensor mat2, Scalar beta=1, Scalar alpha=1) -> Tensor",
    kernel=_addmm,
    fake=_addmm_fake,
    setup_context=_addmm_setup,
    backward=_addmm_grad,
)


@cache
def compile_text(source: str) -> Any:
    """The ``@triton.jit`` function in a source text, which may use ``tl`` and ``triton``.

    The text becomes a file of Python's line cache, so that Triton and debuggers find it.
    """
    import triton
    import triton.language as tl

    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    if not names:
        raise ArgumentTypeError(
            op="matmul",
            argument="epilogue",
            given="a text without a function",
            accepted="it must define `(value, row, column, keep, *pointers) -> value`",
        )
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    file = f"<torchsmith epilogue {digest}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {
        "tl": tl,
        "triton": triton,
        "__name__": f"torchsmith_epilogue_{digest}",
    }
    exec(compile(source, file, "exec"), scope)  # the compiler's own text
    functions = []
    for name in names:
        if not hasattr(scope[name], "arg_names"):
            scope[name] = triton.jit(scope[name])
        functions.append(scope[name])
    return functions[-1]


def _fused(epilogue: object, terms: Callable[..., tuple[Any, ...]]) -> FusedCall:
    function = compile_text(epilogue) if isinstance(epilogue, str) else epilogue
    if not hasattr(function, "arg_names"):
        raise ArgumentTypeError(
            op="matmul",
            argument="epilogue",
            given=f"of type {type(epilogue).__name__}",
            accepted="it must be a @triton.jit function or the text of one",
        )
    takes = len(function.arg_names) - 4
    if not 0 <= takes <= run.MOST_EXTRAS:
        raise ArgumentTypeError(
            op="matmul",
            argument="epilogue",
            given=f"a function of {takes + 4} arguments",
            accepted=f"it must take (value, row, column, keep) and up to {run.MOST_EXTRAS} "
            "pointers",
        )

    def call(arguments: Sequence[Any], extras: Sequence[Tensor] = ()) -> Tensor:
        a, b, bias, residual, scale = terms(*arguments)
        check.dtype("matmul", "input", a, (*LOW_PRECISION, torch.float32))
        if len(extras) != takes:
            raise ArgumentTypeError(
                op="matmul",
                argument="extras",
                given=f"{len(extras)} tensors",
                accepted=f"the epilogue takes {takes} pointers",
            )
        if 0 in a.shape or 0 in b.shape:
            raise ShapeError(
                op="matmul", argument="input", given=tuple(a.shape), accepted="none may be empty"
            )
        return run.forward(a, b, bias, None, residual, scale, epilogue=function, extras=extras)[0]

    return call


def _mm_terms(self: Tensor, mat2: Tensor) -> tuple[Any, ...]:
    return self, mat2, None, None, 1.0


def _addmm_terms(
    self: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1, alpha: float = 1
) -> tuple[Any, ...]:
    # A residual would be added after the caller's function; `matches` lets only biases through.
    return mat1, mat2, self.contiguous(), None, float(alpha)


def _usable(a: object, b: object) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dim() != 2 or b.dim() != 2:
        return False
    if a.device.type != "cuda" or a.dtype not in LOW_PRECISION or a.dtype != b.dtype:
        return False
    return all(type(size) is int and size > 0 for size in (*a.shape, *b.shape))


def _mm_matches(call: Mapping[str, object]) -> bool:
    return _usable(call.get("self"), call.get("mat2"))


def _addmm_matches(call: Mapping[str, object]) -> bool:
    bias, b = call.get("self"), call.get("mat2")
    if not _usable(call.get("mat1"), b) or not isinstance(bias, Tensor):
        return False
    assert isinstance(b, Tensor)
    alpha = call.get("alpha", 1)
    return (
        tuple(bias.shape) == (b.size(1),)
        and bias.is_floating_point()
        and call.get("beta", 1) == 1
        and isinstance(alpha, int | float)
    )


def _speedup(a: object, b: object, fused: bool) -> float | None:
    """Time of cuBLAS, with an epilogue of cuBLAS and a pointwise kernel, over the kernel's."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or not torch.cuda.is_available():
        return None
    if a.device.type != "cuda":
        return None
    key = run.case_of(a, b, addressed=False).key()
    capability = launch.capability(a.device)
    name = "speedup_with_epilogue" if fused else "speedup_over_library"
    for table in (store.tuned_table("matmul", capability), tables.shipped("matmul", capability)):
        measured = table.get(key, {}).get(name)
        if isinstance(measured, int | float):
            return float(measured)
    return None


matmul_template = Template(
    name="matmul",
    targets={"aten.mm.default": 0},
    parameters=("self", "mat2"),
    op=mm_op.overload,
    matches=_mm_matches,
    speedup=lambda call: _speedup(call.get("self"), call.get("mat2"), "epilogue" in call),
    epilogue=lambda epilogue: _fused(epilogue, _mm_terms),
)
addmm_template = Template(
    name="addmm",
    targets={"aten.addmm.default": 0},
    parameters=("self", "mat1", "mat2", "beta", "alpha"),
    op=addmm_op.overload,
    matches=_addmm_matches,
    speedup=lambda call: _speedup(call.get("mat1"), call.get("mat2"), "epilogue" in call),
    epilogue=lambda epilogue: _fused(epilogue, _addmm_terms),
)
