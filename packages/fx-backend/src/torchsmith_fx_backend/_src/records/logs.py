"""``TORCHSMITH_LOGS=aot,loops,schedule,code,tuning``: each stage's result, to standard error."""

from __future__ import annotations

import logging
import os

STAGES = ("aot", "loops", "schedule", "code", "tuning")


def logger(stage: str) -> logging.Logger:
    """The logger of one of ``STAGES``; it prints at DEBUG level."""
    return logging.getLogger(f"torchsmith.{stage}")


def wanted() -> list[str]:
    """The stages that are printed and must run for that; a cached graph has its code, and what
    was measured earlier is not measured again."""
    return [s for s in STAGES[:-2] if logger(s).isEnabledFor(logging.DEBUG)]


def switch_on() -> None:
    """Print the stages that the environment variable names. Unknown names are other packages'."""
    asked = {part.strip() for part in os.environ.get("TORCHSMITH_LOGS", "").split(",")}
    for stage in STAGES:
        if stage in asked:
            log = logger(stage)
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("[%(name)s]\n%(message)s"))
            log.addHandler(handler)
            log.setLevel(logging.DEBUG)
            log.propagate = False
