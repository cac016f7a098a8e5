"""A PyTorch compiler from scratch, in one file: trace, guard, lower, fuse, generate C, run.

This is the design of Torchsmith, taught on the smallest program that still has every stage. It
uses none of our packages; read it top to bottom, then run it::

    python docs/from_scratch.py

The stages, in the order of one program's way through:

1. *Trace*: interpret the function's bytecode with symbolic values; tensor operations become nodes
   of an fx graph, plain Python runs at once.
2. *Guard*: every fact about the inputs that the trace relied on becomes a check.
3. *Lower*: each node becomes scalar operations in one loop over the elements.
4. *Generate*: print the loop as C, compile it, call it with raw pointers.
5. *Dispatch*: check the guards; on a hit call the compiled code, on a miss trace again.

What is left out here and is most of the work in the real packages: graph breaks, side effects,
reductions, views, dynamic shapes, GPUs. The real interpreter covers Python 3.11 to 3.13; the toy
knows the instructions that its examples need and says so when it meets another.
"""

from __future__ import annotations

import ctypes
import dis
import hashlib
import operator
import subprocess
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

# ------------------------------------------------------------------------------------------------
# Stage 0: values. What the interpreter computes with.
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """How to fetch a value again when the compiled code runs: an expression over the arguments."""

    code: str

    def item(self, index: int) -> Source:
        return Source(f"{self.code}[{index}]")


@dataclass
class Constant:
    """A Python object that is fully known while tracing."""

    value: Any


@dataclass
class Symbolic:
    """A tensor: a node of the graph, plus a stand-in without data that answers shape and dtype."""

    node: fx.Node
    meta: Tensor  # on the "meta" device: torch computes shapes and dtypes for us, and no numbers


@dataclass
class Lazy:
    """An argument that nobody has looked at yet. Looking at it costs a guard, so we wait."""

    value: Any
    source: Source


Value = Constant | Symbolic | Lazy


# ------------------------------------------------------------------------------------------------
# Stage 1 and 2: trace and guard.
# ------------------------------------------------------------------------------------------------


@dataclass
class Guard:
    """One fact. ``code`` is a Python expression over the arguments that must stay true."""

    code: str
    why: str


class Unsupported(Exception):
    """The toy's only kind of graph break: it gives up and says where."""


@dataclass
class Trace:
    """Everything that one trace collects."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: list[Source] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    known: dict[str, Value] = field(default_factory=dict)  # one value per source

    def look_at(self, value: Value) -> Constant | Symbolic:
        """Turn an untouched argument into something to compute with, and guard what we learned."""
        if not isinstance(value, Lazy):
            return value
        code = value.source.code
        if code in self.known:
            return self.look_at(self.known[code])
        made: Constant | Symbolic
        if isinstance(value.value, Tensor):
            tensor = value.value
            node = self.graph.placeholder(f"arg{len(self.inputs)}")
            self.inputs.append(value.source)
            made = Symbolic(node, torch.empty_like(tensor, device="meta"))
            self.guard(f"type({code}) is Tensor", "its operations were recorded")
            self.guard(f"{code}.dtype is {tensor.dtype}", "the loop computes in this type")
            self.guard(f"{code}.shape == {tuple(tensor.shape)}", "the loop has these bounds")
            self.guard(f"{code}.is_contiguous()", "the loop reads memory in this order")
        else:
            made = Constant(value.value)
            self.guard(f"type({code}) is {type(value.value).__name__}", "used as a constant")
            self.guard(f"{code} == {value.value!r}", "its value is baked into the code")
        self.known[code] = made
        return made

    def guard(self, code: str, why: str) -> None:
        self.guards.append(Guard(code, why))

    def call(self, fn: Callable[..., Any], args: list[Value]) -> Value:
        """Call ``fn``: into the graph when a tensor takes part, at once otherwise."""
        seen = [self.look_at(arg) for arg in args]
        if not any(isinstance(value, Symbolic) for value in seen):
            return Constant(fn(*(value.value for value in seen if isinstance(value, Constant))))
        meta = fn(*(v.meta if isinstance(v, Symbolic) else v.value for v in seen))
        nodes = tuple(v.node if isinstance(v, Symbolic) else v.value for v in seen)
        node = self.graph.call_function(fn, nodes)
        node.meta["shape"], node.meta["dtype"] = tuple(meta.shape), meta.dtype
        return Symbolic(node, meta)


BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}


def interpret(trace: Trace, fn: types.FunctionType, args: list[Value]) -> Value:
    """Run ``fn``'s bytecode on symbolic values. Calls of other Python functions are inlined."""
    local = dict(zip(fn.__code__.co_varnames, args))
    stack: list[Any] = []
    code = list(dis.get_instructions(fn))
    at = {instruction.offset: i for i, instruction in enumerate(code)}
    ip = 0

    def truth() -> bool:
        """The condition of a jump. A tensor's value is not known while tracing."""
        value = trace.look_at(stack.pop())
        if isinstance(value, Symbolic):
            raise Unsupported(f"a branch on a tensor's value in {fn.__name__}")
        return bool(value.value)

    while True:
        instruction = code[ip]
        name, arg = instruction.opname, instruction.argval
        ip += 1
        if name in (
            "RESUME",
            "NOP",
            "PRECALL",
            "CACHE",
            "PUSH_NULL",
            "COPY_FREE_VARS",
            "NOT_TAKEN",
        ):
            pass
        elif name == "LOAD_FAST" or name == "LOAD_FAST_CHECK":
            stack.append(local[arg])
        elif name == "LOAD_FAST_LOAD_FAST":
            stack.extend(local[each] for each in arg)
        elif name == "STORE_FAST":
            local[arg] = stack.pop()
        elif name == "LOAD_CONST":
            stack.append(Constant(arg))
        elif name == "RETURN_CONST":
            return Constant(arg)
        elif name == "LOAD_GLOBAL":
            stack.append(Constant(fn.__globals__.get(arg, getattr(__builtins__, arg, None))))
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            owner = trace.look_at(stack.pop())
            if isinstance(owner, Symbolic):
                found = getattr(owner.meta, arg)  # shape, dtype, ndim: known while tracing
                if callable(found):
                    raise Unsupported(f"the method {arg}() of a tensor; call torch.{arg} instead")
                stack.append(Constant(found))
            else:
                stack.append(Constant(getattr(owner.value, arg)))
        elif name == "BINARY_SUBSCR":
            index, owner = trace.look_at(stack.pop()), stack.pop()
            if isinstance(owner, Lazy) and isinstance(index, Constant):
                # looking into a container touches one item, and only that one is guarded
                stack.append(Lazy(owner.value[index.value], owner.source.item(index.value)))
            else:
                stack.append(trace.call(operator.getitem, [owner, index]))
        elif name in ("BINARY_OP", "COMPARE_OP"):
            right, left = stack.pop(), stack.pop()
            symbol = instruction.argrepr.removeprefix("bool(").rstrip("=)") or "=="
            stack.append(trace.call(BINARY[symbol], [left, right]))
        elif name in ("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE"):
            if not truth():
                ip = at[arg]
        elif name in ("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE"):
            if truth():
                ip = at[arg]
        elif name == "GET_ITER":
            items = trace.look_at(stack.pop())
            if isinstance(items, Symbolic):
                raise Unsupported("iteration over a tensor")
            stack.append(iter([Constant(each) for each in items.value]))
        elif name == "FOR_ITER":
            step: Iterator[Value] = stack[-1]
            following = next(step, None)
            if following is None:
                stack.pop()
                ip = at[arg]
                while code[ip].opname in ("END_FOR", "POP_TOP"):
                    ip += 1
            else:
                stack.append(following)
        elif name in ("JUMP_BACKWARD", "JUMP_FORWARD"):
            ip = at[arg]
        elif name == "CALL":
            operands = [stack.pop() for _ in range(instruction.arg or 0)][::-1]
            target = stack.pop()
            if isinstance(target.value, types.FunctionType) and target.value.__module__ == __name__:
                stack.append(interpret(trace, target.value, operands))  # inline it
            else:
                stack.append(trace.call(target.value, operands))
        elif name == "RETURN_VALUE":
            return trace.look_at(stack.pop())
        else:
            raise Unsupported(f"the instruction {name} in {fn.__name__}")


# ------------------------------------------------------------------------------------------------
# Stage 3: lower. A kernel is data: a list of scalar operations, evaluated at each element.
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Op:
    """One scalar operation. ``args`` are positions of earlier operations in the list."""

    kind: str  # "load", "const", or a name in C_TEMPLATES
    args: tuple[int, ...] = ()
    what: float | int = 0  # which input a load reads; the value of a const


@dataclass(frozen=True)
class Kernel:
    """``for i in range(elements)``: evaluate ``body``, store its last value. Names are positions,
    so two equal programs are equal kernels, whatever their variables were called."""

    elements: int
    body: tuple[Op, ...]

    def key(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]


OPS = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "div",
    torch.exp: "exp",
    torch.relu: "relu",
    torch.sigmoid: "sigmoid",
    torch.tanh: "tanh",
}


def lower(trace: Trace, result: Symbolic) -> Kernel:
    """All nodes in one loop: since every node here is elementwise and of one shape, every consumer
    finds its operand in a register. That is vertical fusion; real graphs need to ask when."""
    shape = tuple(result.meta.shape)
    body: list[Op] = []
    position: dict[fx.Node, int] = {}

    def operand(value: Any) -> int:
        if isinstance(value, fx.Node):
            return position[value]
        body.append(Op("const", what=float(value)))
        return len(body) - 1

    for number, node in enumerate(trace.graph.nodes):
        if node.op == "placeholder":
            body.append(Op("load", what=number))
        else:
            if node.meta["shape"] != shape or node.meta["dtype"] != torch.float32:
                raise Unsupported(f"{node.name}: only float32 of one shape has a loop here")
            if node.target not in OPS:
                raise Unsupported(f"{node.target} has no lowering here")
            args = tuple(operand(value) for value in node.args)
            body.append(Op(OPS[node.target], args))
        position[node] = len(body) - 1
    # Common subexpressions: equal operations are one operation, since they are frozen data.
    return deduplicate(Kernel(result.meta.numel(), tuple(body)), position[result.node])


def deduplicate(kernel: Kernel, last: int) -> Kernel:
    """One linear walk that keeps the first of equal operations and drops what ``last`` ignores."""
    needed = {last}
    for i in range(last, -1, -1):
        if i in needed:
            needed.update(kernel.body[i].args)
    new: dict[Op, int] = {}
    renamed: dict[int, int] = {}
    for i, op in enumerate(kernel.body):
        if i in needed:
            op = Op(op.kind, tuple(renamed[a] for a in op.args), op.what)
            renamed[i] = new.setdefault(op, len(new))
    return Kernel(kernel.elements, tuple(new))


# ------------------------------------------------------------------------------------------------
# Stage 4: generate C, compile once per distinct kernel, call with raw pointers.
# ------------------------------------------------------------------------------------------------

C_TEMPLATES = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "exp": "expf({0})",
    "relu": "({0} > 0 ? {0} : ({0} != {0} ? {0} : 0))",  # NaN stays NaN, as in eager
    "sigmoid": "1.0f / (1.0f + expf(-{0}))",
    "tanh": "tanhf({0})",
}


def print_c(kernel: Kernel) -> str:
    """The kernel as a C function of (output, inputs ...)."""
    inputs = sorted({op.what for op in kernel.body if op.kind == "load"})
    pointers = "".join(f", const float *restrict in{i}" for i in inputs)
    lines = ["#include <math.h>", f"void kernel(float *restrict out{pointers}) {{"]
    lines.append(f"    for (long i = 0; i < {kernel.elements}; i++) {{")
    for i, op in enumerate(kernel.body):
        if op.kind == "load":
            text = f"in{op.what}[i]"
        elif op.kind == "const":
            text = f"{op.what!r}f"
        else:
            text = C_TEMPLATES[op.kind].format(*(f"v{a}" for a in op.args))
        lines.append(f"        float v{i} = {text};")
    lines += [f"        out[i] = v{len(kernel.body) - 1};", "    }", "}"]
    return "\n".join(lines) + "\n"


FOLDER = Path(tempfile.mkdtemp(prefix="from_scratch_"))


def build(kernel: Kernel) -> Callable[..., None]:
    """Compile the kernel, or find it compiled: equal layers of a model share one library."""
    library = FOLDER / f"{kernel.key()}.so"
    if not library.exists():
        source = library.with_suffix(".c")
        source.write_text(print_c(kernel))
        command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", str(source), "-lm", "-o"]
        subprocess.run([*command, str(library)], check=True)
    return ctypes.CDLL(str(library)).kernel


# ------------------------------------------------------------------------------------------------
# Stage 5: dispatch.
# ------------------------------------------------------------------------------------------------


class Compiled:
    """A compiled function: entries of (check, body), tried in order; a miss makes a new entry."""

    def __init__(self, fn: types.FunctionType) -> None:
        self.fn = fn
        self.names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
        self.entries: list[tuple[Callable[..., bool], Callable[..., Any]]] = []
        self.log: list[str] = []

    def __call__(self, *args: Any) -> Any:
        for check, body in self.entries:
            if check(*args):
                return body(*args)
        return self.miss(*args)

    def miss(self, *args: Any) -> Any:
        trace = Trace()
        lazy: list[Value] = [Lazy(value, Source(n)) for n, value in zip(self.names, args)]
        result = trace.look_at(interpret(trace, self.fn, lazy))
        if isinstance(result, Constant):
            body = self.function("return constant", constant=result.value)
        else:
            kernel = lower(trace, result)
            pointers = "".join(f", p({source.code}.data_ptr())" for source in trace.inputs)
            lines = [
                f"out = empty({tuple(result.meta.shape)})",
                f"kernel(p(out.data_ptr()){pointers})",
                "return out",
            ]
            names = {"kernel": build(kernel), "empty": torch.empty, "p": ctypes.c_void_p}
            body = self.function("\n    ".join(lines), **names)
            self.log.append(print_c(kernel))
        # cheap checks first, and the short circuit of `and` does the rest
        checks = " and ".join(guard.code for guard in trace.guards) or "True"
        check = self.function(f"return {checks}", torch=torch, Tensor=Tensor)
        self.entries.insert(0, (check, body))
        return body(*args)

    def function(self, body: str, **names: Any) -> Callable[..., Any]:
        """A Python function with the user's parameters, from source that a person can read."""
        source = f"def generated({', '.join(self.names)}):\n    {body}\n"
        self.log.append(source)
        exec(source, names)
        return names["generated"]


# ------------------------------------------------------------------------------------------------
# Try it.
# ------------------------------------------------------------------------------------------------


def swish(x: Tensor, beta: float) -> Tensor:
    return x * torch.sigmoid(x * beta)


def block(inputs: list[Tensor], layers: int, beta: float) -> Tensor:
    x = inputs[0]
    for _ in range(layers):
        x = x + swish(x, beta)
    if x.shape[0] > 100:
        return x
    return torch.tanh(x)


def main() -> None:
    compiled = Compiled(block)
    x, unused = torch.randn(4, 8), torch.randn(3)
    for args in (([x, unused], 2, 1.5), ([x * 2, unused], 2, 1.5), ([x, unused], 3, 1.5)):
        error = (compiled(*args) - block(*args)).abs().max()
        print(f"layers={args[1]}: {len(compiled.entries)} entries, largest difference {error:.1e}")
        assert error < 1e-5
    print("\nEverything that was generated for the first call:\n")
    print("\n".join(compiled.log[:3]))
    assert len(compiled.entries) == 2


if __name__ == "__main__":
    main()
