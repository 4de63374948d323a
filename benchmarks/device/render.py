"""Tables of what the queue measured, ours beside others' first.

python -m benchmarks.device.render benchmarks/results/h100 > benchmarks/results/h100/README.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.device.compare import beside
from benchmarks.device.journal import calls, lines_of, read
from benchmarks.device.queue_parts import PARTS

Row = Mapping[str, Any]
UNTABLED = ("profile",)
"""Fields that are data for programs."""


def rows_by_part(folder: Path) -> dict[str, list[Row]]:
    """One row a case that ended: its key, and its values or its error; parts in the queue's order."""
    found: dict[str, list[Row]] = {part.name: [] for part in PARTS}
    for history in read(lines_of(folder)).values():
        end = history.end
        if end:
            values = end["row"] if end["state"] == "measured" else {"error": f"{end['state']}: {end['error']}"}
            found.setdefault(end["part"], []).append({**end["key"], **values})
    return {name: rows for name, rows in found.items() if rows}


def columns(rows: Iterable[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and cells; a field that a row lacks is empty."""
    kept = list(rows)
    names = list(dict.fromkeys(name for row in kept for name in row if name not in UNTABLED))
    return names, [[cell(row.get(name)) for name in names] for row in kept]


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, (list, tuple)):
        return "x".join(map(cell, value))
    return str(value).replace("|", "/").replace("\n", " ")


def aligned(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (header, *cells)) for i in range(len(header))]
    lines = [header, *cells]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def markdown(folder: Path) -> str:
    """One section a part, after what it was measured on. Times are medians; see the scripts for how each was taken."""
    questions = {part.name: part.question for part in PARTS}
    lines = ["# Measured on a GPU", ""]
    for call in calls(lines_of(folder)):
        gpu, packages = call["gpu"], call["packages"]
        versions = ", ".join(f"{package} {version}" for package, version in packages.items() if version)
        lines.append(f"* {call['date']}: {gpu.get('name', gpu.get('problem'))}, Python {call['python']}, {versions}")
    parts = rows_by_part(folder)
    for title, joined in beside(parts).items():
        lines += ["", f"## {title}: ours beside others, microseconds on the device", "", *_table(joined)]
    for name, rows in parts.items():
        lines += ["", f"## {name}: {questions.get(name, 'no part of this name any more')}", "", *_table(rows)]
    return "\n".join(lines) + "\n"


def _table(rows: Iterable[Row]) -> list[str]:
    header, cells = columns(rows)
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in cells]


if __name__ == "__main__":
    print(markdown(Path(sys.argv[1])), end="")
