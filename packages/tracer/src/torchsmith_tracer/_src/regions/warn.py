"""``warnings.warn`` as generated code calls it: frames of ours do not count.

``stacklevel`` names a frame of the program, whose file and line the warning shows and whose module
remembers that it was shown. Between two frames of the program there may be some of ours.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from torchsmith_tracer._src.frames.library import is_generated

WARN = warnings.warn


def warn(
    message: Any, category: Any = None, stacklevel: Any = 1, source: Any = None, **skipped: Any
) -> None:
    """``warnings.warn``, called from a frame of the program."""
    level = stacklevel
    if isinstance(level, int):
        left, level, frame = max(level, 1), 1, sys._getframe(1)
        while frame is not None and left:
            file = frame.f_code.co_filename
            if not ("importlib" in file and "_bootstrap" in file):  # as `warnings.warn` itself does
                level += 1
                left -= not is_generated(frame.f_code)
            frame = frame.f_back  # type: ignore[assignment]
        level += left  # beyond the outermost frame
    WARN(message, category, level, source, **skipped)
