"""The schedule of one graph in numbers: for each step its nodes, bytes, arithmetic, and memory."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.aot.partition import number_of_bytes
from torchsmith_fx_backend._src.capture.recorder import tensors_in
from torchsmith_fx_backend._src.loops.index import Index, evaluate
from torchsmith_fx_backend._src.loops.ir import Kernel
from torchsmith_fx_backend._src.page.arithmetic import call_arithmetic, kernel_arithmetic
from torchsmith_fx_backend._src.passes.base import is_view
from torchsmith_fx_backend._src.schedule.hints import hints
from torchsmith_fx_backend._src.schedule.plan import Allocate, ExternCall, Free, Launch, Name, Plan

_MOST_LABELS = 6
log = logging.getLogger("torchsmith.backend")


def note_schedule(built: Any, plan: Plan, graph: fx.Graph) -> Any:
    """``built`` with what it runs as its attribute ``schedule``; None where that fails."""
    try:
        built.schedule = summary(plan, graph, getattr(built, "launches", ()))
        built.schedule["tuned"] = list(map(str, getattr(built, "choices", ())))
    except Exception as error:
        if os.environ.get("TORCHSMITH_STRICT") == "1":
            raise
        log.debug("no summary of a schedule: %s: %s", type(error).__name__, error)
        built.schedule = None
    return built


def summary(plan: Plan, graph: fx.Graph, launched: Sequence[int]) -> dict[str, Any]:
    """What ``plan`` runs, as plain data; see ``torchsmith_tracer``'s page for the form.

    Args:
        plan: the steps.
        graph: the functional graph that they compute.
        launched: for each launch in the plan, the position of its kernel among the distinct ones.
    """
    return _Summary(plan, graph, launched).run()


class _Summary:
    def __init__(self, plan: Plan, graph: fx.Graph, launched: Sequence[int]) -> None:
        self.plan = plan
        self.launched = iter(launched)
        self.order = {node: number for number, node in enumerate(graph.nodes)}
        self.by_name = {node.name: node for node in self.order}
        placeholders = graph.find_nodes(op="placeholder")
        self.by_name.update(zip(plan.inputs, placeholders))
        self.values = hints(plan, graph)
        self.storage: dict[str, int] = {}  # name -> number of its storage; 0: not the plan's
        self.sizes: dict[int, int] = {}  # storages that are held, with their bytes
        self.names: dict[int, int] = {}  # how many names a storage has
        self.live = self.peak = 0  # bytes that are held, now and at most
        self.steps: list[dict[str, Any]] = []
        self._arithmetic: dict[int, tuple[int, int]] = {}  # by the identity of the kernel
        self.stored = {*plan.inputs, *(name for name, _ in plan.constants)}
        for step in plan.steps:
            match step:
                case Launch(args=names):
                    self.stored.update(names)
                case ExternCall(results=results):
                    self.stored.update(name for name in results if name is not None)

    def run(self) -> dict[str, Any]:
        for step in self.plan.steps:
            match step:
                case Allocate(name, layout, None):
                    count = self._span(layout.size, layout.stride)
                    self._hold(name, None if count is None else count * layout.dtype.itemsize)
                case Allocate(name, _, reuse):
                    self._alias(name, str(reuse))
                case Free(name):
                    self._drop(name)
                case Launch():
                    self._launch(step)
                case ExternCall():
                    self._extern(step)
        return {"device": self._device(), "steps": self.steps, "peak": self.peak}

    def _device(self) -> str:
        for step in self.plan.steps:
            if isinstance(step, Launch):
                return str(step.device)
        values = (node.meta.get("val") for node in self.order)
        return next((str(v.device) for v in values if isinstance(v, torch.Tensor)), "")

    # --- memory ----------------------------------------------------------------------------------
    def _hold(self, name: str, size: int | None) -> None:
        number = len(self.names) + 1
        self.storage[name], self.names[number], self.sizes[number] = number, 1, size or 0
        self.live += self.sizes[number]
        self.peak = max(self.peak, self.live)

    def _alias(self, name: str, other: str) -> None:
        number = self.storage.get(other, 0)
        self.storage[name] = number
        if number:
            self.names[number] += 1

    def _drop(self, name: str) -> None:
        number = self.storage.pop(name, 0)
        if number:
            self.names[number] -= 1
            if not self.names[number]:
                self.live -= self.sizes.pop(number)

    # --- sizes -----------------------------------------------------------------------------------
    def _value(self, name: str) -> Any:
        return self.by_name[name].meta["val"]

    def _number(self, index: Index) -> int | None:
        try:
            return int(evaluate(index, (), self.values))
        except (KeyError, IndexError):
            return None  # only known when it runs

    def _span(self, size: Sequence[Index], stride: Sequence[Index]) -> int | None:
        """Elements from the first to the last."""
        sizes, strides = (list(map(self._number, part)) for part in (size, stride))
        last = 0
        for n, step in zip(sizes, strides):
            if n is None or step is None:
                return None
            if n == 0:
                return 0
            last += (n - 1) * step
        return last + 1

    # --- steps -----------------------------------------------------------------------------------
    def _step(
        self,
        nodes: Sequence[fx.Node],
        kernel: int | None,
        moved: int | None,
        flops: int | None,
        fallback: str = "",
    ) -> None:
        origins = dict.fromkeys(n.meta["from_node"] for n in nodes if "from_node" in n.meta)
        telling = [node for node in nodes if not is_view(node)] or nodes
        words = list(dict.fromkeys(map(_word, telling)))
        ops = " · ".join(words[:_MOST_LABELS]) + (" …" if len(words) > _MOST_LABELS else "")
        self.steps.append(
            {
                "label": ops or fallback,
                "kernel": kernel,
                "nodes": list(origins),
                "bytes": moved,
                "flops": flops,
                "live": self.live,
            }
        )

    def _launch(self, step: Launch) -> None:
        number = next(self.launched, None)
        outer = step.kernel.ranges[: step.kernel.reduce_from]
        if any(self._number(size) == 0 for size in outer):
            return  # no point to compute
        moved = step.moved_bytes(self._number)
        self._step(self._computed(step), number, moved, self._flops(step.kernel))

    def _computed(self, step: Launch) -> list[fx.Node]:
        """The nodes that a launch computes, with those that only live in its registers."""
        waiting = [self.by_name[name] for name in step.nodes if name in self.by_name]
        found: dict[fx.Node, None] = {}
        while waiting:
            node = waiting.pop()
            if node not in found:
                found[node] = None
                waiting += [
                    argument
                    for argument in node.all_input_nodes
                    if argument.name not in self.stored and argument.op == "call_function"
                ]
        return sorted(found, key=self.order.__getitem__)

    def _flops(self, kernel: Kernel) -> int | None:
        """Arithmetic operations of a launch; a function such as ``exp`` counts as one."""
        ranges = [self._number(size) for size in kernel.ranges]
        if None in ranges:
            return None
        known = self._arithmetic.get(id(kernel))
        if known is None:
            known = self._arithmetic[id(kernel)] = kernel_arithmetic(kernel)
        full, outer = known
        sizes = [n for n in ranges if n is not None]
        rows = math.prod(sizes[: kernel.reduce_from])
        return full * math.prod(sizes) + outer * rows

    def _extern(self, step: ExternCall) -> None:
        results = [name for name in step.results if name is not None]
        node = self.by_name.get(results[0]) if results else None
        if node is None or not isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
            return
        if is_view(node):
            first = step.args[0] if step.args else None
            self._alias(results[0], first.name if isinstance(first, Name) else "")
            return
        if not isinstance(step.target, torch._ops.OpOverload):
            return  # a look at a layout
        # One of several results bears another name than their call, and a write its target's.
        near = (node, *node.all_input_nodes[:1], *node.users)
        producer = next((n for n in near if n.target is step.target), node)
        read = sum(_bytes(argument.meta.get("val")) for argument in producer.all_input_nodes)
        written = sum(_bytes(self._value(name)) for name in results if name in self.by_name)
        for name in results:
            if step.out is not None:
                if name != step.out:
                    self._alias(name, step.out)
            elif name not in self.storage:
                self._hold(name, _bytes(self._value(name)) if name in self.by_name else 0)
        self._step([producer], None, read + written, call_arithmetic(producer), str(step.target))


def _word(node: fx.Node) -> str:
    name = str(getattr(node.target, "__name__", node.target))
    return name.partition(".")[0].strip("_")


def _bytes(value: object) -> int:
    return sum(map(number_of_bytes, tensors_in(value)))
