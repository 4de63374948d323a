"""Times of ours beside those of others for the same work, which processes of their own have measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

OURS = "tilestitch"
TOGETHER = {
    "operators": (("D1", "D2"), ("operator", "shape", "dtype")),
    "GEMMs and convolutions": (("B3", "B4"), ("shape",)),
    "pairs of GEMMs": (("A8", "A7"), ("mlp", "tokens")),
    "models": (("M1", "M2", "M3", "M4"), ("model", "batch", "dtype")),
}
"""Parts whose rows meet, and the fields that say of what they are. A row without `by` is ours; one that is not
what the compiler takes on this GPU is left out."""

TIMES = ("device_us", "queued_us", "us")
"""On the device; for an engine that has no stream of ours, of calls queued back to back."""


def beside(parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """For each title rows with the time of every engine; `others_over_ours`: of the fastest other one."""
    found = {}
    for title, (names, fields) in TOGETHER.items():
        rows = _joined([row for name in names for row in parts.get(name, ())], fields)
        if rows:
            found[title] = rows
    return found


def _joined(rows: Iterable[Mapping[str, Any]], fields: Sequence[str]) -> list[dict[str, Any]]:
    joined: dict[str, dict[str, Any]] = {}
    for row in rows:
        time = next((row[name] for name in TIMES if name in row), None)
        if time is not None and row.get("planned", True):
            same = joined.setdefault(repr([row[name] for name in fields]), {name: row[name] for name in fields})
            same[row.get("by", OURS)] = time
    return [_with_ratio(row, fields) for row in joined.values()]


def _with_ratio(row: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    others = [time for name, time in row.items() if name not in (*fields, OURS)]
    return {**row, "others_over_ours": min(others) / row[OURS]} if others and OURS in row else row
