"""Prints a plan as a plain Python module with one function: the program that runs.

Everything that has a name is written by name (``torch.mm``, ``torch.float32``), so the text alone
can be kept and executed by another process. What has none (a Python callable made on the fly) is
bound from outside; ``Wrapper.bindings`` lists it.
"""

from __future__ import annotations

import importlib
import keyword
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from torchsmith_fx_backend._src.codegen.runs import runs
from torchsmith_fx_backend._src.loops.index import Const, Index, Sym, mul, product, render
from torchsmith_fx_backend._src.loops.ir import Kernel
from torchsmith_fx_backend._src.runtime.graphs import Wrapper
from torchsmith_fx_backend._src.runtime.progress import WRITTEN
from torchsmith_fx_backend._src.runtime.support import conform
from torchsmith_fx_backend._src.schedule.plan import (
    Allocate,
    BindSymbol,
    Bump,
    ExternCall,
    Free,
    Launch,
    Name,
    Plan,
)

_SUPPORT = "torchsmith_fx_backend._src.runtime.support"
_ADDRESSES = "torchsmith_fx_backend._src.runtime.addresses"
_MAKERS = {  # operators -> the module whose import makes them
    "torch.ops.torchsmith.": "torchsmith_kernels",
    "torch.ops.torchsmith_fx_backend.exact_": "torchsmith_fx_backend._src.runtime.products",
}

_SUMS = ("addmm", "baddbmm", "bmm", "cat", "dot", "matmul", "mm", "mv")  # which take out=
_FUNCTIONS = (
    *("_adaptive_avg_pool2d", "_conj", "_embedding_bag", "_fft_c2c", "_fft_c2r", "_fft_r2c"),
    *("_linalg_eigh", "_linalg_solve_ex", "abs", "as_strided", "bincount", "clone", "complex"),
    *("convolution", "cos", "cumsum", "embedding", "exp", "flip", "gather", "grid_sampler_2d"),
    *("index_add", "index_copy", "index_select", "log", "log2", "logcumsumexp"),
    *("native_batch_norm", "native_group_norm", "native_layer_norm", "nonzero", "roll"),
    *("scatter_add", "sin", "sort", "sqrt", "tanh", "topk", "tril", "triu", "view_as_complex"),
    *("view_as_real", "zeros_like"),
)
_METHODS = (
    *("add.Tensor", "div.Tensor", "expand.default", "mul.Tensor", "permute.default", "select.int"),
    *("squeeze.dim", "sub.Tensor", "t.default", "transpose.int", "unsqueeze.default"),
    "view.default",
)
_LINEAR_ALGEBRA = ("cholesky_ex", "inv_ex", "lu_factor_ex", "qr")
# aten overload -> the function of the same meaning whose call is cheaper (arguments are not boxed),
# and whether it takes out=
_DIRECT: dict[str, tuple[str, bool]] = {
    **{f"aten.{name}.default": (f"torch.{name}", name in _SUMS) for name in _SUMS + _FUNCTIONS},
    **{f"aten.{name}": (f"torch.Tensor.{name.partition('.')[0]}", False) for name in _METHODS},
    **{f"aten.linalg_{n}.default": (f"torch.linalg.{n}", False) for n in _LINEAR_ALGEBRA},
    "aten.select_scatter.out": (f"{_SUPPORT}.write_place", False),
    "aten.slice_scatter.out": (f"{_SUPPORT}.write_slice", False),
    **{
        f"aten.{name}.default": (f"torch.nn.functional.{name}", False)
        for name in ("linear", "scaled_dot_product_attention")
    },
}

_NAMED_MODULES = frozenset(
    {"torch", "operator", "_operator", "math", "torchsmith_kernels", "torchsmith_fx_backend"}
)
_NUMBER = -(1 << 63)  # marks a word that is no address
_HUGE_BYTES = 4 * 1024 * 1024  # fresh buffers from this size on ask for huge pages


@dataclass
class _Printer:
    plan: Plan
    pointers: bool
    locals: set[str]
    header: dict[str, str] = field(default_factory=dict)  # global name -> expression
    globals: dict[str, str] = field(default_factory=dict)  # expression -> global name
    bindings: dict[str, object] = field(default_factory=dict)
    # elements that are part of another tensor: its name, the place there, bytes of an element
    stacked: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    owned: set[str] = field(default_factory=set)  # in memory of the wrapper's own: no views
    words: str = "words"  # the local that holds the arguments of many launches
    count: int = 0  # of these words
    places: dict[str, int] = field(default_factory=dict)  # those that tell where tensors begin
    lines: list[str] = field(default_factory=list)
    texts: dict[str, int] = field(default_factory=dict)  # of computed sizes, see ``computed``

    # ------------------------------------------------------------------------------- names

    def constant(self, expression: str, wanted: str) -> str:
        """The module-level name of ``expression``."""
        name = self.globals.get(expression)
        if name is None:
            name = wanted
            while name in self.locals or name in self.header or name in self.bindings:
                name = f"torch_{name}"
            self.globals[expression] = name
            self.header[name] = expression
        return name

    def bind(self, value: object, wanted: str) -> str:
        """The global name under which ``value`` is put into the module from outside."""
        for name, bound in self.bindings.items():
            if bound is value:
                return name
        number = 0
        while f"{wanted}_{number}" in self.locals | self.header.keys() | self.bindings.keys():
            number += 1
        self.bindings[f"{wanted}_{number}"] = value
        return f"{wanted}_{number}"

    # ------------------------------------------------------------------------------- values

    def value(self, argument: object) -> str:
        """A plan argument as Python text."""
        match argument:
            case Name(name):
                return name
            case Index():
                return self.number(argument)
            case None | bool() | int() | str():
                return repr(argument)
            case float():
                return repr(argument) if math.isfinite(argument) else f'float("{argument}")'
            case complex():
                return repr(argument)
            case tuple() if argument and all(isinstance(a, Index | int) for a in argument):
                return self.sizes(argument)
            case tuple():
                inner = ", ".join(self.value(a) for a in argument)
                return f"({inner},)" if len(argument) == 1 else f"({inner})"
            case list():
                return f"[{', '.join(self.value(a) for a in argument)}]"
            case slice():
                parts = (argument.start, argument.stop, argument.step)
                return f"slice({', '.join(self.value(p) for p in parts)})"
            case dict():
                items = (f"{self.value(k)}: {self.value(v)}" for k, v in argument.items())
                return f"{{{', '.join(items)}}}"
            case torch.dtype() | torch.memory_format() | torch.layout():
                text = str(argument)
                return self.constant(text, text.removeprefix("torch."))
            case torch.device():
                return self.device(argument)
        return self.bind(argument, "object")

    def device(self, device: torch.device) -> str:
        """A device as a module-level constant."""
        text = f'torch.device("{device}")'
        return self.constant(text, str(device).replace(":", ""))

    def sizes(self, sizes: Sequence[Index | int]) -> str:
        """A tuple of size expressions."""
        inner = ", ".join(map(self.value, sizes))
        text = f"({inner},)" if len(sizes) == 1 else f"({inner})"
        return text if all(isinstance(n, Const | int) for n in sizes) else self.computed(text)

    def number(self, size: Index) -> str:
        """A size expression."""
        text = render(size)
        return text if isinstance(size, Const | Sym) else self.computed(text)

    def computed(self, text: str) -> str:
        """A mark for an expression, of which ``_computed_once`` makes a name if it comes again."""
        return f"\0{self.texts.setdefault(text, len(self.texts))}\0"

    # -------------------------------------------------------------------------------- steps

    def line(self, text: str) -> None:
        self.lines.append(f"    {text}" if text else "")

    def comment(self, origins: Sequence[str]) -> None:
        for origin in origins:
            for text in origin.splitlines():
                self.line(f"# {text}")

    def allocate(self, step: Allocate) -> None:
        layout = step.layout
        own = step.reuse is None or step.reuse in self.owned
        if own:
            self.owned.add(step.name)
        if step.reuse is not None:
            if step.as_is and (own or Name(step.name) not in self.plan.outputs):
                self.line(f"{step.name} = {step.reuse}  # reused")
                return
            recycle = self.constant(f"{_SUPPORT}.reuse", "reuse")
            self.line(
                f"{step.name} = {recycle}({step.reuse}, {self.sizes(layout.size)}, "
                f"{self.sizes(layout.stride)}, {self.value(layout.dtype)})"
            )
            return
        empty = self.constant("torch.empty_strided", "empty_strided")
        self.line(
            f"{step.name} = {empty}({self.sizes(layout.size)}, {self.sizes(layout.stride)}, "
            f"dtype={self.value(layout.dtype)}, device={self.device(layout.device)})"
        )
        size_in_bytes = mul(product(layout.size), Const(layout.dtype.itemsize))
        if (
            self.pointers
            and layout.device.type == "cpu"
            and isinstance(size_in_bytes, Const)
            and size_in_bytes.value >= _HUGE_BYTES
        ):
            advise = self.constant(f"{_SUPPORT}.advise_huge", "advise_huge")
            self.line(f"{advise}({step.name}.data_ptr(), {size_in_bytes.value})")

    def allocate_each(self, steps: Sequence[Allocate]) -> None:
        """Single elements that lie side by side: addresses are all that is needed of each."""
        layout, stack = steps[0].layout, f"{steps[0].name}_and_others"
        while {stack, f"{stack}_start"} & self.locals:
            stack += "_"
        self.locals |= {stack, f"{stack}_start"}
        size = layout.dtype.itemsize
        self.stacked.update((step.name, (stack, i, size)) for i, step in enumerate(steps))
        empty = self.constant("torch.empty", "empty")
        dtype, device = self.value(layout.dtype), self.device(layout.device)
        self.line(f"{stack} = {empty}({len(steps)}, dtype={dtype}, device={device})")
        self.line(f"{stack}_start = {stack}.data_ptr()")

    def read_each(self, steps: Sequence[BindSymbol]) -> None:
        """What tensors of one element hold."""
        start = 0
        while start < len(steps):
            stack, place, size = self.stacked.get(steps[start].tensor, ("", 0, 0))
            end = start + 1
            while stack and end < len(steps):
                if self.stacked.get(steps[end].tensor) != (stack, place + end - start, size):
                    break
                end += 1
            names = ", ".join(step.symbol for step in steps[start:end])
            if stack:
                self.line(f"{names}, = {stack}[{place}:{place + end - start}].tolist()")
            else:
                self.line(f"{names} = {steps[start].tensor}.item()")
            start = end

    def find(self, names: Iterable[str]) -> None:
        """Have the words of which launches take their arguments tell where these tensors begin."""
        new = [name for name in dict.fromkeys(names) if name not in self.places]
        if new:
            find = self.constant(f"{_ADDRESSES}.addresses", "addresses")
            more = "+=" if self.count else "="
            self.line(f"{self.words} {more} {find}(({', '.join(new)},))")
            self.places.update((name, self.count + i) for i, name in enumerate(new))
            self.count += len(new)

    def launch_each(self, steps: Sequence[Launch], kernel: str) -> None:
        """Launches of one kernel that do not depend on each other."""
        self.comment(steps[0].origins)
        lying = [[self.stacked.get(name, (name, 0, 0)) for name in step.args] for step in steps]
        self.find(tensor for row in lying for tensor, _, _ in row)
        floating = steps[0].kernel.floating
        kinds = ["d" if name in floating else "q" for name in steps[0].kernel.symbols]
        if kinds:
            pack = self.constant("struct.pack", "pack")
            numbers = ", ".join(name for step in steps for name in step.numbers)
            self.line(f'{self.words}.frombytes({pack}("{"".join(kinds * len(steps))}", {numbers}))')
        coded = []
        for row in lying:
            coded += [self.places[tensor] + (i * size << 32) for tensor, i, size in row]
            coded += [_NUMBER + self.count + i for i in range(len(kinds))]
            self.count += len(kinds)
        rows = self.constant(f"{_ADDRESSES}.Rows({tuple(coded)})", f"rows_{len(self.header)}")
        self.line(f"{kernel}_each(*{rows}({self.words}))")

    def launch(self, step: Launch, kernel: str) -> None:
        self.comment(step.origins)
        self.line(f"{kernel}({', '.join(self.arguments(step))})")

    def address(self, name: str) -> str:
        """Where a tensor begins."""
        if name not in self.stacked:
            return f"{name}.data_ptr()"
        stack, place, size = self.stacked[name]
        return f"{stack}_start + {place * size}" if place else f"{stack}_start"

    def arguments(self, step: Launch) -> list[str]:
        arguments = list(map(self.address, step.args)) if self.pointers else list(step.args)
        for place, start in enumerate(step.starts):
            if start:
                arguments[place] += f" + {start * step.kernel.args[place].dtype.itemsize}"
        return [*arguments, *(step.numbers or step.kernel.symbols)]

    def extern(self, step: ExternCall) -> None:
        self.comment(step.origins)
        target, out_target = self.target(step.target, out=step.out is not None)
        arguments = [self.value(a) for a in step.args]
        arguments += [f"{key}={self.value(a)}" for key, a in step.kwargs]
        if step.out is not None and out_target is not None:
            self.line(f"{out_target}({', '.join([*arguments, f'out={step.out}'])})")
            for result in step.results:
                if result is not None and result != step.out:
                    self.line(f"{result} = {step.out}")
            return
        call = f"{target}({', '.join(arguments)})"
        results = [result for result in step.results if result is not None]
        if step.out is not None:
            self.line(f"{step.out} = {call}")
            for result in results:
                if result != step.out:
                    self.line(f"{result} = {step.out}")
        elif step.unpack and step.results:
            names = ["_" if result is None else result for result in step.results]
            self.line(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {call}")
            if "_" in names:
                self.line("del _")
        elif results and (step.target is conform or Name(results[0]) not in step.args[:1]):
            self.line(f"{results[0]} = {call}")
        else:  # a write into an input or constant keeps its name
            self.line(call)

    def target(self, target: object, *, out: bool) -> tuple[str, str | None]:
        """Global names for ``target`` and, if wanted and there is one, its out= form."""
        if isinstance(target, torch._ops.OpOverload):
            return self._overload(target, out=out)
        module = getattr(target, "__module__", None)
        qualified = getattr(target, "__qualname__", None)
        if isinstance(module, str) and module.partition(".")[0] in _NAMED_MODULES:
            # Looked up again by another process: only what belongs to the versions in the key.
            found = getattr(importlib.import_module(module), str(qualified), None)
            if found is target:
                return self.constant(f"{module}.{qualified}", str(qualified)), None
        return self.bind(target, "extern"), None

    def _overload(self, target: torch._ops.OpOverload, *, out: bool) -> tuple[str, str | None]:
        text = str(target)
        plain = text.replace(".", "_").removesuffix("_default")
        public, has_out = _DIRECT.get(text, ("", False))
        if public and (has_out or not out):
            name = self.constant(public, public.rpartition(".")[2])
            return name, name if out else None
        name = self.constant(_expression(target), plain)
        variant = out_variant(target) if out else None
        if variant is None:
            return name, None
        return name, self.constant(_expression(variant), str(variant).replace(".", "_"))


def _computes_nothing(kernel: Kernel) -> bool:
    outer = kernel.ranges[: kernel.reduce_from]
    return any(isinstance(size, Const) and size.value == 0 for size in outer)


def _expression(target: torch._ops.OpOverload) -> str:
    """Python for an overload; the name of one is a keyword (``aten.random.from``)."""
    packet, overload = str(target).rsplit(".", 1)
    if keyword.iskeyword(overload):
        return f"getattr(torch.ops.{packet}, {overload!r})"
    return f"torch.ops.{target}"


def out_variant(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload that does the same into ``out=``, if there is one."""
    wanted = [(a.name, str(a.type)) for a in target._schema.arguments]
    packet = target.overloadpacket
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        arguments = candidate._schema.arguments
        outs = [a for a in arguments if a.is_out]
        given = [(a.name, str(a.type)) for a in arguments if not a.is_out]
        if len(outs) == 1 and outs[0].name == "out" and given == wanted:
            return candidate  # type: ignore[no-any-return]
    return None


def print_wrapper(
    plan: Plan,
    kernels: Sequence[str],
    *,
    name: str = "graph",
    pointers: bool = True,
    grad_off: bool = True,
) -> Wrapper:
    """The module that executes ``plan``.

    Args:
        plan: what to do.
        kernels: the global name of the kernel of each ``Launch`` step, in order.
        name: the function's name.
        pointers: kernels take data pointers; otherwise they take the tensors themselves.
        grad_off: switch grad mode off for aten calls.
    """
    function = name if name.isidentifier() and not keyword.iskeyword(name) else "graph"
    parameters = ", ".join(plan.inputs)
    each = (f"{kernel}_each" for kernel in kernels)
    names = _local_names(plan) | {function, "torch", *kernels, *each}
    printer = _Printer(plan, pointers, names)
    printer.words = _unused(printer.words, names)
    launches = iter(kernels)
    bumped: list[str] = []
    steps = list(runs(plan)) if pointers else [[step] for step in plan.steps]
    own = {*plan.inputs, *(name for name, _ in plan.constants)}
    many = (s for group in steps if len(group) > 1 for s in group if isinstance(s, Launch))
    known = [name for step in many for name in step.args if name in own]
    for step, *more in steps:
        match step:
            case Allocate() if more:
                printer.allocate_each([step, *more])
            case Allocate():
                printer.allocate(step)
            case Launch():
                kernel, *_ = [next(launches) for _ in (step, *more)]
                if _computes_nothing(step.kernel):
                    continue
                if more:
                    printer.find(known)
                    printer.launch_each([step, *more], kernel)
                else:
                    printer.launch(step, kernel)
            case ExternCall():
                printer.extern(step)
            case BindSymbol(what="item"):
                printer.read_each([step, *more])
            case BindSymbol(symbol, tensor):
                printer.line(f"{symbol} = {tensor}.{step.call}")
            case Free(dead) if dead in printer.stacked:
                continue
            case Free(dead):
                printer.line(f"del {dead}")
            case Bump(written, times):
                bumped += [written] * times
                printer.line(f"{WRITTEN}{written}")
    if bumped:
        bump = printer.constant(f"{_ADDRESSES}.count_writes", "count_writes")
        printer.line(f"{bump}(({', '.join(bumped)},))")
    outputs = ", ".join(printer.value(o) for o in plan.outputs)
    printer.line(f"return ({outputs}{',' if len(plan.outputs) == 1 else ''})")
    body = _computed_once(printer)
    given = _unused("given", names)
    if plan.boxed:
        body = [f"    [{parameters}] = {given}", f"    {given}.clear()", *body]
        parameters = given
    if grad_off and any(isinstance(step, ExternCall) for step in plan.steps):
        body = _without_grad(printer, body)
    text = _module(printer, f"{function}({parameters})", body)
    return Wrapper(text, function, printer.bindings)


def _unused(name: str, names: Collection[str]) -> str:
    """``name``, or the next one like it that is not among ``names``."""
    while name in names:
        name += "_"
    return name


_MARK = re.compile("\0(\\d+)\0")


def _computed_once(printer: _Printer) -> list[str]:
    """The lines with names for sizes, and for tuples of them, that are needed more than once."""
    texts = list(printer.texts)
    used = Counter(place for line in printer.lines for place in _MARK.findall(line))
    used.update(place for outer in list(used) for place in _MARK.findall(texts[int(outer)]))
    names: dict[str, str] = {}
    body: list[str] = []

    def resolve(mark: re.Match[str]) -> str:
        place = mark[1]
        if place in names:
            return names[place]
        text = _MARK.sub(resolve, texts[int(place)])
        if used[place] == 1:
            return text
        kind = "sizes" if "," in text else "size"
        names[place] = name = _unused(f"{kind}_{len(names)}", printer.locals)
        body.append(f"    {name} = {text}")
        return name

    for line in printer.lines:
        body.append(_MARK.sub(resolve, line))
    return body


def _without_grad(printer: _Printer, body: list[str]) -> list[str]:
    """aten calls on parameters must not record a graph that nobody will ask for."""
    enabled = printer.constant("torch.is_grad_enabled", "is_grad_enabled")
    switch = printer.constant(f"{_SUPPORT}.set_grad_enabled", "set_grad_enabled")
    before = _unused("grad_before", printer.locals)
    return [
        f"    {before} = {enabled}()",
        f"    {switch}(False)",
        "    try:",
        *(f"    {line}" if line else "" for line in body),
        "    finally:",
        f"        {switch}({before})",
    ]


def _module(printer: _Printer, signature: str, body: list[str]) -> str:
    modules = {"torch"}
    for expression in printer.header.values():
        modules |= {maker for name, maker in _MAKERS.items() if expression.startswith(name)}
        module = expression.partition("(")[0].rpartition(".")[0]
        while module and not module.startswith("torch.") and module != "torch":
            try:
                importlib.import_module(module)
            except ImportError:
                module = module.rpartition(".")[0]
                continue
            modules.add(module)
            break
    head = ['"""Generated by torchsmith: runs one graph."""', ""]
    head += [f"import {module}" for module in sorted(modules)]
    head += ["", *(f"{name} = {expression}" for name, expression in printer.header.items())]
    return "\n".join([*head, "", "", f"def {signature}:", *body, ""])


def _local_names(plan: Plan) -> set[str]:
    names = {*plan.inputs, *(name for name, _ in plan.constants)}
    for step in plan.steps:
        match step:
            case Allocate(name):
                names.add(name)
            case ExternCall():
                names.update(result for result in step.results if result is not None)
                if step.out is not None:
                    names.add(step.out)
            case BindSymbol(symbol):
                names.add(symbol)
            case Launch():
                names.update(step.args, step.numbers or step.kernel.symbols)
            case Free(name) | Bump(name):
                names.add(name)
    return names
