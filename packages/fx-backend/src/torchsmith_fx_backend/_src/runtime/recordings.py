"""Recordings: what ``mode="reduce-overhead"`` runs instead of launching kernels one by one.

A call is recorded once (on an NVIDIA GPU: as a CUDA graph) and replayed from then on. A recording
reads and writes fixed addresses, so each input is one of two kinds. *Fixed*: parameters, inputs
that the graph writes (a static key-value cache), and large inputs that were at the same address
twice; a replay sees to it that they still are. *Copied*: everything else, into a buffer of the
recording's own. What a replay computes is copied out of the memory that recordings share: no later
replay can overwrite a result that the caller still holds, at the price of one copy of the results.
Only what a forward pass saves for its backward pass stays where it was computed; ``halves.py`` sees
to it that no other replay comes between.

``Recordings`` knows nothing of CUDA; the device is behind the protocol ``Recorder``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from torchsmith_fx_backend._src import by_rows, keyed
from torchsmith_fx_backend._src.capture.recorder import tensors_in
from torchsmith_fx_backend._src.runtime.addresses import extent
from torchsmith_fx_backend._src.runtime.support import copy_each, set_grad_enabled

log = logging.getLogger("torchsmith.backend")
is_dense: Callable[[torch.Tensor], bool] = torch.ops.aten.is_non_overlapping_and_dense.default

MAX_RECORDINGS = 8  # of one graph: as many combinations of sizes and addresses
MAX_MOVES = 3  # how often a fixed input may be found elsewhere before recording is given up
SMALL_BYTES = 1 << 16  # inputs up to this size are copied rather than watched

Outputs = tuple[Any, ...]
Run = Callable[..., Outputs]


class Recorder(Protocol):
    """A device that can record work and repeat it."""

    def ready(self) -> bool:
        """Whether this thread may record and replay now."""

    def turn(self) -> AbstractContextManager[object]:
        """Entered from the copies into a recording to the copies out of it: one replay at a time,
        each queued behind the one before, whatever their streams."""

    def random_state(self) -> object:
        """Something that compares unequal after random numbers were drawn that a recording would
        not draw anew."""

    def record(self, run: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        """Record the work that ``run`` queues, without doing it.

        Returns:
            A function that does it, and what ``run`` returned: tensors whose memory is written
            whenever that function is called.
        """


def obstacle(graph: fx.Graph) -> str:
    """Why calls of a functional graph must not be repeated from a recording; empty if they may."""
    devices: set[torch.device] = set()
    for node in graph.nodes:
        if node.op in ("output", "root"):
            continue
        for value in tensors_in(node.meta.get("val")):
            if value.device.type != "cuda":
                what = "an input" if node.op == "placeholder" else f"the result of {node.target}"
                return f"{what} is on device {value.device.type!r}"
            devices.add(value.device)
        if node.op != "call_function":
            continue
        if isinstance(node.kwargs.get("generator"), (torch.Generator, fx.Node)):
            return f"{node.target} draws random numbers from a generator of its own"
        reason = "" if _takes_places(node) else _obstacle_of(node.target)
        if reason:
            return reason
    if len(devices) > 1:
        return "its tensors are on several devices"
    return "" if devices else "no input is on a GPU"


def _takes_places(node: fx.Node) -> bool:
    """Whether it is an ``index`` by numbers only; by masks, its size would depend on them."""
    if node.target is not torch.ops.aten.index.Tensor:
        return False
    indices = tensors_in([x.meta["val"] for x in node.args[1] if isinstance(x, fx.Node)])  # type: ignore[union-attr]
    return all(x.dtype not in (torch.bool, torch.uint8) for x in indices)


def _obstacle_of(target: object) -> str:
    if isinstance(target, torch._ops.OpOverload):
        if (
            torch.Tag.data_dependent_output in target.tags
            or torch.Tag.dynamic_output_shape in target.tags
        ):
            return f"what {target} returns depends on data in a way that the host has to know"
        if target.namespace in ("aten", "prims", "torchsmith"):
            return ""
        return f"{target} may have effects that a recording does not repeat"
    if target in keyed.PURE or target in (keyed.seeds, by_rows.product):
        return ""
    module = getattr(target, "__module__", None) or ""
    if module.partition(".")[0] in ("_operator", "operator", "math", "torch"):
        return ""
    return f"{getattr(target, '__qualname__', target)} may have effects that are not repeated"


@dataclass(slots=True)
class _Output:
    """How one result of a replay is handed out.

    Attributes:
        value: the recorded result, where it is no tensor of the recording's own.
        source: the input that it is, or is a view of; ``~i`` is attribute i of the graph.
        group: number of the memory that it lies in, which is copied out.
        layout: (size, stride, offset), the offset relative to what it is a view of.
        lent: the recorded result itself, which stays where it is.
    """

    value: object = None
    source: int | None = None
    group: int | None = None
    layout: tuple[torch.Size, tuple[int, ...], int] | None = None
    lent: torch.Tensor | None = None


@dataclass(slots=True, eq=False)
class Recording:
    """One recorded call.

    Attributes:
        replay: does its work again.
        pointers: addresses of the fixed inputs.
        copied: inputs that are copied: position, buffer, whether that has the input's layout.
        outputs: how results are handed out.
        groups: the memory that is copied out.
        bumps: by how much the versions of written inputs go up, by position.
    """

    replay: Callable[[], None]
    pointers: list[int]
    copied: list[tuple[int, torch.Tensor, bool]]
    outputs: list[_Output]
    groups: list[torch.Tensor]
    bumps: list[tuple[int, int]]

    def hand_out(self, inputs: Sequence[Any], attributes: Sequence[torch.Tensor]) -> Outputs:
        """The results of the last replay."""
        fresh = copy_each(self.groups)
        results: list[Any] = []
        for output in self.outputs:
            result: Any
            if output.lent is not None:
                result = output.lent.detach()
            elif output.group is not None:
                result = fresh[output.group]
                if output.layout is not None:
                    result = torch.as_strided(result, *output.layout)
            elif output.source is not None:
                place = output.source
                result = inputs[place] if place >= 0 else attributes[~place]
                if output.layout is not None:
                    size, stride, offset = output.layout
                    result = torch.as_strided(
                        result, size, stride, result.storage_offset() + offset
                    )
            else:
                result = output.value
            results.append(result)
        return tuple(results)


class _RefusedError(Exception):
    """A call has no recording; the message says why."""


class Recordings:
    """A compiled graph that replays recordings of itself.

    Attributes:
        source: as of the graph.
        kernels: as of the graph.
        refused: why calls run as without recordings, once that is so.
    """

    def __init__(
        self,
        run: Any,
        recorder: Recorder,
        *,
        written: Sequence[int] = (),
        attributes: Sequence[torch.Tensor] = (),
        lends: int | None = None,
        static: bool = True,
        say: Callable[[str], None] = log.info,
        give_up: Callable[[str], None] | None = None,
    ) -> None:
        """Record nothing yet: the first call of each kind runs as it is.

        Args:
            run: the compiled graph: takes flat inputs, returns a flat tuple.
            recorder: the device.
            written: positions of inputs that the graph writes.
            attributes: tensors of the graph itself; their memory is not the recording's.
            lends: results from this position on stay in the memory of the recording: the caller
                is done with them before the next replay that could write there.
            static: no size is symbolic.
            say: told why calls are not recorded, once.
            give_up: told instead of ``say`` why no call is recorded any more.
        """
        self.run: Run = run
        self.source: str = run.source
        self.kernels: tuple[tuple[str, str], ...] = run.kernels
        self.refused: str | None = None
        self._recorder = recorder
        self._written = tuple(written)
        self._attributes = tuple(attributes)
        self._lends = lends
        self._static = static
        self._say = say
        self._give_up = give_up or say
        self._plain: tuple[int, ...] = ()  # positions of inputs that are no tensors
        self._tensors: tuple[int, ...] = ()
        self._fixed: list[int] = []
        self._lent: set[int] = set()  # those in the memory of a lender
        self._wandering: set[int] = set()  # those that looked fixed and were not
        self._full = False
        self._seen: dict[object, list[int]] = {}
        self._moves = 0
        self._recordings: dict[object, Recording] = {}
        self._preparing = threading.Lock()

    def __call__(self, *inputs: Any) -> Outputs:
        """Run the graph, from a recording where there is one."""
        return self.execute(inputs)[0]

    def execute(
        self, inputs: Sequence[Any], lender: Recording | None = None
    ) -> tuple[Outputs, Recording | None]:
        """Run the graph.

        Args:
            inputs: of the call.
            lender: the recording that lent some of the inputs, if any.

        Returns:
            The results, and the recording that they come from, if they do.
        """
        if self.refused is not None or not self._recorder.ready():
            return self.run(*inputs), None
        key = self._key(inputs, lender)
        recording = self._recordings.get(key)
        if recording is None:
            return self._first_calls(key, inputs, lender)
        pointers = [inputs[i].data_ptr() for i in self._fixed]
        if pointers != recording.pointers:
            return self._moved(inputs, pointers, recording.pointers), None
        with self._recorder.turn():
            return self._replay(recording, inputs), recording

    @property
    def count(self) -> int:
        """How many recordings are held."""
        return len(self._recordings)

    # --------------------------------------------------------------------------------- calls

    def _key(self, inputs: Sequence[Any], lender: Recording | None) -> object:
        """What tells recordings apart: numbers, layouts, addresses that are written or lent."""
        numbers = [inputs[i] for i in self._plain]
        addresses = [inputs[i].data_ptr() for i in self._written]
        if self._static:
            return (lender, *numbers, *addresses)
        layouts = [(inputs[i].shape, inputs[i].stride()) for i in self._tensors]
        return (lender, *numbers, *addresses, *layouts)

    def _replay(self, recording: Recording, inputs: Sequence[Any]) -> Outputs:
        grad = torch.is_grad_enabled()
        set_grad_enabled(False)
        try:
            for position, buffer, dense in recording.copied:
                _fill(buffer, inputs[position], dense)
            recording.replay()
            results = recording.hand_out(inputs, self._attributes)
        finally:
            set_grad_enabled(grad)
        for position, times in recording.bumps:
            written = inputs[position] if position >= 0 else self._attributes[~position]
            for _ in range(times):
                torch.autograd.graph.increment_version(written)
        return results

    def _first_calls(
        self, key: object, inputs: Sequence[Any], lender: Recording | None
    ) -> tuple[Outputs, Recording | None]:
        """The first call of a kind runs as it is, the second is recorded."""
        with self._preparing:
            try:
                if not self._seen:
                    self._sort(inputs)
                    key = self._key(inputs, lender)
                pointers = [x.data_ptr() if isinstance(x, torch.Tensor) else 0 for x in inputs]
                before = self._seen.get(key)
                if before is None:
                    if len(self._seen) < MAX_RECORDINGS:
                        self._seen[key] = pointers
                        return self._watched(inputs), None
                    if not self._full:
                        self._full = True
                        self._say(
                            f"there are {MAX_RECORDINGS} recordings already; calls with yet other "
                            "sizes, numbers or addresses of written inputs are not recorded"
                        )
                    return self.run(*inputs), None
                if not self._recordings:
                    self._settle(inputs, before, pointers, lender)
                with self._recorder.turn():
                    recording = self._record(inputs)
                    self._recordings[key] = recording
                    with torch.no_grad():
                        recording.replay()
                        return recording.hand_out(inputs, self._attributes), recording
            except _RefusedError as reason:
                self.refuse(str(reason))
        return self.run(*inputs), None

    def refuse(self, reason: str) -> None:
        """Record and replay no more."""
        self.refused = reason
        self._recordings.clear()
        self._seen.clear()
        self._give_up(reason)

    def _watched(self, inputs: Sequence[Any]) -> Outputs:
        """A call without recording; what it shows may be in the way of any."""
        state = self._recorder.random_state()
        results = self.run(*inputs)
        if self._recorder.random_state() != state:
            self.refuse("random numbers are drawn")
        return results

    def _moved(self, inputs: Sequence[Any], now: list[int], recorded: list[int]) -> Outputs:
        """A fixed input is elsewhere: record anew; what is no parameter will be copied."""
        with self._preparing:
            found = {i for i, a, b in zip(self._fixed, now, recorded) if a != b}
            if found & self._lent:
                return self.run(*inputs)  # what was saved came back as something else
            parameters = any(isinstance(inputs[i], torch.nn.Parameter) for i in found)
            self._wandering |= found
            self._moves += parameters
            self._recordings.clear()
            self._seen.clear()
            if self._moves > MAX_MOVES:
                self.refuse("its parameters are at other addresses at each call")
        return self.run(*inputs)

    # ------------------------------------------------------------------------------- recording

    def _sort(self, inputs: Sequence[Any]) -> None:
        tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        for i in tensors:
            x = inputs[i]
            if type(x) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
                raise _RefusedError(f"an input is a {type(x).__name__}")
            if x.is_conj() or x.is_neg():
                raise _RefusedError("an input is conjugated or negated lazily")
        self._plain = tuple(i for i in range(len(inputs)) if i not in set(tensors))
        self._tensors = tuple(tensors)

    def _settle(
        self, inputs: Sequence[Any], before: list[int], now: list[int], lender: Recording | None
    ) -> None:
        """Decide which inputs are fixed, from two calls."""
        lent = {_memory(o.lent) for o in lender.outputs if o.lent is not None} if lender else set()
        self._lent = {i for i in self._tensors if inputs[i].numel() and _memory(inputs[i]) in lent}
        fixed = []
        for i in self._tensors:
            x = inputs[i]
            stays = i not in self._wandering and before[i] == now[i] and x.nbytes > SMALL_BYTES
            given = i in self._written or i in self._lent
            if stays or given or isinstance(x, torch.nn.Parameter):
                fixed.append(i)
        self._fixed = fixed

    def _record(self, inputs: Sequence[Any]) -> Recording:
        fixed = set(self._fixed)
        copied: list[tuple[int, torch.Tensor, bool]] = []
        arguments = list(inputs)
        with torch.no_grad(), torch.inference_mode(False):
            for i in self._tensors:
                if i not in fixed:
                    buffer, dense = _buffer_for(inputs[i])
                    _fill(buffer, inputs[i], dense)
                    arguments[i] = buffer if dense else _like(buffer, inputs[i])
                    copied.append((i, buffer, dense))
        targets = [(i, inputs[i]) for i in self._written]
        targets += [(~i, tensor) for i, tensor in enumerate(self._attributes)]
        versions = [_version(tensor) for _, tensor in targets]
        try:
            replay, results = self._recorder.record(lambda: self.run(*arguments))
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            raise _RefusedError(f"recording failed: {type(error).__name__}: {text}") from error
        bumps = [
            (position, _version(tensor) - version)
            for (position, tensor), version in zip(targets, versions)
            if _version(tensor) != version
        ]
        outputs, groups = self._describe(results, arguments)
        pointers = [inputs[i].data_ptr() for i in self._fixed]
        return Recording(replay, pointers, copied, outputs, groups, bumps)

    def _describe(
        self, results: Outputs, arguments: Sequence[Any]
    ) -> tuple[list[_Output], list[torch.Tensor]]:
        """How to hand out what the recorded run returned."""
        lent = {i: arguments[i] for i in self._tensors}
        lent |= {~i: tensor for i, tensor in enumerate(self._attributes)}
        given = {_memory(tensor): i for i, tensor in reversed(lent.items())}
        groups: dict[int, list[int]] = {}
        outputs: list[_Output] = []
        for result in results:
            if not isinstance(result, torch.Tensor):
                outputs.append(_Output(value=result))
                continue
            same = next((i for i, tensor in lent.items() if tensor is result), None)
            if same is not None:
                outputs.append(_Output(source=same))
                continue
            source = given.get(_memory(result))
            if source is not None and result.numel():
                argument = lent[source]
                if argument.dtype is not result.dtype or result.is_conj() or result.is_neg():
                    raise _RefusedError("a result is an input seen as another type")
                offset = result.storage_offset() - argument.storage_offset()
                layout = (result.shape, result.stride(), offset)
                outputs.append(_Output(source=source, layout=layout))
                continue
            groups.setdefault(_memory(result) or -1 - len(outputs), []).append(len(outputs))
            outputs.append(_Output())
        copies: list[torch.Tensor] = []
        for members in groups.values():
            tensors = [results[i] for i in members]
            if any(t.dtype is not tensors[0].dtype or t.is_conj() or t.is_neg() for t in tensors):
                raise _RefusedError("results share memory and have several types")
            for i in members:
                if self._lends is not None and i >= self._lends:
                    outputs[i].lent = results[i]
                outputs[i].group = len(copies)
            if all(outputs[i].lent is not None for i in members):
                continue
            if len(members) == 1 and _fills_its_storage(tensors[0]):
                copies.append(tensors[0])
                continue
            whole = tensors[0].untyped_storage().nbytes() // tensors[0].element_size()
            copies.append(torch.as_strided(tensors[0], (whole,), (1,), 0))
            for i in members:
                outputs[i].layout = (
                    results[i].shape,
                    results[i].stride(),
                    results[i].storage_offset(),
                )
        return outputs, copies


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    """Whether ``clone`` keeps strides, offset and size of the storage."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return is_dense(tensor) and whole and tensor.numel() > 0


def _buffer_for(tensor: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Memory for copies of ``tensor``, and whether it has the same layout or is flat."""
    if is_dense(tensor):
        return tensor.new_empty_strided(tensor.shape, tensor.stride()), True
    count = extent(tensor) // tensor.element_size()
    return torch.empty(count, dtype=tensor.dtype, device=tensor.device), False


def _like(buffer: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(buffer, tensor.shape, tensor.stride(), 0)


def _fill(buffer: torch.Tensor, tensor: torch.Tensor, dense: bool) -> None:
    if not dense:  # elements may share places, which copy_ refuses to write
        tensor = torch.as_strided(tensor, buffer.shape, (1,))
    buffer.copy_(tensor)
