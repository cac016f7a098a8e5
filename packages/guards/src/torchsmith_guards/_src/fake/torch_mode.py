"""Torch's ``FakeTensorMode``, set up for our ``ShapeEnv``."""

from __future__ import annotations

import contextlib
import logging
import threading
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Self

from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode

if TYPE_CHECKING:
    from torchsmith_guards._src.shapes.env import ShapeEnv


class _Quiet(logging.Filter):
    """Drops torch's own traceback log of an operator that fails while our modes are active.

    The exception itself goes to the caller, who reports it in the user's terms.
    """

    def __init__(self) -> None:
        super().__init__()
        self.active = threading.local()

    def enter(self, step: int) -> None:
        self.active.depth = getattr(self.active, "depth", 0) + step

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self.active, "depth", 0)


_QUIET = _Quiet()
logging.getLogger(FakeTensorMode.__module__).addFilter(_QUIET)


class TorchMode(FakeTensorMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """A fake tensor mode whose symbolic sizes belong to a ``ShapeEnv`` of this package."""

    def __init__(self, shape_env: ShapeEnv | None) -> None:
        # Constants of the traced program are real tensors and may meet fake ones.
        super().__init__(allow_non_fake_inputs=True, static_shapes=shape_env is None)
        self._env = shape_env
        self._dispatchers: list[contextlib.AbstractContextManager[None]] = []
        if shape_env is not None:
            self.shape_env = shape_env  # type: ignore[assignment]  # see TorchProtocol

    @property
    def _symbolic(self) -> bool:
        return self._env is not None and self._env.has_symbols

    @property
    def cache_enabled(self) -> bool:
        """Torch's cache of results; it reaches into the insides of torch's own symbolic nodes."""
        return self._cache_enabled and not self._symbolic

    @cache_enabled.setter
    def cache_enabled(self, enabled: bool) -> None:
        self._cache_enabled = enabled

    def __enter__(self) -> Self:
        # With symbolic sizes, operators must take their Python decompositions: the C++ ones ask
        # for the sizes as plain ints, which specialises them.
        dispatcher = enable_python_dispatcher() if self._symbolic else nullcontext()
        dispatcher.__enter__()
        self._dispatchers.append(dispatcher)
        _QUIET.enter(1)
        return super().__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc, trace)
        _QUIET.enter(-1)
        self._dispatchers.pop().__exit__(exc_type, exc, trace)
