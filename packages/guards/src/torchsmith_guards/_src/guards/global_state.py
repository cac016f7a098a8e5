"""``GlobalState``: torch's ambient state, read once and compared together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch

from torchsmith_guards._src import torch_private as private

_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
_inference_enabled: Callable[[], bool] = torch.is_inference_mode_enabled
_any_autocast: Callable[[], bool] = private.any_autocast_enabled
_default_dtype: Callable[[], torch.dtype] = torch.get_default_dtype
_autocast_of: Callable[[str], bool] = torch.is_autocast_enabled
_autocast_dtype: Callable[[str], torch.dtype] = torch.get_autocast_dtype
_autocast_cache: Callable[[], bool] = torch.is_autocast_cache_enabled
_deterministic: Callable[[], bool] = private.deterministic_algorithms
_warn_only: Callable[[], bool] = torch.is_deterministic_algorithms_warn_only_enabled
_function_modes: Callable[[], int] = private.function_mode_count
_dispatch_modes: Callable[[], int] = private.dispatch_mode_count
_functorch: Callable[[], object] = private.functorch_level
_forward_level: Callable[[], int] = private.forward_level
_tracing: Callable[[], bool] = private.is_tracing
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class AutocastState:
    """Autocast of one device type."""

    device: str
    enabled: bool
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class GlobalState:
    """Snapshot of the state that changes what an operator does without being an argument of it.

    Attributes:
        grad_enabled: ``torch.is_grad_enabled()``.
        inference_mode: ``torch.is_inference_mode_enabled()``.
        autocast: state per device type; empty while no autocast is enabled anywhere.
        autocast_cache: whether autocast caches casts of weights (False when autocast is off).
        default_dtype: ``torch.get_default_dtype()``.
        default_device: device that factory functions use.
        deterministic: ``torch.use_deterministic_algorithms`` flag.
        deterministic_warn_only: its ``warn_only`` (False when the flag is off).
        function_modes: types (and devices) of the active torch-function modes, outermost first.
        torch_function_enabled: False inside ``DisableTorchFunctionSubclass`` and the like.
        dispatch_modes: number of active torch-dispatch modes.
        functorch: whether a ``torch.func`` transform, a level of forward differentiation or
            ``torch.jit.trace`` is active.
    """

    grad_enabled: bool
    inference_mode: bool
    autocast: tuple[AutocastState, ...]
    autocast_cache: bool
    default_dtype: torch.dtype
    default_device: torch.device
    deterministic: bool
    deterministic_warn_only: bool
    function_modes: tuple[tuple[type, torch.device | None], ...]
    torch_function_enabled: bool
    dispatch_modes: int
    functorch: bool

    @staticmethod
    def capture() -> GlobalState:
        """The state of the calling thread now."""
        autocast = _any_autocast()
        deterministic = _deterministic()
        found = [private.function_mode_at(i) for i in range(_function_modes())]
        modes = tuple((type(m), private.mode_device(m)) for m in found)
        return GlobalState(
            grad_enabled=_grad_enabled(),
            inference_mode=_inference_enabled(),
            autocast=_autocast_states() if autocast else (),
            autocast_cache=autocast and _autocast_cache(),
            default_dtype=_default_dtype(),
            # Asked in a device context only: it costs microseconds, and a mode would be told of it.
            default_device=torch.get_default_device() if any(d for _, d in modes) else _CPU,
            deterministic=deterministic,
            deterministic_warn_only=deterministic and _warn_only(),
            function_modes=modes,
            torch_function_enabled=private.torch_function_enabled(),
            dispatch_modes=_dispatch_modes(),
            functorch=_functorch() is not None or _forward_level() >= 0 or _tracing(),
        )

    def matches(self) -> bool:
        """True when the calling thread's state equals this snapshot. Under half a microsecond
        in the common case (no modes, no autocast)."""
        return self.matcher()()

    def matcher(self) -> Callable[[], bool]:
        """A function that compares the thread's state with this snapshot as cheaply as it can."""
        if self.function_modes or self.dispatch_modes or self.functorch:
            return lambda: GlobalState.capture() == self
        grad, inference, dtype = self.grad_enabled, self.inference_mode, self.default_dtype
        autocast, deterministic = bool(self.autocast), self.deterministic
        function, torch_function = self.torch_function_enabled, private.torch_function_enabled

        def plain() -> bool:
            return (
                _grad_enabled() is grad
                and _inference_enabled() is inference
                and not _function_modes()
                and _any_autocast() is autocast
                and _default_dtype() is dtype
                and _deterministic() is deterministic
                and not _dispatch_modes()
                and _functorch() is None
                and _forward_level() < 0
                and not _tracing()
                and torch_function() is function
            )

        if not autocast and not deterministic:
            return plain
        casts = [(state.device, state.enabled, state.dtype) for state in self.autocast]
        more = self.autocast_cache, self.deterministic_warn_only
        on, into, cache, warns = _autocast_of, _autocast_dtype, _autocast_cache, _warn_only

        def both() -> bool:
            if not plain() or (autocast and cache(), deterministic and warns()) != more:
                return False
            return all(on(d) is enabled and into(d) is dtype for d, enabled, dtype in casts)

        return both

    def differences(self, other: GlobalState) -> list[tuple[str, object, object]]:
        """``(field name, value here, value in other)`` of every field that differs."""
        return [
            (f.name, getattr(self, f.name), getattr(other, f.name))
            for f in fields(self)
            if getattr(self, f.name) != getattr(other, f.name)
        ]


def _autocast_states() -> tuple[AutocastState, ...]:
    return tuple(
        AutocastState(d, _autocast_of(d), _autocast_dtype(d)) for d in private.autocast_devices()
    )
