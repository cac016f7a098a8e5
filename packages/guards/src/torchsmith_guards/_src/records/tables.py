"""Records as text tables: plain columns, no dependency."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from torchsmith_guards._src.records.rows import FrameRecord, GraphRecord


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows under a header in columns; numbers are put to the right."""
    texts = [[_cell(value) for value in row] for row in rows]
    right = [_all_numbers([row[i] for row in texts]) for i in range(len(header))]
    widths = [max(map(len, column)) for column in zip(header, *texts)]
    lines = [list(header), ["-" * width for width in widths], *texts]
    return "\n".join(
        "  ".join(
            text.rjust(width) if aside else text.ljust(width)
            for text, width, aside in zip(line, widths, right)
        ).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value).replace("\n", " ")


def _all_numbers(cells: list[str]) -> bool:
    return all(c == "-" or c.replace(".", "", 1).lstrip("-").isdigit() for c in cells)


def _ms(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1e3:.1f}"


def frames(records: Sequence[FrameRecord]) -> str:
    """One row for each compiled frame."""
    header = ("id", "function", "ms", "trace", "guards", "backend", "ops", "checks", "result")
    rows = []
    for record in records:
        spent = spent_on(record)
        result: str = record.outcome
        if record.outcome == "failed":
            result = f"failed: {record.failure}"
        elif record.break_ is not None:
            result += f", breaks: {record.break_.get('id')}"
        stages = [_ms(spent.get(name)) for name in ("trace", "guards", "backend")]
        row = (record.compile_id, record.label, _ms(record.seconds), *stages)
        rows.append((*row, record.ops, record.guards, result))
    return f"Frames: {len(records)}\n{table(header, rows)}"


def graphs(records: Sequence[GraphRecord]) -> str:
    """One row for each graph."""
    header = ("graph", "frame", "kind", "backend", "ms", "ops", "kernels", "bytes", "cache")
    rows = [
        (
            record.graph_id,
            record.compile_id,
            record.kind,
            record.backend,
            _ms(record.seconds),
            record.ops,
            len(record.kernels),
            record.bytes,
            f"{record.cache}: {record.cache_reason}" if record.cache_reason else record.cache,
        )
        for record in records
    ]
    return f"Graphs: {len(records)}\n{table(header, rows)}"


def breaks(records: Sequence[FrameRecord]) -> str:
    """Each graph break once, with how often it was met."""
    found = Counter(
        (str(b.get("id")), str(b.get("what")), f"{b.get('file')}:{b.get('line')}", b.get("advice"))
        for b in (record.break_ for record in records)
        if b is not None
    )
    lines = [f"Graph breaks: {len(found) or 'none'}"]
    for (code, what, place, advice), number in found.items():
        lines.append(f"  [{code}] {what}" + (f" ({number} times)" if number > 1 else ""))
        lines += [f"    {place}", f"    {advice}"]
    return "\n".join(lines)


def recompiles(records: Sequence[FrameRecord]) -> str:
    """For each function that was compiled again: what changed, where it is used, what to do."""
    again: dict[str, list[FrameRecord]] = defaultdict(list)
    for record in records:
        if record.recompiled:
            again[record.label].append(record)
    if not again:
        return "Recompiles: none"
    lines = [f"Recompiles: {sum(map(len, again.values()))} in {len(again)} functions"]
    for label, found in again.items():
        last = found[-1]
        lines.append(f"{label}: compiled again {len(found)} times, limit {last.limit} versions")
        values: dict[tuple[str, str | None], list[FrameRecord]] = defaultdict(list)
        for record in found:
            values[record.recompiled[0].value, record.recompiled[0].line].append(record)
        for (value, line), changed in values.items():
            reasons = [record.recompiled[0] for record in changed]
            seen = list(dict.fromkeys([reasons[0].old, *(r.new for r in reasons)]))
            lines.append(f"  {value}: {' -> '.join(seen[:6])}{' ...' if len(seen) > 6 else ''}")
            lines += [f"    used at {line}"] if line else []
            lines += [f"    needed because: {reasons[-1].why}"] if reasons[-1].why else []
            lines += [f"    {reasons[-1].hint}"] if reasons[-1].hint else []
            lost = sum(record.seconds for record in changed)
            lines.append(f"    {len(changed)} compiles, {lost:.3f} s")
        if last.versions >= last.limit:
            lines.append(f"  The limit is reached: options={{'recompile_limit': {4 * last.limit}}}")
    return "\n".join(lines)


def counters(categories: Mapping[str, Mapping[str, int]]) -> str:
    """All counters."""
    rows = [(c, key, n) for c, keys in categories.items() for key, n in keys.items()]
    return table(("category", "key", "count"), rows)


def spent_on(record: FrameRecord | GraphRecord) -> dict[str, float]:
    """Stage -> seconds within one record."""
    spent: dict[str, float] = {}
    for phase in record.phases:
        spent[phase.name] = spent.get(phase.name, 0.0) + phase.seconds
    return spent
