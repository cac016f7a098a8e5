"""What a GPU could do at best, from what it says of itself."""

from __future__ import annotations

import functools
from typing import Any

import torch


@functools.cache
def roof(device: str) -> dict[str, Any] | None:
    """Bytes and float32 operations per second of a device; None where it does not say."""
    kind = torch.device(device)
    if kind.type != "cuda" or not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(kind)
    # Multiply-adds in float32 per multiprocessor and cycle, from Volta on.
    lanes = 64 if (properties.major, properties.minor) <= (8, 0) else 128
    memory = getattr(properties, "memory_clock_rate", 0)  # kHz, two transfers a cycle
    clock = getattr(properties, "clock_rate", 0)
    if not (memory and clock) or properties.major < 7:
        return None
    bandwidth = 2 * memory * 1e3 * properties.memory_bus_width / 8
    flops = 2.0 * lanes * properties.multi_processor_count * clock * 1e3
    basis = (
        f"The roof of {properties.name}, from its clocks, bus and multiprocessors: "
        f"{bandwidth / 1e12:.2f} TB/s and {flops / 1e12:.0f} Tflop/s in float32."
    )
    return {"bandwidth": bandwidth, "flops": flops, "basis": basis}
