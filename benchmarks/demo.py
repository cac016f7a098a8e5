"""Train a small GPT and run an image model on the CPU; compare with eager and torch.compile.

Every measurement is a fresh process with empty caches, as a user's first run is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from run import run_worker, short
from worker import SYSTEMS, make

MODELS = {"gpt": True, "resnet": False}  # -> whether it is trained
LABELS = {"gpt": "GPT (4 layers), training", "resnet": "ResNet"}


def table(rows: list[dict[str, object]]) -> str:
    """The rows as aligned text."""
    head = ["model", "system", "first call", "step", "error", "graphs", "kernels"]
    lines = [head]
    for row in rows:
        name = LABELS[str(row["model"])]
        if "failed" in row:
            lines.append([name, str(row["system"]), f"failed: {row['failed']}", "", "", "", ""])
            continue
        kernels = str(row["kernels"]) if int(str(row["kernels"])) >= 0 else "-"
        graphs = str(row["graphs"]) if int(str(row["graphs"])) >= 0 else "-"
        lines.append(
            [
                name,
                str(row["system"]),
                f"{row['first_s']:.2f} s",
                f"{1e3 * row['step_s']:.2f} ms",
                f"{row['error']:.1e}",
                graphs,
                kernels,
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines]
    text.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(text)


def fused_kernel() -> str:
    """The C source of the GPT's kernel with the most operations, with its Python lines."""
    import torch
    import torchsmith

    model, inputs = make("gpt")
    with torch.no_grad():
        report = torchsmith.explain(model)(**inputs)
    sources = [kernel.source for kernel in report.kernels]
    reductions = [text for text in sources if "reduction(" in text] or sources
    return max(reductions, key=len)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of steps a model")
    args = parser.parse_args()
    args.device, args.dtype = "cpu", "float32"
    rows = []
    total = len(MODELS) * len(SYSTEMS)
    for model, train in MODELS.items():
        for system in SYSTEMS:
            note = " (takes half a minute)" if system == "torch.compile" else ""
            step = f"[{len(rows) + 1}/{total}]"
            print(f"{step} {LABELS[model]} under {system}{note} ...", end="", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                row = run_worker(model, system, Path(folder), args, train)
            print(f" {short(row)}", flush=True)
            rows.append(row)
    print("\n" + table(rows))
    print("\nOne fused kernel of the GPT, as generated:\n")
    print(fused_kernel())
    sys.exit(1 if any("failed" in row for row in rows) else 0)


if __name__ == "__main__":
    main()
