"""The registry of graph-break kinds: id, what happened, category, advice.

One entry a kind; ``Unsupported(kind_name, **details)`` fills the templates. Ids are stable and
documented in ``docs/reference/breaks.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Category(Enum):
    """Who can do something about a break."""

    USER_CODE = "user code"
    DATA_DEPENDENT = "data-dependent"
    NOT_SUPPORTED = "not supported yet"
    OUR_BUG = "our bug"
    FOLLOWS = "caused by an earlier break"


@dataclass(frozen=True, slots=True)
class BreakKind:
    """``what`` and ``advice`` are format templates over the details of the signal."""

    id: str
    name: str
    category: Category
    what: str
    advice: str


KINDS: dict[str, BreakKind] = {}


def kind(id: str, name: str, category: Category, what: str, advice: str) -> None:
    """Register a break kind; a name or id used twice is an error."""
    if name in KINDS or any(k.id == id for k in KINDS.values()):
        raise ValueError(f"break kind {id} {name!r} is registered already")
    KINDS[name] = BreakKind(id, name, category, what, advice)


_C = Category
kind(
    "TS-T001",
    "unsupported-slot",
    _C.NOT_SUPPORTED,
    "{what} is not supported while tracing",
    "Move this operation out of the compiled function, or compute it from tensors or constants.",
)
kind(
    "TS-T002",
    "not-constant",
    _C.NOT_SUPPORTED,
    "the value of {what} must be known while tracing",
    "Pass it as a Python constant, or keep this computation in tensor operations.",
)
kind(
    "TS-T003",
    "not-a-graph-argument",
    _C.NOT_SUPPORTED,
    "{what} cannot be an argument of a tensor operation in the graph",
    "Pass tensors, numbers, or lists and tuples of these.",
)
kind(
    "TS-T010",
    "opaque-call",
    _C.USER_CODE,
    "call of {what}, which cannot be looked into",
    "If it only computes on tensors, wrap it as a torch.library op; else keep it outside.",
)
kind(
    "TS-T011",
    "print",
    _C.USER_CODE,
    "call of print()",
    "Remove it, or print after the compiled function has returned.",
)
kind(
    "TS-T012",
    "data-dependent-branch",
    _C.DATA_DEPENDENT,
    "a branch depends on the value of {what}",
    "Use torch.where or torch.cond, or compute the condition outside the compiled function.",
)
kind(
    "TS-T013",
    "item",
    _C.DATA_DEPENDENT,
    "{what} reads a tensor's value into Python",
    "Keep the value as a tensor; 0-dim tensors take part in arithmetic as numbers do. Or compile "
    "with the option capture_scalar_outputs.",
)
kind(
    "TS-T021",
    "live-iterator",
    _C.FOLLOWS,
    "a loop with a graph break in its body takes its next item",
    "Nothing by itself: it goes away together with the break in the body of the loop.",
)
kind(
    "TS-T020",
    "cannot-rebuild",
    _C.NOT_SUPPORTED,
    "{what} is needed after the compiled part but cannot be rebuilt there",
    "Return tensors, numbers or plain containers, or keep the object alive outside.",
)
kind(
    "TS-T054",
    "suspends",
    _C.NOT_SUPPORTED,
    "{what} is a generator function or coroutine function, which runs in pieces",
    "Compile the functions that it calls, or the one that consumes it.",
)
kind(
    "TS-T900",
    "internal-error",
    _C.OUR_BUG,
    "the tracer failed: {what}",
    "Please report this with the function that triggers it; results are right, since it runs "
    "eagerly.",
)
kind(
    "TS-T030",
    "data-dependent-op",
    _C.DATA_DEPENDENT,
    "the result of {what} has a size or value that depends on the data ({error})",
    "Use a form with a fixed size (torch.where, masks), or compile with the option "
    "capture_dynamic_output_shape_ops (for numbers capture_scalar_outputs).",
)
kind(
    "TS-T041",
    "data-dependent-size",
    _C.DATA_DEPENDENT,
    "{what} depends on a number that only the data determines: {error}",
    "Say what holds, torch._check(n <= x.shape[0]) for instance, before the number is used.",
)
kind(
    "TS-T031",
    "op-without-fake",
    _C.NOT_SUPPORTED,
    "{what} cannot be run without data ({error})",
    "Register a fake implementation with torch.library.register_fake.",
)
kind(
    "TS-T032",
    "op-failed",
    _C.USER_CODE,
    "{what} fails on these arguments: {error}",
    "The operation runs natively and raises its own error, unless the arguments are changed.",
)
kind(
    "TS-T033",
    "op-result",
    _C.NOT_SUPPORTED,
    "{what} returned an object of type {type}, which has no symbolic form",
    "Call it outside the compiled function.",
)
kind(
    "TS-T034",
    "out-argument",
    _C.NOT_SUPPORTED,
    "{what} writes to its argument out=",
    "Use the result instead of out=.",
)
kind(
    "TS-T035",
    "tensor-attribute",
    _C.NOT_SUPPORTED,
    "{what} of {tensor} is not supported while tracing",
    "Move this access out of the compiled function.",
)
kind(
    "TS-T036",
    "tensor-attribute-store",
    _C.NOT_SUPPORTED,
    "setting {what} of {tensor} is not supported while tracing",
    "Set it outside the compiled function.",
)
kind(
    "TS-T037",
    "torch-state",
    _C.NOT_SUPPORTED,
    "{what} reads or changes state of torch that a graph cannot hold",
    "Call it outside the compiled function.",
)
kind(
    "TS-T038",
    "module-attribute-store",
    _C.NOT_SUPPORTED,
    "registering {what} on {module} while tracing",
    "Register parameters, buffers and submodules before the module is called.",
)
kind(
    "TS-T039",
    "opaque-attribute",
    _C.NOT_SUPPORTED,
    "attribute {what} of {object}, which cannot be looked into",
    "Read it outside the compiled function and pass the value.",
)
kind(
    "TS-T040",
    "unsupported-tensor",
    _C.NOT_SUPPORTED,
    "{what} is a {type}, which cannot be traced",
    "Plain strided tensors and parameters are supported.",
)
kind(
    "TS-T050",
    "raises",
    _C.USER_CODE,
    "the program raises {what} here",
    "The exception is raised natively, with its own traceback.",
)
kind(
    "TS-T051",
    "unsupported-opcode",
    _C.NOT_SUPPORTED,
    "the bytecode instruction {what} is not supported",
    "Rewrite the statement, or move it out of the compiled function.",
)
kind(
    "TS-T052",
    "inline-depth",
    _C.USER_CODE,
    "calls are nested too deep to follow {what}",
    "Use a loop instead of deep recursion, or move the recursion out of the compiled function.",
)
kind(
    "TS-T053",
    "too-large-to-fold",
    _C.USER_CODE,
    "computing {what} while tracing would take too much time or memory",
    "Compute it outside the compiled function, or with tensors.",
)
kind(
    "TS-T056",
    "body-effect",
    _C.NOT_SUPPORTED,
    "{what} has a side effect, such as a store to an object from outside",
    "Return the value from the function in place of storing it; the call runs natively.",
)
