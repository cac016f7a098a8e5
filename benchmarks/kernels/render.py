"""``results*.json`` to ``packages/kernels/BENCHMARKS.md`` and its charts.

    python benchmarks/kernels/render.py RESULTS.json [MORE.json ...]

Rows of later files replace those of earlier ones. ``"notes": {op: text}``, written into a file of
results by hand, stands above the op's rows: what has changed since they were measured.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "packages" / "kernels" / "BENCHMARKS.md"
CHARTS = ROOT / "packages" / "kernels" / "benchmarks"
PEERS = ("eager", "compile", "liger")

Row = dict[str, Any]


def load(paths: list[Path]) -> dict[str, Any]:
    """The records of all files as one."""
    merged: dict[str, Any] = {}
    rows: dict[tuple[str, ...], Row] = {}
    notes: dict[str, str] = {}
    for path in paths:
        record = json.loads(path.read_text())
        notes |= record.get("notes", {})
        for row in record["rows"]:
            row["peaks"] = record["peaks"]
            rows[tuple(row[k] for k in ("op", "shape", "direction", "dtype"))] = row
        merged = {**record, "rows": []}
    merged["shares"], merged["notes"] = len(paths), notes
    merged["rows"] = sorted(rows.values(), key=lambda row: (row["op"], row["direction"]))
    return merged


def _time(row: Row, name: str) -> str:
    if name in row["us"]:
        return f"{row['us'][name]:.1f}"
    return "failed" if name in row["failed"] else ""


def _reach(row: Row) -> str:
    if row.get("flop/s"):
        return f"{row['flop/s'] / 1e12:.0f} TFLOP/s"
    return f"{row['of copy']:.0%}" if row.get("of copy") else ""


def table(rows: list[Row]) -> list[str]:
    """The Markdown table of one op."""
    lines = [
        "| shape | | ours us | eager | torch.compile | Liger | best peer / ours | reaches |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = row.get("best peer / ours")
        cells = [row["shape"], f"{row['direction']}, {row['dtype']}"]
        cells += [_time(row, name) for name in ("ours", *PEERS)]
        cells += [f"{ratio:.2f}x" if ratio else "", _reach(row)]
        lines.append("| " + " | ".join(cells) + " |")
    memory = [row for row in rows if "peak bytes" in row]
    if memory:
        lines += ["", "Peak memory above the inputs, GiB:", ""]
        lines += ["| shape | | ours | eager | torch.compile | Liger |", "|---|---|---|---|---|---|"]
        for row in memory:
            peak = row["peak bytes"]
            values = [f"{peak[n] / 2**30:.2f}" if n in peak else "" for n in ("ours", *PEERS)]
            lines.append(f"| {row['shape']} | {row['direction']} | " + " | ".join(values) + " |")
    return lines


def geomean(values: list[float]) -> float:
    """Geometric mean."""
    return math.exp(sum(math.log(v) for v in values) / len(values))


def summary(rows: list[Row]) -> list[str]:
    """One line per op and direction: how often and how far ahead or behind."""
    lines = [
        "| op | | cases | best peer / ours: geomean | lowest | reaches: lowest | highest |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["op"], row["direction"]), []).append(row)
    for (op, direction), members in groups.items():
        ratios = [r["best peer / ours"] for r in members if r.get("best peer / ours")]
        key = "flop/s" if any(r.get("flop/s") for r in members) else "of copy"
        ordered = sorted((r for r in members if r.get(key)), key=lambda r: float(r[key]))
        ends = [_reach(r) for r in (ordered[:1] + ordered[-1:])] if ordered else ["", ""]
        numbers = [f"{geomean(ratios):.2f}x", f"{min(ratios):.2f}x"] if ratios else ["", ""]
        cells = [op, direction, str(len(members)), *numbers, *ends]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def page(record: dict[str, Any]) -> str:
    """The whole of BENCHMARKS.md."""
    rows: list[Row] = record["rows"]
    peaks = record["peaks"]
    count = record["shares"]
    shares = f", the cases shared among {count} GPUs of one host (`--share`)" if count > 1 else ""
    lines = [
        "# Benchmarks of the kernels",
        "",
        f"{record['device']}, torch {record['torch']}, triton {record['triton']}. Made by "
        f"`nox -s bench-kernels`{shares}; median times in microseconds with a flushed L2 cache, "
        "all versions of a row one after the other in one process. In the same run a large copy "
        "moves "
        f"{peaks['copy bytes/s'] / 1e12:.2f} TB/s (bytes read plus written) and an 8192^3 bf16 "
        f"matrix product reaches {peaks['matmul flop/s'] / 1e12:.0f} TFLOP/s.",
        "",
        "*eager* is the fastest of aten, cuDNN and cuBLAS, *torch.compile* the eager formula "
        "compiled for the static shape, *Liger* the op of liger-kernel where it has one. *best "
        "peer / ours* above 1 means that ours is the fastest. *reaches* is the share of the copy's "
        "bandwidth that the fewest necessary bytes make, or the rate of the matrix products.",
        "",
        "![Share of copy bandwidth of the memory-bound ops](benchmarks/bandwidth.png)",
        "",
        "![Roofline of the ops with matrix products](benchmarks/roofline.png)",
        "",
        "## Summary",
        "",
        *summary(rows),
        "",
        "## CPU time of a call from eager",
        "",
        "Microseconds until the call returns, inputs of a few kilobytes, no gradient recorded "
        "except where said.",
        "",
        "| op | us |",
        "|---|---|",
        *(f"| {name} | {us:.1f} |" for name, us in record["overhead us"].items()),
    ]
    for op in dict.fromkeys(row["op"] for row in rows):
        note = [record["notes"][op], ""] if op in record["notes"] else []
        lines += ["", f"## {op}", "", *note, *table([row for row in rows if row["op"] == op])]
    return "\n".join(lines) + "\n"


def charts(record: dict[str, Any]) -> None:
    """Writes the two PNG files."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows: list[Row] = record["rows"]
    CHARTS.mkdir(exist_ok=True)
    bound = [r for r in rows if r.get("of copy") and not r.get("flop/s")]
    names = list(dict.fromkeys(r["op"] for r in bound))
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(names) + 1.6))
    colors = {"forward": "tab:blue", "backward": "tab:orange", "both": "tab:green"}
    for row in bound:
        offset = {"forward": 0.15, "backward": -0.15}.get(row["direction"], 0.0)
        y = names.index(row["op"]) + offset
        axes.plot(100 * row["of copy"], y, "o", ms=5, alpha=0.7, color=colors[row["direction"]])
    axes.axvline(100, color="black", lw=0.8)
    axes.axvline(85, color="grey", lw=0.8, ls="--")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, None)
    axes.set_xlabel("share of the bandwidth of a device-to-device copy, %")
    for name, color in colors.items():
        axes.plot([], [], "o", color=color, label=name)
    axes.legend(loc="lower left", fontsize=8)
    figure.tight_layout()
    figure.savefig(CHARTS / "bandwidth.png", dpi=130)

    figure, axes = plt.subplots(figsize=(9, 5))
    peaks = record["peaks"]
    ridge = peaks["matmul flop/s"] / peaks["copy bytes/s"]
    intensity = sorted([2.0**k for k in range(5, 17)] + [ridge])
    roof = [min(peaks["copy bytes/s"] * i, peaks["matmul flop/s"]) / 1e12 for i in intensity]
    axes.loglog(intensity, roof, color="black", lw=1, label="measured copy and cuBLAS")
    heavy = [r for r in rows if r.get("flop/byte")]
    for mark, op in zip("os^vD*Px", dict.fromkeys(r["op"] for r in heavy), strict=False):
        points = [r for r in heavy if r["op"] == op]
        axes.loglog(
            [r["flop/byte"] for r in points],
            [r["flop/s"] / 1e12 for r in points],
            mark, ms=6, alpha=0.7, label=op,
        )  # fmt: skip
    axes.set_xlabel("floating point operations per byte of device memory")
    axes.set_ylabel("TFLOP/s")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(CHARTS / "roofline.png", dpi=130)


def main() -> int:
    """Writes the page and the charts."""
    paths = [Path(name) for name in sys.argv[1:]] or [Path(__file__).parent / "results.json"]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        sys.stderr.write(f"no results in {', '.join(missing)}; run benchmarks/kernels/run.py\n")
        return 2
    record = load(paths)
    PAGE.write_text(page(record))
    charts(record)
    print(PAGE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
