"""Tile sizes of the RMS normalization kernels.

Three sources, the first that knows the case wins: what ``tune()`` stored on this machine, what was
measured and shipped (``MEASURED``), and a derived table that was **not measured**: it aims at
16-byte accesses, 16 elements a thread, and few rows per program only where rows are short.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from torchsmith_kernels._src.store import Table, tuned_table

FORWARD_LIMIT = 32768  # widest row that the forward kernel keeps in registers
BACKWARD_LIMIT = 8192  # the same for the backward kernel, which spills beyond


@dataclass(frozen=True, slots=True)
class Config:
    """Tile sizes of one kernel.

    Attributes:
        block_m: rows per step.
        block_n: columns per step; for a kernel that is not looped, at least the row's width.
        num_warps: warps per program.
        looped: whether a row is walked in steps.
        programs_per_sm: backward only: programs per multiprocessor that share the rows.
    """

    block_m: int
    block_n: int
    num_warps: int
    looped: bool = False
    programs_per_sm: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """What a configuration is chosen by: the kernel, the row's width and the dtype of the rows."""

    kernel: str
    width: int
    dtype: torch.dtype

    def key(self) -> str:
        """The case's name in stored tables."""
        return f"{self.kernel}/{self.width}/{str(self.dtype).removeprefix('torch.')}"


#: Measured configurations by compute capability and case. Only numbers that ``tune()`` printed on
#: that chip belong here; a case without an entry uses the derived table.
#: sm_90: one H200, torch 2.11, triton 3.6, 8192 rows, ``python -m torchsmith_kernels.tune``.
MEASURED: dict[int, dict[str, Config]] = {
    90: {
        "forward/1024/bfloat16": Config(2, 1024, 2),  # 13.5 us
        "forward/2048/bfloat16": Config(1, 2048, 4),  # 21.5 us
        "forward/4096/bfloat16": Config(2, 4096, 8),  # 37.82 us
        "forward/5120/bfloat16": Config(1, 8192, 8),  # 45.57 us
        "forward/8192/bfloat16": Config(1, 8192, 16),  # 69.76 us
        "forward/16384/bfloat16": Config(1, 16384, 32),  # 134.3 us
        "backward/1024/bfloat16": Config(1, 1024, 2, programs_per_sm=4),  # 41.92 us
        "backward/2048/bfloat16": Config(1, 2048, 4, programs_per_sm=4),  # 51.14 us
        "backward/4096/bfloat16": Config(1, 4096, 16, programs_per_sm=2),  # 89.06 us
        "backward/5120/bfloat16": Config(1, 8192, 16),  # 148.61 us
        "backward/8192/bfloat16": Config(1, 8192, 16),  # 167.01 us
        "backward/16384/bfloat16": Config(1, 4096, 16, looped=True, programs_per_sm=4),  # 377.66 us
    },
}


def next_power_of_2(n: int) -> int:
    """Smallest power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def derived(case: Case) -> Config:
    """The configuration that follows from the sizes alone; not measured."""
    if case.kernel == "forward":
        if case.width > FORWARD_LIMIT:
            return Config(1, 8192, 16, looped=True)
        block_n = max(16, next_power_of_2(case.width))
        block_m = max(1, 2048 // block_n)
        return Config(block_m, block_n, _warps(block_m * block_n, 16))
    if case.width > BACKWARD_LIMIT:
        return Config(1, 4096, 16, looped=True, programs_per_sm=2)
    block_n = max(16, next_power_of_2(case.width))
    block_m = max(1, 1024 // block_n)
    return Config(block_m, block_n, _warps(block_m * block_n, 16), programs_per_sm=2)


def _warps(elements: int, per_thread: int) -> int:
    return max(1, min(32 if elements > 8192 else 16, elements // (32 * per_thread)))


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries: the derived configuration and its neighbours."""
    base = derived(case)
    found = [base]
    # Fewer warps give each thread more registers' worth of a row; only forward has them to spare.
    fewer = base.num_warps // 2 if case.kernel == "forward" else base.num_warps
    for warps in (fewer, base.num_warps * 2):
        if 1 <= warps <= 32:
            found.append(_replace(base, num_warps=warps))
    if case.kernel == "forward":
        if base.block_m > 1:
            found.append(_replace(base, block_m=base.block_m // 2))
        if not base.looped:
            found.append(_replace(base, block_m=base.block_m * 2))
            if case.width > 8192:
                found.append(Config(1, 4096, 8, looped=True))
    else:
        for programs in (1, 4):
            found.append(_replace(base, programs_per_sm=programs))
    return list(dict.fromkeys(found))


def _replace(config: Config, **changes: int) -> Config:
    return Config(**{**asdict(config), **changes})


def choose(case: Case, capability: int) -> tuple[Config, str]:
    """The configuration of ``case`` and where it is from: ``tuned``, ``measured`` or ``derived``.

    Args:
        case: kernel, width and dtype.
        capability: compute capability as ``10 * major + minor``.
    """
    stored: Table = tuned_table("rms_norm", capability)
    entry = stored.get(case.key())
    if entry is not None and (config := from_json(case, entry.get("config"))) is not None:
        return config, "tuned"
    measured = MEASURED.get(capability, {}).get(case.key())
    if measured is not None:
        return measured, "measured"
    return derived(case), "derived"


def from_json(case: Case, fields: object) -> Config | None:
    """A stored configuration, or None when it is not one that the kernels accept."""
    if not isinstance(fields, dict):
        return None
    try:
        config = Config(**fields)
    except TypeError:
        return None
    numbers = (config.block_m, config.block_n, config.num_warps, config.programs_per_sm)
    if not all(isinstance(n, int) and n > 0 for n in numbers) or config.num_warps > 32:
        return None
    powers = all(n & (n - 1) == 0 for n in numbers[:3])
    fits = config.looped or config.block_n >= case.width
    return config if powers and fits and isinstance(config.looped, bool) else None
