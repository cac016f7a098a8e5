"""The registry of graph-break kinds: id, what happened, category, advice.

``Unsupported(kind_name, **details)`` fills the templates. Ids are stable and documented in
``docs/reference/breaks.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal


class Category(Enum):
    """Who can do something about a break."""

    USER_CODE = "user code"
    DATA_DEPENDENT = "data-dependent"
    NOT_SUPPORTED = "not supported yet"
    OUR_BUG = "our bug"
    FOLLOWS = "caused by an earlier break"


# What differs from call to call of an instruction at which a function breaks: nothing, what it
# gives, as the data says, or how many items it goes through.
Varies = Literal["", "data", "length"]


@dataclass(frozen=True, slots=True)
class BreakKind:
    """``what`` and ``advice`` are format templates over the details of the signal."""

    id: str
    name: str
    category: Category
    what: str
    advice: str

    @property
    def varies(self) -> Varies:
        """What of the instruction differs from call to call."""
        if self.name in ("varying-length", "live-iterator"):
            return "length"
        return "data" if self.category is Category.DATA_DEPENDENT else ""


# Id, name and category; then what happened; then advice. Deeper lines continue the one before.
_TABLE = """
TS-T001 unsupported-slot: not supported yet
  {what} is not supported while tracing
  Move this operation out of the compiled function, or compute it from tensors or constants.
TS-T002 not-constant: not supported yet
  the value of {what} must be known while tracing
  Pass it as a Python constant, or keep this computation in tensor operations.
TS-T003 not-a-graph-argument: not supported yet
  {what} cannot be an argument of a tensor operation in the graph
  Pass tensors, numbers, or lists and tuples of these.
TS-T010 opaque-call: user code
  call of {what}, which cannot be looked into
  Call it before the compiled function, and pass what it returns. If it only computes on tensors,
    wrap it as a torch.library op.
TS-T011 print: user code
  call of print() that cannot wait for the graph
  Print known text and tensors to an ordinary stream, without flush=True; or print after the
    compiled function has returned.
TS-T012 data-dependent-branch: data-dependent
  a branch depends on the value of {what}
  Use torch.where or torch.cond, or compute the condition outside the compiled function.
TS-T013 item: data-dependent
  {what} reads a tensor's value into Python
  Keep the value as a tensor; 0-dim tensors take part in arithmetic as numbers do. Or compile with
    the option capture_scalar_outputs.
TS-T014 native-optimizer: data-dependent
  a step of {what}, {why}
  It runs natively, with its closure compiled; the rest of a training step is compiled as well.
TS-T015 host-function: user code
  {function} works without tensors, and its rest runs natively: {what}
  Nothing is lost but one graph instead of two. For that, call it before the compiled function,
    and pass what it returns.
TS-T020 cannot-rebuild: not supported yet
  {what} is needed after the compiled part but cannot be rebuilt there
  Return tensors, numbers or plain containers, or keep the object alive outside.
TS-T021 live-iterator: caused by an earlier break
  a loop with a graph break in its body takes its next item
  Nothing by itself: it goes away together with the break in the body of the loop.
TS-T022 varying-length: user code
  {what} has another length at each call
  Nothing by itself: instead of code for each length, the body of the loop is compiled once. To have
    one graph, pad to a few lengths, or compile with fullgraph=True.
TS-T030 data-dependent-op: data-dependent
  the result of {what} has a size or value that depends on the data ({error})
  Use a form with a fixed size (torch.where, masks), or compile with the option
    capture_dynamic_output_shape_ops (for numbers capture_scalar_outputs).
TS-T031 op-without-fake: not supported yet
  {what} cannot be run without data ({error})
  Register a fake implementation with torch.library.register_fake.
TS-T032 op-failed: user code
  {what} fails on these arguments: {error}
  The operation runs natively and raises its own error, unless the arguments are changed.
TS-T033 op-result: not supported yet
  {what} returned an object of type {type}, which has no symbolic form
  Call it outside the compiled function.
TS-T034 out-argument: not supported yet
  {what} gives an argument out= another size
  Make the tensor of the right size, or use the result instead of out=.
TS-T035 tensor-attribute: not supported yet
  {what} of {tensor} is not supported while tracing
  Move this access out of the compiled function.
TS-T036 tensor-attribute-store: not supported yet
  setting {what} of {tensor} is not supported while tracing
  Set it outside the compiled function.
TS-T037 torch-state: not supported yet
  {what} reads or changes state of torch that a graph cannot hold
  Call it outside the compiled function.
TS-T038 module-attribute-store: not supported yet
  registering {what} on {module} while tracing
  Register parameters, buffers and submodules before the module is called.
TS-T039 opaque-attribute: not supported yet
  attribute {what} of {object}, which cannot be looked into
  Read it outside the compiled function and pass the value.
TS-T041 data-dependent-size: data-dependent
  {what} depends on a number that only the data determines: {error}
  Say what holds, torch._check(n <= x.shape[0]) for instance, before the number is used.
TS-T050 raises: user code
  the program raises {what} here
  The exception is raised natively, with its own traceback.
TS-T051 unsupported-opcode: not supported yet
  the bytecode instruction {what} is not supported
  Rewrite the statement, or move it out of the compiled function.
TS-T052 inline-depth: user code
  calls, or what they work on, are nested too deep to follow {what}
  Use a loop instead of deep recursion, or move the recursion out of the compiled function.
TS-T053 too-large-to-fold: user code
  computing {what} while tracing would take too much time or memory
  Compute it outside the compiled function, or with tensors.
TS-T054 suspends: not supported yet
  {what} is a generator function or coroutine function, which runs in pieces
  Compile the functions that it calls, or the one that consumes it.
TS-T056 body-effect: not supported yet
  {what} has a side effect, such as a store to an object from outside
  Return the value from the function in place of storing it; the call runs natively.
TS-T057 numpy: not supported yet
  {what} has no exact counterpart in tensors: {error}
  The call runs natively; use the function of torch, or another form of it.
TS-T900 internal-error: our bug
  the tracer failed: {what}
  Please report this with the function that triggers it; results are right, since it runs eagerly.
"""


def _read(table: str) -> dict[str, BreakKind]:
    """The kinds of a table, by name; a name or id used twice is an error."""
    entries: list[list[str]] = []
    for line in table.strip().splitlines():
        if line.startswith("    "):
            entries[-1][-1] += " " + line.strip()
        elif line.startswith("  "):
            entries[-1].append(line.strip())
        else:
            entries.append([line])
    found: dict[str, BreakKind] = {}
    for head, what, advice in entries:
        names, _, category = head.partition(": ")
        id, name = names.split()
        if name in found or any(k.id == id for k in found.values()):
            raise ValueError(f"break kind {id} {name!r} is there already")
        found[name] = BreakKind(id, name, Category(category), what, advice)
    return found


KINDS = _read(_TABLE)
