"""A PyTorch compiler from scratch, in one file: trace, guard, break, resume, lower, fuse, run.

This is the design of Torchsmith, taught on the smallest program that still has every stage. It
uses none of our packages; read it top to bottom, then run it::

    python docs/from_scratch.py

The stages, in the order of one program's way through:

1. *Trace*: interpret the function's bytecode with symbolic values. Tensor operations become nodes
   of an fx graph, plain Python runs at once. Host objects are read in one way, which records what
   was found: *guards* are by-products of reading, so none can be forgotten.
2. *Side effects* wait in a journal and are replayed after the graph.
3. *Break* where something cannot be traced: Python runs that one operation, and the frames in
   mid-flight (locals, stack, position) become a function that is compiled like any other.
4. *Lower* each node once, on its own, to a loop over elements; *fuse* by substituting one loop's
   body into another's; *schedule* kernels, library calls and buffers.
5. *Generate* C for the kernels, and the wrapper, the guards and the dispatcher as Python text that
   a person can read.
6. *Dispatch*: a function with the user's signature checks guards and calls a body; a miss traces.

Left out, and most of the work in the real packages: gradients, sizes that vary, views and aliases,
writes into tensors, exceptions, classes, reuse of memory, GPUs. The toy runs on Python 3.11 to
3.13, knows the instructions that its examples need, and says so when it meets another.
"""

from __future__ import annotations

import builtins
import ctypes
import dis
import hashlib
import math
import operator
import subprocess
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

# --- Values: what the interpreter computes with.


@dataclass(frozen=True)
class Constant:
    """A Python object that is fully known while tracing."""

    value: Any


@dataclass(frozen=True)
class Lazy:
    """Something of the caller's that nobody has looked at yet, and the expression (its *source*)
    that fetches it again when the compiled code runs. Looking costs a guard, so we wait."""

    value: Any
    source: str


@dataclass(frozen=True, eq=False)
class Symbolic:
    """A tensor: a node of the graph, plus a stand-in without data that answers shape and dtype."""

    node: fx.Node
    meta: Tensor  # on the "meta" device: torch computes shapes and dtypes for us, and no numbers


@dataclass
class Iteration:
    """An iterator: what it has not given yet."""

    rest: list[Value]


Value = Constant | Lazy | Symbolic | Iteration


@dataclass
class Frame:
    """A frame in mid-flight. From Python 3.11 on this is all there is to one: loops and ``with``
    keep nothing elsewhere, so a frame can be taken apart anywhere and put together again."""

    fn: types.FunctionType
    local: dict[str, Value]
    stack: list[Value] = field(default_factory=list)
    ip: int = 0


class Unsupported(Exception):
    """The toy gives up. The real interpreter breaks the graph."""


class Break(Exception):
    """``function(*arguments)`` cannot be traced; Python is to call it.

    ``pops`` values leave the stack for it and its result is pushed, after which the instruction
    counts as done, or runs ``again``.
    """

    def __init__(self, why: str, call: list[Value], pops: int, again: bool = False) -> None:
        super().__init__(why)
        self.call, self.pops, self.again = call, pops, again


# --- The trace: graph, guards, journal.

PLAIN = (int, float, bool, str, type(None))
# Python's functions that may run while tracing; whatever else is called breaks the graph
PURE = {range, len, int, float, bool, abs, min, max, math.sqrt}
BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    ">": operator.gt,
}


@dataclass
class Trace:
    """Everything that one trace collects."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: dict[fx.Node, str] = field(default_factory=dict)  # placeholder -> source
    guards: dict[str, str] = field(default_factory=dict)  # expression that must hold -> why
    names: dict[str, Any] = field(default_factory=dict)  # objects that generated code mentions
    known: dict[str, Constant | Symbolic] = field(default_factory=dict)  # source -> value
    journal: dict[tuple[int, str], tuple[Lazy, Value]] = field(default_factory=dict)
    fetched: dict[str, str] = field(default_factory=dict)  # source -> name in the body

    def name(self, value: Any) -> str:
        """A name under which generated code finds ``value``."""
        if isinstance(value, PLAIN) and value == value and abs(hash(value)) != hash(math.inf):
            return repr(value)
        base = "_" + str(getattr(value, "__name__", "object")).replace(".", "_")
        count = 0
        while self.names.setdefault(found := f"{base}_{count}" if count else base, value) != value:
            count += 1
        return found

    def read(self, owner: Lazy, step: str, key: Any) -> Lazy:
        """The one way in which host objects are read. It gives what is there *and records it*.

        ``step`` is ``attribute``, ``item`` or ``global``; presence and absence are facts alike.
        """
        self.guards.setdefault(
            f"type({owner.source}) is {self.name(type(owner.value))}", f"its {step} is read"
        )
        if step == "item":
            return Lazy(owner.value[key], f"{owner.source}[{key!r}]")
        if step == "attribute":
            if key not in vars(owner.value):
                raise Unsupported(f"the attribute {key} is not the object's own")
            return Lazy(vars(owner.value)[key], f"{owner.source}.{key}")
        names = f"{owner.source}.__globals__"
        if key in owner.value.__globals__:
            return Lazy(owner.value.__globals__[key], f"{names}[{key!r}]")
        self.guards.setdefault(f"{key!r} not in {names}", "a builtin has that name")
        return Lazy(getattr(builtins, key), f"{self.name(builtins)}.{key}")

    def read_all(self, owner: Lazy) -> list[Value]:
        self.guards.setdefault(f"len({owner.source}) == {len(owner.value)}", "it is iterated")
        return [self.read(owner, "item", i) for i in range(len(owner.value))]

    def look_at(self, value: Value) -> Value:
        """Turn what nobody has looked at into something to compute with, guarding what we learn.
        Containers and objects stay as they are: only what is read of them counts."""
        if not isinstance(value, Lazy):
            return value
        code, found = value.source, value.value
        if code in self.known:
            return self.known[code]
        if isinstance(found, Tensor):
            if type(found) is not Tensor or found.requires_grad:
                raise Unsupported("a tensor of another class, or one that needs a gradient")
            node = self.graph.placeholder(f"arg{len(self.inputs)}")
            self.inputs[node] = code
            node.meta["val"] = torch.empty_like(found, device="meta")
            self.known[code] = Symbolic(node, node.meta["val"])
            self.guards.setdefault(
                f"type({code}) is {self.name(Tensor)}", "its operations were recorded"
            )
            self.guards.setdefault(
                f"{code}.dtype is {self.name(torch)}.{str(found.dtype)[6:]}", "loops' type"
            )
            self.guards.setdefault(
                f"{code}.shape == {tuple(found.shape)}", "the loops have these bounds"
            )
            self.guards.setdefault(
                f"{code}.stride() == {found.stride()}", "the loops read in this order"
            )
            self.guards.setdefault(f"not {code}.requires_grad", "there is no backward pass")
        elif isinstance(found, PLAIN):
            self.known[code] = Constant(found)
            self.guards.setdefault(
                f"type({code}) is {self.name(type(found))}", "used as a constant"
            )
            self.guards.setdefault(
                f"{code} == {self.name(found)}", "its value is baked into the code"
            )
        elif callable(found) or isinstance(found, types.ModuleType):
            self.known[code] = Constant(found)
            self.guards.setdefault(f"{code} is {self.name(found)}", "it was called, or looked into")
        else:
            return value
        return self.known[code]

    def call(self, fn: Any, args: list[Value], pops: int) -> Value:
        """Call ``fn``: at once if it is pure, into the graph if it is torch's, else break."""
        seen = [self.look_at(arg) for arg in args]
        call: list[Value] = [Constant(fn), *args]
        if all(isinstance(value, Constant) for value in seen) and fn in PURE | {*BINARY.values()}:
            return Constant(fn(*(value.value for value in seen if isinstance(value, Constant))))
        name = str(getattr(fn, "__name__", fn))
        ours = fn in BINARY.values() or str(getattr(fn, "__module__", "")).startswith("torch")
        ours = ours or getattr(torch, name, None) is fn
        if not ours or not all(isinstance(value, Constant | Symbolic) for value in seen):
            raise Break(f"{name} is neither pure nor torch's", call, pops)
        try:
            meta = fn(*(v.meta if isinstance(v, Symbolic) else v.value for v in seen))
        except (RuntimeError, NotImplementedError) as error:
            raise Break(f"{name} needs the numbers of a tensor", call, pops) from error
        if not isinstance(meta, Tensor):
            raise Break(f"{name} gives no tensor", call, pops)
        nodes = tuple(v.node if isinstance(v, Symbolic) else v.value for v in seen)
        node = self.graph.call_function(fn, nodes)
        node.meta["val"] = meta
        return Symbolic(node, meta)

    def expression(self, value: Value) -> str:
        """How generated code gets ``value`` after the graph has run."""
        match value:
            case Symbolic():
                return value.node.name
            case Lazy():  # it may be overwritten by the journal, so it is fetched before
                return self.fetched.setdefault(value.source, f"given{len(self.fetched)}")
            case Iteration():
                return "(" + "".join(f"{self.expression(item)}, " for item in value.rest) + ")"
            case Constant():
                return self.name(value.value)


# --- The interpreter: one handler per instruction, registered by name.

Handler = Callable[[Trace, list[Frame], dis.Instruction], None]
OPCODES: dict[str, Handler] = {}
WAYS = ("", "FORWARD_", "BACKWARD_")


def opcode(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            if name in OPCODES:
                raise ValueError(f"{name} is registered twice")
            OPCODES[name] = handler
        return handler

    return register


def instructions(fn: types.FunctionType) -> list[dis.Instruction]:
    return list(dis.get_instructions(fn))


def jump(frame: Frame, offset: int) -> None:
    code = instructions(frame.fn)
    frame.ip = next(i for i, each in enumerate(code) if each.offset == offset)


@opcode("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_LOAD_FAST", "LOAD_CONST", "POP_TOP")
@opcode("STORE_FAST", "STORE_FAST_LOAD_FAST", "COPY", "SWAP", "JUMP_FORWARD", "JUMP_BACKWARD")
@opcode("RESUME", "NOP", "PRECALL", "CACHE", "PUSH_NULL", "TO_BOOL", "NOT_TAKEN", "END_FOR")
def move(trace: Trace, frames: list[Frame], instruction: dis.Instruction) -> None:
    local, stack, arg = frames[-1].local, frames[-1].stack, instruction.argval
    match instruction.opname:
        case "LOAD_CONST":
            stack.append(Constant(arg))
        case "LOAD_FAST" | "LOAD_FAST_CHECK":
            stack.append(local[arg])
        case "LOAD_FAST_LOAD_FAST":
            stack += [local[name] for name in arg]
        case "STORE_FAST":
            local[arg] = stack.pop()
        case "STORE_FAST_LOAD_FAST":
            local[arg[0]] = stack.pop()
            stack.append(local[arg[1]])
        case "COPY":
            stack.append(stack[-arg])
        case "SWAP":
            stack[-1], stack[-arg] = stack[-arg], stack[-1]
        case "POP_TOP":
            stack.pop()
        case "JUMP_FORWARD" | "JUMP_BACKWARD":
            jump(frames[-1], arg)


@opcode("LOAD_GLOBAL")
def load_global(trace: Trace, frames: list[Frame], instruction: dis.Instruction) -> None:
    frame = frames[-1]
    owner = Lazy(frame.fn, trace.name(frame.fn))
    frame.stack.append(trace.read(owner, "global", instruction.argval))


@opcode("LOAD_ATTR", "LOAD_METHOD")
def load_attr(trace: Trace, frames: list[Frame], instruction: dis.Instruction) -> None:
    stack, name = frames[-1].stack, instruction.argval
    owner = stack.pop()
    if isinstance(owner, Lazy) and (id(owner.value), name) in trace.journal:
        stack.append(trace.journal[id(owner.value), name][1])  # stored by this very trace
        return
    seen = trace.look_at(owner)
    if isinstance(seen, Symbolic):
        found = getattr(seen.meta, name)  # shape, dtype, ndim: known while tracing
        if callable(found):
            raise Unsupported(f"the method {name} of a tensor; call torch.{name}")
        stack.append(Constant(found))
    elif isinstance(owner, Lazy):
        stack.append(trace.read(owner, "attribute", name))
    else:
        raise Unsupported(f"the attribute {name} of what the function has made")


@opcode("STORE_ATTR")
def store_attr(trace: Trace, frames: list[Frame], instruction: dis.Instruction) -> None:
    owner, value = frames[-1].stack.pop(), frames[-1].stack.pop()
    if not isinstance(owner, Lazy):
        raise Unsupported("an attribute of what the function has made")
    # Nothing of the caller's changes while tracing: it is noted under the object's identity
    trace.journal[id(owner.value), instruction.argval] = owner, value


@opcode("BINARY_SUBSCR")
def binary_subscr(trace: Trace, frames: list[Frame], instruction: dis.Instruction) -> None:
    stack = frames[-1].stack
    index, owner = trace.look_at(stack.pop()), stack.pop()
    if isinstance(owner, Lazy) and isinstance(index, Constant):
        stack.append(trace.read(owner, "item", index.value))  # the other items cost nothing
    else:
        stack.append(trace.call(operator.getitem, [owner, index], pops=2))


@opcode("BINARY_OP", "COMPARE_OP")
def binary_op(trace: Trace, frames: list[Frame], instruction: dis.Instruction) -> None:
    stack = frames[-1].stack
    right, left = stack.pop(), stack.pop()
    symbol = instruction.argrepr.removeprefix("bool(").rstrip("=)")
    stack.append(trace.call(BINARY[symbol], [left, right], pops=2))


@opcode(*(f"POP_JUMP_{way}IF_{truth}" for way in WAYS for truth in ("TRUE", "FALSE")))
def pop_jump(trace: Trace, frames: list[Frame], instruction: dis.Instruction) -> None:
    value = frames[-1].stack.pop()
    if isinstance(trace.look_at(value), Symbolic):
        # Python finds out, and we come back to this instruction with a bool, which is guarded:
        # each side gets compiled when it is taken for the first time
        raise Break("a branch depends on a tensor's value", [Constant(bool), value], 1, again=True)
    known = trace.call(bool, [value], pops=1)
    if isinstance(known, Constant) and known.value == instruction.opname.endswith("TRUE"):
        jump(frames[-1], instruction.argval)


@opcode("GET_ITER")
def get_iter(trace: Trace, frames: list[Frame], instruction: dis.Instruction) -> None:
    stack = frames[-1].stack
    items = trace.look_at(stack.pop())
    if isinstance(items, Constant):
        stack.append(Iteration([Constant(each) for each in items.value]))
    elif isinstance(items, Lazy):
        stack.append(Iteration(trace.read_all(items)))
    else:
        raise Unsupported("iteration over a tensor")


@opcode("FOR_ITER")
def for_iter(trace: Trace, frames: list[Frame], instruction: dis.Instruction) -> None:
    frame = frames[-1]
    iterator = frame.stack[-1]
    assert isinstance(iterator, Iteration)
    if iterator.rest:
        frame.stack[-1] = Iteration(iterator.rest[1:])
        frame.stack.append(iterator.rest[0])
        return
    frame.stack.pop()
    jump(frame, instruction.argval)
    while instructions(frame.fn)[frame.ip].opname in ("END_FOR", "POP_TOP"):
        frame.ip += 1  # they pop the iterator, which is gone


@opcode("CALL")
def call(trace: Trace, frames: list[Frame], instruction: dis.Instruction) -> None:
    stack = frames[-1].stack
    count = instruction.arg or 0
    args = [stack.pop() for _ in range(count)][::-1]
    target = trace.look_at(stack.pop())
    if not isinstance(target, Constant):
        raise Unsupported("a call of an object")
    if isinstance(target.value, types.FunctionType) and target.value.__module__ == __name__:
        # one of yours: its frame comes on top of ours
        frames.append(Frame(target.value, dict(zip(target.value.__code__.co_varnames, args))))
    else:
        stack.append(trace.call(target.value, args, count + 1))


def interpret(trace: Trace, frames: list[Frame]) -> Value | Break:
    """Run ``frames`` until the outermost returns or something breaks; they are then as they were
    before the instruction that broke."""
    while True:
        frame = frames[-1]
        instruction = instructions(frame.fn)[frame.ip]
        checkpoint, depth = (frame.ip, list(frame.stack)), len(frames)
        frame.ip += 1
        if instruction.opname in ("RETURN_VALUE", "RETURN_CONST"):
            constant = instruction.opname == "RETURN_CONST"
            value = Constant(instruction.argval) if constant else frame.stack.pop()
            frames.pop()
            if not frames:
                return value
            frames[-1].stack.append(value)
            continue
        handler = OPCODES.get(instruction.opname)
        if handler is None:
            raise Unsupported(f"the instruction {instruction.opname} in {frame.fn.__name__}")
        try:
            handler(trace, frames, instruction)
        except Break as found:
            del frames[depth:]
            frame.ip, frame.stack = checkpoint
            return found


# --- Loop IR: lower once, then fuse. A loop is data: scalar operations at each point of a shape.


@dataclass(frozen=True)
class Op:
    """One scalar operation. ``args`` are positions of earlier operations in the list."""

    kind: str  # "load", "const", or a name in C_TEMPLATES
    args: tuple[int, ...] = ()
    what: str | float = 0.0  # the buffer that a load reads; the value of a const


@dataclass(frozen=True)
class Loop:
    """For each point of ``shape``: evaluate ``body``; store its last value in ``out``, or combine
    it over the last dimension."""

    out: str
    shape: tuple[int, ...]
    body: tuple[Op, ...]
    reduce: str = ""  # "sum" or "max"

    @property
    def reads(self) -> list[str]:
        return [str(op.what) for op in self.body if op.kind == "load"]


@dataclass(frozen=True)
class Extern:
    """A node that torch's own kernel computes."""

    out: str
    text: str
    reads: tuple[str, ...]


POINTWISE = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "div",
    torch.exp: "exp",
    torch.sigmoid: "sigmoid",
}
REDUCTIONS = {torch.sum: "sum", torch.amax: "max"}


def lower(node: fx.Node, trace: Trace) -> Loop | Extern:
    """One node on its own. Fusion never comes back here."""
    result = node.meta["val"]
    inputs = [value for value in node.args if isinstance(value, fx.Node)]
    metas = [each.meta["val"] for each in inputs]
    ours = all(m.dtype == torch.float32 and m.is_contiguous() for m in (result, *metas))
    if ours and node.target in POINTWISE:
        body: list[Op] = []
        for value in node.args:
            load = isinstance(value, fx.Node)
            body.append(Op("load", what=value.name) if load else Op("const", what=float(value)))
        body.append(Op(POINTWISE[node.target], tuple(range(len(body)))))
        return Loop(node.name, tuple(result.shape), tuple(body))
    if (
        ours
        and node.target in REDUCTIONS
        and node.args[1:] in [(-1, True), (result.dim() - 1, True)]
    ):
        load = Op("load", what=inputs[0].name)
        return Loop(node.name, tuple(metas[0].shape), (load,), REDUCTIONS[node.target])
    args = ", ".join(v.name if isinstance(v, fx.Node) else trace.name(v) for v in node.args)
    text = f"{trace.name(node.target)}({args})"
    return Extern(node.name, text, tuple(each.name for each in inputs))


def fuse(steps: list[Loop | Extern], kept: set[str]) -> list[Loop | Extern]:
    """Substitute a loop into the only one that reads it. Going backwards, readers have become one
    where they can. Legality is asked (same points, nothing combined), never tried and undone."""
    for producer in reversed(steps):
        readers = [step for step in steps if producer.out in step.reads]
        if producer.out not in kept and len(readers) == 1:
            (reader,) = readers
            if isinstance(producer, Loop) and isinstance(reader, Loop) and not producer.reduce:
                if producer.shape == reader.shape:
                    steps = [s for s in steps if s is not producer]
                    steps[steps.index(reader)] = substitute(producer, reader)
    return steps


def substitute(producer: Loop, reader: Loop) -> Loop:
    """``reader`` with the body of ``producer`` where it loaded that; equal operations are one."""
    new: dict[Op, int] = {}

    def copy(body: tuple[Op, ...]) -> int:
        place: list[int] = []
        for op in body:
            if op == Op("load", what=producer.out) and body is not producer.body:
                place.append(copy(producer.body))
            else:
                moved = replace(op, args=tuple(place[a] for a in op.args))
                place.append(new.setdefault(moved, len(new)))
        return place[-1]

    copy(reader.body)
    return replace(reader, body=tuple(new))


# --- Code generation: C for loops, Python for the wrapper.

C_TEMPLATES = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "exp": "expf({0})",
    "sigmoid": "1.0f / (1.0f + expf(-{0}))",
}
COMBINE = {
    "sum": ("0", "total += v{0};"),
    "max": ("-INFINITY", "total = (v{0} > total || v{0} != v{0}) ? v{0} : total;"),
}


def print_c(loop: Loop, shapes: dict[str, tuple[int, ...]]) -> tuple[str, list[str]]:
    """The loop as a C function of (output, inputs ...), and its inputs' names. Names of buffers
    are not in the text, so equal layers have equal text and share a library."""
    inputs = list(dict.fromkeys(loop.reads))
    pointers = "".join(f", const float *restrict in{i}" for i in range(len(inputs)))
    lines = ["#include <math.h>", f"void kernel(float *restrict out{pointers}) {{"]
    indent = "  "
    for depth, size in enumerate(loop.shape):
        if loop.reduce and depth == len(loop.shape) - 1:
            lines.append(f"{indent}double total = {COMBINE[loop.reduce][0]};")
        lines.append(f"{indent}for (long i{depth} = 0; i{depth} < {size}; i{depth}++) {{")
        indent += "  "
    for i, op in enumerate(loop.body):
        if op.kind == "load":
            number = inputs.index(str(op.what))
            text = f"in{number}[{index(shapes[str(op.what)], len(loop.shape))}]"
        elif op.kind == "const":
            text = f"{op.what!r}f".replace("inff", "INFINITY").replace("nanf", "NAN")
        else:
            text = C_TEMPLATES[op.kind].format(*(f"v{a}" for a in op.args))
        lines.append(f"{indent}float v{i} = {text};")
    last = len(loop.body) - 1
    if loop.reduce:
        lines += [indent + COMBINE[loop.reduce][1].format(last), f"{indent[2:]}}}"]
        indent = indent[2:]
        lines.append(f"{indent}out[{index((*loop.shape[:-1], 1), len(loop.shape))}] = total;")
    else:
        lines.append(f"{indent}out[{index(loop.shape, len(loop.shape))}] = v{last};")
    while indent:
        indent = indent[2:]
        lines.append(f"{indent}}}")
    return "\n".join(lines) + "\n", inputs


def index(shape: tuple[int, ...], rank: int) -> str:
    """Where a dense buffer of ``shape`` has the loop's point: sizes of 1 are broadcast."""
    terms = []
    step = 1
    for depth, size in zip(reversed(range(rank)), reversed(shape)):
        if size != 1:
            terms.append(f"{step} * i{depth}" if step != 1 else f"i{depth}")
        step *= size
    return " + ".join(reversed(terms)) or "0"


FOLDER = Path(tempfile.mkdtemp(prefix="from_scratch_"))


def build(text: str) -> Callable[..., None]:
    """Compile C text, or find it compiled: files are named after what is in them."""
    library = FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.so"
    if not library.exists():
        source = library.with_suffix(".c")
        source.write_text(text)
        command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", str(source), "-lm", "-o"]
        subprocess.run([*command, str(library)], check=True)
    return ctypes.CDLL(str(library)).kernel


def wrapper(trace: Trace, outputs: set[str], log: list[str]) -> Iterator[str]:
    """The graph as lines of Python: buffers, kernels, library calls."""
    for node in reversed(trace.graph.nodes):
        if not node.users and node.name not in outputs and node.op != "placeholder":
            trace.graph.erase_node(node)  # nobody reads it
    nodes = [node for node in trace.graph.nodes if node.op == "call_function"]
    for node, source in trace.inputs.items():
        yield f"{node.name} = {source}"
    shapes = {n.name: tuple(n.meta["val"].shape) for n in trace.graph.nodes}
    steps = fuse([lower(node, trace) for node in nodes], outputs)
    for step in steps:
        if isinstance(step, Extern):
            yield f"{step.out} = {step.text}"
        else:
            text, inputs = print_c(step, shapes)
            log.append(text)
            made = f"{trace.name(torch.empty)}({shapes[step.out]})"
            kernel = trace.name(build(text))
            pointer = trace.name(ctypes.c_void_p)
            pointers = ", ".join(f"{pointer}({x}.data_ptr())" for x in (step.out, *inputs))
            yield f"{step.out} = {made}; {kernel}({pointers})"


# --- Dispatch, and resuming.


Start = Callable[[Trace, list[Lazy]], list[Frame]]


class Compiled:
    """A compiled function, and the owner of all code made for it.

    ``start`` makes the frames to begin with from the values of the parameters: one fresh frame for
    the user's function, the frames in mid-flight for what comes after a break.
    """

    def __init__(self, name: str, parameters: list[str], start: Start) -> None:
        self.__name__, self.parameters, self.start = name, parameters, start
        self.checks: list[Callable[..., bool]] = []
        self.bodies: list[Callable[..., Any]] = []
        self.resumes: dict[object, Compiled] = {}
        self.log: list[str] = []
        self.dispatch: Callable[..., Any] = self.miss

    def __call__(self, *args: Any) -> Any:
        return self.dispatch(*args)

    def miss(self, *args: Any) -> Any:
        """No version fits: make one, and a dispatcher that knows it."""
        trace = Trace()
        frames = self.start(trace, [Lazy(v, name) for name, v in zip(self.parameters, args)])
        result = interpret(trace, frames)
        body = self.body(trace, result, frames)
        # In the order of the reads: what a check fetches has been checked to be there
        checks = [f"{code}  # {why}" for code, why in trace.guards.items()] or ["True"]
        check = "return (\n        " + "\n        and ".join(checks) + "\n    )"
        self.checks.append(self.function("check", check, trace.names))
        self.bodies.append(self.function("body", body, trace.names))
        lines = []
        names: dict[str, Any] = {"miss": self.miss}
        given = ", ".join(self.parameters)
        for i, (check_i, body_i) in enumerate(zip(self.checks, self.bodies)):
            lines.append(f"if check_{i}({given}): return body_{i}({given})")
            names |= {f"check_{i}": check_i, f"body_{i}": body_i}
        lines.append(f"return miss({given})")
        self.dispatch = self.function(self.__name__, "\n    ".join(lines), names)
        return self.bodies[-1](*args)

    def body(self, trace: Trace, result: Value | Break, frames: list[Frame]) -> str:
        """What runs instead of the function: graph, effects, the break, what comes after it."""
        after: list[str] = []
        kept: list[Value] = []
        for (_, name), (owner, value) in trace.journal.items():
            after.append(f"{owner.source}.{name} = {trace.expression(trace.look_at(value))}")
            kept.append(value)
        if isinstance(result, Break):
            resume, state = self.resume(result, frames)
            function, *args = map(trace.expression, result.call)
            after.append(f"result = {function}({', '.join(args)})  # {result}")
            given = "".join(f", {trace.expression(value)}" for value in state)
            after.append(f"return {trace.name(resume)}(result{given})")
            kept += [*result.call, *state]
        else:
            after.append(f"return {trace.expression(result)}")
            kept.append(result)
        outputs = {node.name for value in kept for node in nodes_of(value)}
        fetched = [f"{name} = {source}" for source, name in trace.fetched.items()]
        return "\n    ".join([*wrapper(trace, outputs, self.log), *fetched, *after])

    def resume(self, found: Break, frames: list[Frame]) -> tuple[Compiled, list[Value]]:
        """The function for what comes after a break, and the values to give it: for each frame, the
        innermost included, its locals and its stack. Then it is: put these back, and go on."""
        top = frames[-1]
        del top.stack[len(top.stack) - found.pops :]
        top.ip += 0 if found.again else 1
        state = [value for frame in frames for value in (*frame.local.values(), *frame.stack)]
        iterators = [isinstance(value, Iteration) for value in state]
        places = [(f.fn, f.ip, tuple(f.local), len(f.stack)) for f in frames]

        def start(trace: Trace, values: list[Lazy]) -> list[Frame]:
            given: Iterator[Value] = iter(
                Iteration(trace.read_all(v)) if again else v
                for v, again in zip(values[1:], iterators)
            )
            made = []
            for fn, ip, names, depth in places:
                local = {name: next(given) for name in names}
                made.append(Frame(fn, local, [next(given) for _ in range(depth)], ip))
            made[-1].stack.append(values[0])
            return made

        key = tuple(places), tuple(iterators)
        if key not in self.resumes:
            name = f"after_{top.fn.__name__}_{top.ip}"
            parameters = ["result", *(f"v{i}" for i in range(len(state)))]
            self.resumes[key] = made = Compiled(name, parameters, start)
            made.log, made.resumes = self.log, self.resumes  # a loop comes back to the same place
        return self.resumes[key], state

    def function(self, name: str, body: str, names: dict[str, Any]) -> Callable[..., Any]:
        """A Python function with our parameters, from source that a person can read."""
        source = f"def {name}({', '.join(self.parameters)}):\n    {body}\n"
        self.log.append(source)
        space = dict(names)
        exec(source, space)
        return space[name]


def nodes_of(value: Value) -> Iterator[fx.Node]:
    match value:
        case Symbolic():
            yield value.node
        case Iteration():
            for item in value.rest:
                yield from nodes_of(item)


def compile(fn: types.FunctionType) -> Compiled:
    """Give back what acts like ``fn``. It holds all code made for it: no hook, no global cache."""
    names = list(fn.__code__.co_varnames[: fn.__code__.co_argcount])
    return Compiled(fn.__name__, names, lambda trace, values: [Frame(fn, dict(zip(names, values)))])


# --- Try it.

SCALE = 0.5


@dataclass
class Stats:
    verbose: bool
    steps: int = 0


def swish(x: Tensor, beta: float) -> Tensor:
    return x * torch.sigmoid(x * beta)


def layer(x: Tensor, beta: float, stats: Stats) -> Tensor:
    y = x + SCALE * swish(x, beta)
    stats.steps += 1
    if stats.verbose:
        print("  layer", stats.steps)
    return y


def block(inputs: list[Tensor], layers: int, stats: Stats) -> Tensor:
    x = inputs[0]
    for _ in range(layers):
        x = layer(x, 1.5, stats)
    shifted = torch.exp(x - torch.amax(x, -1, True))
    return shifted / torch.sum(shifted, -1, True)


def replaced(stats: Stats) -> int:
    before = stats.steps
    stats.steps = before + 1
    return before


def signed(x: Tensor) -> Tensor:
    if torch.sum(x) > 0:
        return torch.relu(x)
    return torch.tanh(torch.mm(x, torch.t(x)))


def compare(fn: types.FunctionType, compiled: Compiled, make: Callable[[], list[Any]]) -> None:
    """Results, and what happened to the arguments, equal eager's."""
    ours, eager = make(), make()
    torch.testing.assert_close(compiled(*ours), fn(*eager), rtol=1e-5, atol=1e-6)
    assert [x for x in ours if isinstance(x, Stats)] == [x for x in eager if isinstance(x, Stats)]
    resumed = {r.__name__: len(r.bodies) for r in compiled.resumes.values()}
    print(f"{fn.__name__}: {len(compiled.bodies)} versions, after breaks: {resumed or 'none'}")


def main() -> None:
    global SCALE
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    compiled = compile(block)
    print("One graph, the caller's object is written after it; a second call is a hit:")
    compare(block, compiled, lambda: [[x, x], 2, Stats(False)])
    first = "\n".join(compiled.log)
    compare(block, compiled, lambda: [[x * 2], 2, Stats(False)])
    assert len(compiled.bodies) == 1
    print("A global is a fact like any other:")
    SCALE = 0.25
    compare(block, compiled, lambda: [[x], 2, Stats(False)])
    assert len(compiled.bodies) == 2
    print("A break in an inlined function, within the caller's loop:")
    compare(block, compiled, lambda: [[x], 2, Stats(True)])
    assert len(compiled.bodies) == 3
    assert len(compiled.resumes) == 1, "both steps of the loop go on at the same place"
    compare(replaced, compile(replaced), lambda: [Stats(False, 3)])
    print("A branch on what a tensor holds, and a library call:")
    branching = compile(signed)
    compare(signed, branching, lambda: [x.abs()])
    compare(signed, branching, lambda: [-x.abs()])
    assert len(branching.bodies) == 1, "up to the branch it is one function"
    print(f"\nEverything that was generated for the first call:\n\n{first}")


if __name__ == "__main__":
    main()
