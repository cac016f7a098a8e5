"""The listeners, and telling them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from torch import fx

Listener = Callable[[fx.GraphModule, Exception], object]
_listeners: list[Listener] = []


def on_failure(listener: Listener) -> Callable[[], None]:
    """Call ``listener(graph, error)`` whenever the compiler fails on a graph or a kernel of it,
    also where the graph then runs in another way.

    Returns:
        A function that ends this.
    """
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def report_failure(gm: fx.GraphModule, error: Exception) -> None:
    """Tell the listeners, once of each error; a listener that fails itself is a warning."""
    if getattr(error, "told", False):
        return
    error.told = True  # type: ignore[attr-defined]
    for listener in tuple(_listeners):
        try:
            listener(gm, error)
        except Exception as problem:  # noqa: BLE001 - nobody's program stops at this
            warnings.warn(f"torchsmith: a failure was not recorded: {problem}", stacklevel=2)
