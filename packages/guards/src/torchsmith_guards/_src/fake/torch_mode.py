"""Torch's ``FakeTensorMode``, set up for our ``ShapeEnv``."""

from __future__ import annotations

import contextlib
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Self

from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode

if TYPE_CHECKING:
    from torchsmith_guards._src.shapes.env import ShapeEnv


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
        return super().__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc, trace)
        self._dispatchers.pop().__exit__(exc_type, exc, trace)
