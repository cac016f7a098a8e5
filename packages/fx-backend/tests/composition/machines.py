"""Ways to run a compiled program: C or GPU kernels, Triton's interpreter, or the reference
evaluator.

A machine stands in for the runtime's ``build``. It only notes the plan; kernels are made when
``prepare`` has seen a whole batch of programs, since one C compiler run for many is far cheaper.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from loop_reference import evaluate
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torchsmith_fx_backend._src import driver
from torchsmith_fx_backend._src.codegen.wrapper import print_wrapper
from torchsmith_fx_backend._src.loops.ir import Kernel
from torchsmith_fx_backend._src.runtime.build import build
from torchsmith_fx_backend._src.runtime.cache import default_cache
from torchsmith_fx_backend._src.runtime.gpu import print_kernel
from torchsmith_fx_backend._src.runtime.launchers import KernelRequest, launcher_for
from torchsmith_fx_backend._src.schedule.plan import Launch, Plan

Runner = Callable[..., object]


class Noted:
    """A graph whose plan is known and whose kernels are made when it is first called."""

    source = ""
    kernels: tuple[tuple[str, str], ...] = ()
    storable = False
    built = True

    def __init__(self, plan: Plan, make: Callable[[Plan], Runner]) -> None:
        self.plan = plan
        self._make = make
        self._run: Runner | None = None

    def __call__(self, *inputs: object) -> object:
        if self._run is None:
            self._run = self._make(self.plan)
        return self._run(*inputs)


class Machine:
    """Collects plans while installed; a subclass makes them run."""

    signs = False  # whether zeros have eager's signs: torch's own depend on the vector width
    device: torch.device | None = None  # that plans are made for, if not that of the inputs

    def __init__(self) -> None:
        self.noted: list[Noted] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Graphs compiled inside the block run on this machine."""
        kept = driver.build
        driver.build = lambda plan, **_: self._note(plan)
        try:
            yield
        finally:
            driver.build = kept

    def _note(self, plan: Plan) -> Noted:
        noted = Noted(plan, self.make)
        self.noted.append(noted)
        return noted

    def prepare(self) -> None:
        """Make the kernels of all graphs noted since the last call."""
        self.noted.clear()

    def make(self, plan: Plan) -> Runner:
        """The callable of one plan."""
        raise NotImplementedError

    def excuses(self, source: str, problem: str) -> bool:
        """Whether a problem of the program ``source`` is the machine's, not of what it runs."""
        return False


class Interpreted(Machine):
    """Runs the wrapper on tensors, with ``kernel`` run by a function of this process."""

    def kernel(self, kernel: Kernel, tensors: Sequence[torch.Tensor], symbols: dict) -> None:
        """Run one kernel."""
        raise NotImplementedError

    def make(self, plan: Plan) -> Runner:
        launches = [s for s in plan.steps if isinstance(s, Launch)]
        names = [f"kernel_{number}" for number in range(len(launches))]
        wrapper = print_wrapper(plan, names, name="graph", pointers=False)
        text = wrapper.text
        if self.device is not None:
            text = text.replace(str(self.device), "cpu")
        namespace: dict[str, object] = {}
        exec(compile(text, "<wrapper>", "exec"), namespace)
        namespace.update(wrapper.bindings)
        namespace.update(plan.constants)
        for name, step in zip(names, launches, strict=True):
            namespace[name] = self._bound(step.kernel)
        return namespace[wrapper.function]  # type: ignore[return-value]

    def _bound(self, kernel: Kernel) -> Callable[..., None]:
        count = len(kernel.args)

        def run(*arguments: object) -> None:
            symbols = dict(zip(kernel.symbols, arguments[count:], strict=True))
            self.kernel(kernel, arguments[:count], symbols)  # type: ignore[arg-type]

        return run


class Reference(Interpreted):
    """The reference evaluator: raises where a kernel leaves a tensor or a proof is wrong, or has no
    text for a GPU, where no size is told."""

    def kernel(self, kernel: Kernel, tensors: Sequence[torch.Tensor], symbols: dict) -> None:
        print_kernel(kernel)
        evaluate(kernel, tensors, symbols)


class Planned(Reference):
    """Plans as they are made for a GPU, whose rules and fusions are others, without one: passes and
    scheduling are told that what was captured on a CPU lies there."""

    device = torch.device("cuda:0")

    def __init__(self) -> None:
        super().__init__()
        self._moved: list[FakeTensor] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        kept = driver.run_passes

        def run_passes(graph: fx.Graph, *args: object, **kwargs: object) -> None:
            self._move(graph)
            kept(graph, *args, **kwargs)

        driver.run_passes = run_passes
        try:
            with super().installed():
                yield
        finally:
            driver.run_passes = kept

    def excuses(self, source: str, problem: str) -> bool:
        if "float('nan')" in source:  # GPUs have another rule for bounds that are NaN
            return True
        return "not linked with support for" in problem or "on the same device" in problem

    def _move(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            for value in pytree.tree_leaves(node.meta.get("val")):
                if isinstance(value, FakeTensor) and value.fake_device != self.device:
                    value.fake_device = self.device
                    self._moved.append(value)
            if "device" in node.kwargs:
                node.kwargs = {**node.kwargs, "device": self.device}

    def _note(self, plan: Plan) -> Noted:
        for value in self._moved:  # a training call makes tensors as they tell
            value.fake_device = torch.device("cpu")
        self._moved.clear()
        return super()._note(plan)


class Triton(Interpreted):
    """Printed Triton source under Triton's interpreter (``TRITON_INTERPRET=1``)."""

    def __init__(self) -> None:
        super().__init__()
        _mend_interpreter()
        self._texts: dict[object, object] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="composition-")

    def kernel(self, kernel: Kernel, tensors: Sequence[torch.Tensor], symbols: dict) -> None:
        from torchsmith_fx_backend._src.codegen.triton.config import choose
        from torchsmith_fx_backend._src.codegen.triton.kernel import generate

        config = choose(kernel, {name: int(value) for name, value in symbols.items()})
        source = generate(kernel, config)
        namespace = self._texts.get(source.text)
        if namespace is None:
            path = Path(self._folder.name) / f"kernel_{len(self._texts)}.py"
            path.write_text(source.text)
            namespace = {}
            exec(compile(source.text, str(path), "exec"), namespace)
            self._texts[source.text] = namespace
        values = {s.name: v for s, v in zip(source.symbols, symbols.values(), strict=True)}
        spaces = [torch.zeros(eval(w.length, {}, values), dtype=w.dtype) for w in source.workspaces]
        flat = [_flat(t) for t in tensors]
        for stage in source.stages:
            grid = tuple(eval(part, {}, values) for part in stage.grid)
            if 0 not in grid:
                namespace[stage.function][grid](*flat, *spaces, *values.values())  # type: ignore[index]


def _mend_interpreter() -> None:
    """Triton's interpreter makes integers of a scalar bool that is spread over a block."""
    from triton.runtime import interpreter

    splat = interpreter.InterpreterBuilder.create_splat

    def create_splat(self: object, shape: object, value: object) -> object:
        result = splat(self, shape, value)
        if result.data.dtype != value.data.dtype:
            result.data = result.data.astype(value.data.dtype)
        return result

    if splat.__name__ == "create_splat" and splat.__module__ != __name__:
        interpreter.InterpreterBuilder.create_splat = create_splat


def _flat(t: torch.Tensor) -> torch.Tensor:
    """All that a pointer to the first element of ``t`` may reach, as one row."""
    if not t.numel():
        return t.reshape(-1)
    reach = 1 + sum((size - 1) * step for size, step in zip(t.shape, t.stride()))
    return t.as_strided((reach,), (1,))


class Native(Machine):
    """C kernels, one compiler run per batch."""

    signs = True

    def prepare(self) -> None:
        requests = [
            KernelRequest(step.kernel, step.device)
            for noted in self.noted
            for step in noted.plan.steps
            if isinstance(step, Launch)
        ]
        if requests:
            launcher_for(requests[0].device).load(requests, default_cache())
        self.noted.clear()

    def make(self, plan: Plan) -> Runner:
        return build(plan)


class Gpu(Native):
    """Triton kernels on a GPU, which is torch's default device from then on."""

    signs = False

    def __init__(self) -> None:
        super().__init__()
        torch.set_default_device("cuda")


MACHINES: dict[str, type[Machine]] = {
    "reference": Reference,
    "c": Native,
    "triton": Triton,
    "gpu": Gpu,
    "planned": Planned,
}
