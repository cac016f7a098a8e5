"""The stance: whether compiled functions of this process may compile, or run compiled at all.

Dispatchers never ask for it. While all is to run eagerly they have other code, which is exchanged
when the stance changes; the other stances are asked for where no version fits.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from torchsmith_tracer._src import marks

if TYPE_CHECKING:
    from torchsmith_tracer._src.regions.region import Region

Stance = Literal["default", "force_eager", "eager_on_recompile", "fail_on_recompile"]
_F = TypeVar("_F", bound=Callable[..., Any])


listeners: weakref.WeakSet[Region] = weakref.WeakSet()  # who has dispatchers
_current: Stance = "default"


def current() -> Stance:
    """The stance of this process."""
    return _current


def _apply(stance: Stance) -> None:
    global _current
    renew = "force_eager" in (stance, _current) and stance != _current
    _current = stance
    for listener in list(listeners) if renew else ():
        listener.renew_dispatchers()


marks.mark(_apply, marks.DISABLED, "it changes how compiled functions run")  # type: ignore[arg-type]


class set_stance:
    """Say what compiled functions of this process do from now on, within a ``with`` block, or
    within calls of a decorated function.

    Args:
        stance: ``default``; ``force_eager``: they run as if they were not compiled;
            ``eager_on_recompile``: versions that exist are used, and where none fits they run
            eagerly; ``fail_on_recompile``: there they raise ``RecompileError``.
    """

    def __init__(self, stance: Stance = "default") -> None:
        if stance not in get_args(Stance):
            raise ValueError(f"unknown stance {stance!r}; valid: {', '.join(get_args(Stance))}")
        self._before, self._stance = _current, stance
        _apply(stance)

    def __enter__(self) -> None:
        _apply(self._stance)

    def __exit__(self, *raised: object) -> None:
        _apply(self._before)

    def __call__(self, fn: _F) -> _F:
        _apply(self._before)  # a decorator changes nothing by itself

        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self._stance):
                return fn(*args, **kwargs)

        return run  # type: ignore[return-value]
