"""Tables of what the queue measured: text for the terminal, markdown for the repository.

python -m benchmarks.device.render benchmarks/results/h200 > benchmarks/results/h200/README.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.device.queue_parts import PARTS

Row = Mapping[str, Any]


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """The results of every part that has any, by name."""
    found = {}
    for part in PARTS:
        path = folder / f"{part.name}.json"
        if path.exists():
            found[part.name] = json.loads(path.read_text())
    return found


def columns(rows: Iterable[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and cells: the key's fields first, then the values'; a field that a row lacks is empty."""
    flat = [{**row["key"], **{k: v for k, v in row.items() if k not in ("key", "took_s", "tries")}} for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    return names, [[cell(row.get(name)) for name in names] for row in flat]


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


def text(folder: Path) -> str:
    parts = []
    for name, data in load(folder).items():
        state = "complete" if data["done"] else f"incomplete, {data['skipped']} open"
        parts.append(f"== {name} ({state}) ==\n{aligned(*columns(data['rows']))}")
    return "\n\n".join(parts) or "nothing was measured yet"


def markdown(folder: Path) -> str:
    """One section a part with its provenance. Times are medians; see the scripts for how each was taken."""
    questions = {part.name: part.question for part in PARTS}
    lines = ["# Measured on a GPU", ""]
    for name, data in load(folder).items():
        gpu, facts = data["provenance"]["gpu"], data["provenance"]
        versions = ", ".join(f"{package} {version}" for package, version in facts["packages"].items() if version)
        where = gpu.get("name", gpu.get("problem", "no GPU"))
        lines += [f"## {name}: {questions[name]}", "", f"{where}, {facts['date']}, {versions}.", ""]
        if not data["done"]:
            lines += [f"Incomplete: {data['skipped']} measurements are open.", ""]
        header, cells = columns(data["rows"])
        if header:
            lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
            lines += ["| " + " | ".join(row) + " |" for row in cells] + [""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(Path(sys.argv[1])))
