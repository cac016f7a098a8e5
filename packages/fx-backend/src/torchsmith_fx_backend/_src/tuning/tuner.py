"""Chooses the configuration of each kernel of a graph by measuring, once per machine.

A choice is kept in the cache under what it depends on: the kernel, the sizes of the launch, the
device and the versions of the printer and of Triton. Kernels come in the order of the bytes that
they move, so that a budget that runs out leaves those that matter least.
"""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from torchsmith_fx_backend._src.capture.torch_private import without_active_modes
from torchsmith_fx_backend._src.codegen.triton.config import Config
from torchsmith_fx_backend._src.codegen.triton.source import content_hash
from torchsmith_fx_backend._src.loops.ir import Reduce, Scan
from torchsmith_fx_backend._src.records import logs
from torchsmith_fx_backend._src.records.choices import Choice
from torchsmith_fx_backend._src.runtime.cache import Cache
from torchsmith_fx_backend._src.runtime.launchers import (
    KernelRequest,
    Tunable,
    Unavailable,
    launcher_for,
)
from torchsmith_fx_backend._src.schedule.plan import Launch
from torchsmith_fx_backend._src.tuning.stopwatch import CudaStopwatch, Run, Stopwatch
from torchsmith_fx_backend._src.tuning.workload import Workload

WARM_UP = 2  # launches before any that counts
FEWEST, MOST = 5, 40  # launches that count, of each candidate
SPAN = 0.1  # seconds that all candidates of a kernel should take together
HOPELESS = 2.0  # times the fastest: not measured again
NOISE = 0.97  # what is not below this share of the table's time is no gain
_FORMAT = 1


class Tuner:
    """Measures the kernels of one graph.

    Attributes:
        complete: every kernel that has something to choose was measured, now or earlier.
    """

    def __init__(
        self,
        seconds: float,
        hints: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.perf_counter,
        stopwatch: Callable[[torch.device], Stopwatch] = CudaStopwatch,
    ) -> None:
        """Nothing is measured yet.

        Args:
            seconds: no kernel is begun when these are over.
            hints: likely values of size symbols.
            clock: what ``seconds`` are counted with.
            stopwatch: the device with which launches are measured.
        """
        self.complete = True
        self._seconds = seconds
        self._hints = hints
        self._clock = clock
        self._new_stopwatch = stopwatch
        self._stopwatches: dict[torch.device, Stopwatch] = {}

    def tune(
        self, requests: Sequence[KernelRequest], launches: Sequence[Sequence[Launch]], cache: Cache
    ) -> tuple[list[KernelRequest], tuple[Choice, ...]]:
        """The requests with the configurations that won, and what is to be told of each.

        Args:
            requests: distinct kernels.
            launches: for each, where the plan launches it.
            cache: where choices are kept.
        """
        begin = self._clock()
        works = [Workload.of(steps[0], self._hints) for steps in launches]
        moved = [0 if w is None else w.bytes * len(s) for w, s in zip(works, launches)]
        choices: dict[int, Choice] = {}
        try:
            with without_active_modes(), torch.no_grad():
                for number in sorted(range(len(requests)), key=lambda n: -moved[n]):
                    over = self._clock() - begin >= self._seconds
                    choices[number] = self._choice(requests[number], works[number], cache, over)
        finally:
            for each in self._stopwatches.values():
                each.close()
            self._stopwatches.clear()
        every = tuple(choices[number] for number in range(len(requests)))
        return [replace(r, config=c.other) for r, c in zip(requests, every)], every

    def _choice(
        self, request: KernelRequest, work: Workload | None, cache: Cache, over: bool
    ) -> Choice:
        launcher = launcher_for(request.device)
        if not isinstance(launcher, Tunable):
            return Choice(reason="C kernels have one form each")
        if work is None:
            return Choice(reason="its sizes depend on data")
        ordered = any(isinstance(node, Reduce | Scan) for node in work.kernel.body)
        if ordered and torch.are_deterministic_algorithms_enabled():
            return Choice(reason="deterministic algorithms are asked for")
        try:
            configs, machine = launcher.candidates(work.kernel, work.sizes, request.device)
            sizes = f"{work.lengths}:{sorted(work.sizes.items())}"
            key = f"tuning {_FORMAT}:{machine}:{content_hash(work.kernel)}:{sizes}"
            files = cache.get(key)
            if files is not None:
                return Choice.from_json(json.loads(files["choice.json"]))
            obstacle = "the time for it was over" if over else self._obstacle(work)
            if obstacle:
                self.complete = False
                return Choice(reason=obstacle)
            choice = self._measure(launcher, request, work, configs, cache)
        except (Unavailable, OSError, RuntimeError) as error:  # out of memory, a lost device
            return Choice(reason=f"{type(error).__name__}: {error}")
        cache.put(key, {"choice.json": json.dumps(choice.to_json()).encode()})
        return choice

    def _obstacle(self, work: Workload) -> str:
        if work.device not in self._stopwatches:
            self._stopwatches[work.device] = self._new_stopwatch(work.device)
        return self._stopwatches[work.device].obstacle(work.bytes)

    def _measure(
        self,
        launcher: Tunable,
        request: KernelRequest,
        work: Workload,
        configs: Sequence[Config],
        cache: Cache,
    ) -> Choice:
        """The fastest of ``configs``, the first of which is the table's."""
        trials = [replace(request, kernel=work.kernel, config=config) for config in configs]
        loaded = launcher.attempt(trials, cache)
        stopwatch = self._stopwatches[work.device]
        buffers = work.buffers()
        arguments = (*(buffer.data_ptr() for buffer in buffers), *work.sizes.values())
        runs: dict[Config, Run] = {}
        times: dict[Config, float] = {}
        wrong: dict[Config, Exception] = {}
        for config, kernel in zip(configs, loaded):
            try:
                if isinstance(kernel, Exception):
                    raise kernel
                runs[config] = partial(kernel.launch, *arguments)
                times[config] = stopwatch.rounds([runs[config]], WARM_UP)[0][-1]
            except Exception as error:  # noqa: BLE001 - whatever it is, others run
                wrong[config] = error
        table = configs[0]
        limit = HOPELESS * min(times.values(), default=0.0)
        left = [config for config in times if times[config] <= limit or config == table]
        total = sum(times[config] for config in left)
        count = max(FEWEST, min(MOST, int(SPAN / max(total, 1e-9))))
        if len(left) > 1:
            found = stopwatch.rounds([runs[config] for config in left], count)
            times.update(zip(left, map(statistics.median, found)))
        _log(request, times, wrong)
        if not left:
            return Choice(reason=f"none of {len(configs)} configurations runs")
        best = min(left, key=times.__getitem__)
        if table in times and times[best] > NOISE * times[table]:
            best = table
        return Choice(best, times[best], table, times.get(table), len(times), len(wrong))


def _log(
    request: KernelRequest, times: Mapping[Config, float], wrong: Mapping[Config, Exception]
) -> None:
    log = logs.logger("tuning")
    if log.isEnabledFor(logging.DEBUG):
        lines = [f"# {origin}" for origin in request.origins]
        lines += [f"{times[c] * 1e6:10.1f} us  {c}" for c in sorted(times, key=times.__getitem__)]
        lines += [f"    failed     {config}: {error}" for config, error in wrong.items()]
        log.debug("%s", "\n".join(lines))
