"""One side of a session, eager or compiled: a model, what surrounds its calls, and a journal."""

from __future__ import annotations

import contextlib
import copy
import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torchsmith
from calls.arguments import Facts, Given, make
from calls.blocks import Checkpointed, Counted, Kept
from composition.gradients import Entry, kind_of, sharing, strides_of, tangent
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

VIEW = "is a view"
LATE = ("cannot be saved for backward", "a leaf Variable that requires grad")
LOW = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(eq=False)
class Call:
    """What is left of a call."""

    given: Given
    results: list[torch.Tensor]
    again: bool = False  # runs again in its backward pass, with what is so then


@dataclass
class Side:
    """The state of one side; ``wide`` computes in double precision, to judge the others."""

    compiled: bool
    wide: bool
    kind: str
    net: Any
    dynamic: bool | None
    entry: str
    run: Callable[..., Any] = field(init=False)
    facts: Facts = field(default_factory=Facts)
    modes: dict[str, Any] = field(default_factory=dict)
    undo: dict[str, Callable[[], object]] = field(default_factory=dict)
    handles: list[Any] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    before: Given | None = None
    optimizer: Any = None
    step: Callable[[], object] | None = None
    journal: list[Entry] = field(default_factory=list)
    versions: dict[str, tuple[torch.Tensor, int | str]] = field(default_factory=dict)
    ended: bool = False

    def __post_init__(self) -> None:
        self.enter()

    def enter(self) -> None:
        """Compile what is called: the model or a function around it."""
        compile_ = self.compile
        match self.entry:
            case "module":
                self.run = self.net = compile_(self.net)
            case "function":
                self.run = compile_(lambda *args, **kwargs: self.net(*args, **kwargs))
            case "method":
                self.run = compile_(self.net.forward)

    def compile(self, target: Any) -> Any:
        if not self.compiled:
            return target
        return torchsmith.compile(target, dynamic=self.dynamic, options={"rng": "eager"})

    def of(self, dtype: torch.dtype) -> torch.dtype:
        """The type that stands for ``dtype`` on this side."""
        return torch.float64 if self.wide and dtype in LOW else dtype

    def note(self, name: str, value: Any) -> None:
        """Write down what is seen; tensors by value."""
        self.journal.append((name, copied(value) if isinstance(value, torch.Tensor) else value))

    def hook(self, name: str) -> Callable[[torch.Tensor], torch.Tensor | None]:
        """A hook for gradients that writes them down."""

        def note(grad: torch.Tensor | None) -> torch.Tensor | None:
            if grad is None:
                self.note(f"{name} has none", True)
                return None
            self.note(f"{name} is", (tuple(grad.shape), self.known(grad.dtype)))
            self.note(name, grad)
            return grad * 2

        return note

    def known(self, dtype: torch.dtype) -> torch.dtype | None:
        return None if self.wide else dtype

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """The modes that calls are made in."""
        with contextlib.ExitStack() as stack:
            for make_mode in list(self.modes.values()):
                mode = make_mode()
                if mode is not None:
                    stack.enter_context(mode)
            yield

    def call(self, rng: random.Random) -> None:
        """Call with arguments as the facts are, and look at everything."""
        facts = copy.copy(self.facts)
        facts.dtype = self.of(facts.dtype)
        given = make(facts, self.kind, self.net, rng, self.before)
        self.before = given
        versions = [version_of(x) for x in given.tensors()]
        style = rng.choices(STYLES, WEIGHTS)[0]
        raised = False
        try:
            with self.around():
                result = styled(self, style, given, rng)
        except Exception as error:
            self.note("raises", (type(error).__name__, what_is_told(error)))
            if any(text in str(error) for text in LATE):
                self.ended = True  # found when all else is done, so that buffers are written
                return
            results: list[torch.Tensor] = []
            raised = True  # by a kernel perhaps, before others' writes were counted
        else:
            leaves, tree = pytree.tree_flatten(result)
            self.note("returns", str(tree))
            self.note("numbers", [x for x in leaves if not isinstance(x, torch.Tensor)])
            results = [x for x in leaves if isinstance(x, torch.Tensor)]
            self.calls.append(Call(given, results, style == "checkpoint"))
        for number, x in enumerate(results):
            self.look(f"result {number}", x)
        for number, (x, version) in enumerate(zip(given.tensors(), versions)):
            self.note(f"argument {number} written", raised or version_of(x) != version)
            self.look(f"argument {number}", x)
        self.note("sharing", [i for _, i in sharing([*given.tensors(), *results])])
        self.note("memory", [i for i, _ in sharing([*given.tensors(), *results])])
        self.state(raised)

    def look(self, name: str, x: torch.Tensor) -> None:
        """Write down a tensor."""
        with torch.no_grad():
            try:
                view = x._is_view() if x.requires_grad else None
                facts: Any = (x.requires_grad, x.is_leaf, x.grad_fn is None, view)
            except RuntimeError as error:
                facts = what_is_told(error)
            facts = (facts, tuple(x.shape), strides_of(x), x.is_inference(), type(x).__name__)
            self.note(f"{name} is", (self.known(x.dtype), facts))
            self.note(VIEW, x._is_view())
            self.note(name, x)

    def state(self, raised: bool = False) -> None:
        """Write down the model and the generator."""
        named = [
            *self.net.named_parameters(remove_duplicate=False),
            *self.net.named_buffers(remove_duplicate=False),
        ]
        for name, x in named:
            old, version = self.versions.get(name, (None, 0))
            written: Any = "another" if old is not x else raised or version_of(x) != version
            self.note(f"{name} written", written)
            self.versions[name] = (x, version_of(x))
            self.look(name, x)
            self.gradient(name, x)
        self.note("generator", int(torch.get_rng_state().to(torch.int64).sum()))
        numbers = {
            f"{name}.{key}": value
            for name, module in self.net.named_modules()
            for key, value in sorted(vars(module).items())
            if isinstance(value, (bool, int, float, str))
        }
        self.note("attributes", numbers)

    def gradient(self, name: str, x: torch.Tensor) -> None:
        if not x.is_leaf or x.is_inference():
            return
        g = x.grad
        facts = (
            None if g is None else (self.known(g.dtype), g.shape, strides_of(g), g.grad_fn is None)
        )
        self.note(f"gradient of {name} is", facts)
        if g is not None:
            self.note(f"gradient of {name}", g)

    def backward(self, rng: random.Random) -> None:
        """Differentiate what some calls returned."""
        if not self.calls:
            return
        calls = rng.sample(self.calls, min(len(self.calls), rng.choice((1, 1, 1, 2))))
        chosen = []
        for x in {id(x): x for call in calls for x in call.results}.values():
            try:
                if x.requires_grad and x.dtype.is_floating_point:
                    chosen.append(x)
            except RuntimeError:
                continue
        way = rng.choice(("backward", "backward", "backward", "grad", "create_graph", "thread"))
        retain = rng.random() < 0.3
        tangents = [tangent(x, rng) for x in chosen]
        if not chosen:
            return
        self.note("way", way)
        leaves = list({id(x): x for call in calls for x in call.given.leaves}.values())
        named = dict(self.net.named_parameters())
        sources = [x for x in (*leaves, *named.values()) if x.requires_grad]
        try:
            with self.around() if rng.random() < 0.2 else contextlib.nullcontext():
                grads = self._differentiate(way, chosen, tangents, sources, retain)
        except RuntimeError as error:
            self.note("backward raises", what_is_told(error))
            self.ended = True  # what was done before it is not the same
            return
        for number, g in enumerate(grads):
            facts = None if g is None else (self.known(g.dtype), g.shape)
            self.note(f"asked {number} is", facts)
            if g is not None:
                self.note(f"asked {number}", g)
        for number, leaf in enumerate(leaves):
            self.gradient(f"leaf {number}", leaf)
        self.state()
        if not retain and way == "create_graph":  # a derivative lets go of nothing
            self.calls = [call for call in self.calls if call not in calls]
        elif not retain:
            self.calls = [call for call in self.calls if call not in calls or rng.random() < 0.2]

    def _differentiate(
        self, way: str, chosen: Any, tangents: Any, sources: Any, retain: bool
    ) -> list[torch.Tensor | None]:
        if way in ("grad", "create_graph") and sources:
            create = way == "create_graph"
            grads = torch.autograd.grad(
                chosen,
                sources,
                tangents,
                retain_graph=retain or create,
                create_graph=create,
                allow_unused=True,
            )
            found = [g for g in grads if g is not None and g.requires_grad]
            if create and found:
                sum(g.double().pow(2).sum() for g in found).backward(retain_graph=retain)
            return list(grads)
        if way == "thread":
            in_thread(lambda: torch.autograd.backward(chosen, tangents, retain_graph=retain))
        else:
            torch.autograd.backward(chosen, tangents, retain_graph=retain)
        return []

    def settle(self) -> None:
        """Let go of calls that would see a change where checkpoints run again."""
        whole = any(isinstance(m, Checkpointed) for m in self.net.modules())
        self.calls = [] if whole else [call for call in self.calls if not call.again]

    def drop(self) -> None:
        """Let go of all calls, and look at what is alive then."""
        own = {id(x) for x in (*self.net.parameters(), *self.net.buffers())}
        watched = {}
        for number, call in enumerate(self.calls):
            for place, x in enumerate((*call.given.tensors(), *call.results)):
                if id(x) not in own:
                    watched[f"{number}.{place}"] = weakref.ref(x)
        x = call = None  # type: ignore[assignment]
        self.calls.clear()
        self.before = None
        alive = [name for name, ref in watched.items() if ref() is not None]
        if alive:
            gc.collect()
            alive = [name for name in alive if watched[name]() is not None]
        self.note("alive", alive)

    def close(self) -> None:
        """Put back what belongs to the process."""
        for undo in self.undo.values():
            undo()


def version_of(x: torch.Tensor) -> int | str:
    return "none" if x.is_inference() else x._version


def copied(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.detach().clone()


def what_is_told(error: Exception) -> str:
    """An error's words, as far as they are eager's."""
    return kind_of(error) if isinstance(error, RuntimeError) else str(error).split("\n")[0][:140]


def in_thread(call: Callable[[], Any]) -> Any:
    """Run ``call`` in another thread."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append((call(), None))
        except Exception as error:
            outcome.append((None, error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


STYLES = ("plain", "thread", "functional", "vmap", "grad", "jvp", "stance", "checkpoint")
TRANSFORMS = ("vmap", "grad", "jvp")
WEIGHTS = (80, 4, 3, 3, 3, 2, 3, 2)


def styled(side: Side, style: str, given: Given, rng: random.Random) -> Any:
    """Call in one of the ways that a model can be called."""
    run = lambda: side.run(*given.args, **given.kwargs)  # noqa: E731
    x, *others = given.args
    rest = lambda t: side.run(t, *others, **given.kwargs)  # noqa: E731
    if style in TRANSFORMS and any(isinstance(m, (Kept, Counted)) for m in side.net.modules()):
        style = "plain"  # what is kept of a transform is of no use after it
    match style:
        case "thread":
            return in_thread(run)
        case "functional":
            values = {n: p.detach() * 2 for n, p in side.net.named_parameters()}
            if side.entry == "module":
                return torch.func.functional_call(side.run, values, tuple(given.args), given.kwargs)
        case "vmap":
            return torch.func.vmap(rest, randomness="same")(torch.stack([x.detach(), x.detach()]))
        case "grad":
            total = lambda t: sum(  # noqa: E731
                r.sum() for r in pytree.tree_leaves(rest(t)) if isinstance(r, torch.Tensor)
            )
            return torch.func.grad(total)(x.detach().clone())
        case "jvp":
            return torch.func.jvp(rest, (x.detach().clone(),), (torch.ones_like(x.detach()),))
        case "stance":
            with torchsmith.set_stance(rng.choice(("force_eager", "eager_on_recompile"))):
                return run()
        case "checkpoint" if not side.handles and "functions" not in side.modes:
            with set_checkpoint_early_stop(False):  # a graph runs as a whole
                return checkpoint(rest, x, use_reentrant=False)
    return run()
