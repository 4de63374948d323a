"""What the queue has done: one line of JSON for every call, every case started and every case ended.

The start is written first, so that a case that took the whole machine with it is known at the next call.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.device.case import Case
from benchmarks.device.processes import Outcome

FILE = "queue.jsonl"
MOST_TRIES = 2
"""A case that failed this often, with the same sources, is not tried again."""


@dataclass
class History:
    """What is known of one case. `end` is the last event that tells its result or its failure."""

    end: dict[str, Any] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    started: dict[str, Any] | None = None

    def add(self, event: dict[str, Any]) -> None:
        if event["event"] == "start":
            self._interrupted()
            self.started = event
            return
        self.started = None
        if event["state"] == "cut":
            return
        self.end = event
        if event["state"] != "measured":
            self.failures.append(event)

    def _interrupted(self) -> None:
        """A start without an end: the call was ended from outside, perhaps by this case."""
        if self.started is not None:
            self.failures.append({**self.started, "state": "interrupted", "error": "the call ended meanwhile"})
            self.started = None

    def close(self) -> None:
        self._interrupted()
        if not self.end and self.failures:
            self.end = self.failures[-1]


class Journal:
    """The journal in `folder`; a new one begins with what the folder `earlier` has.

    sources: digest of the program that measures; a failure under other sources may be gone.
    """

    def __init__(self, folder: Path, sources: str, earlier: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        self.sources = sources
        lines = lines_of(folder) or (lines_of(earlier) if earlier else [])
        self.histories = read(lines)
        _write_whole(self.path, "".join(f"{line}\n" for line in lines))

    def call(self, facts: dict[str, Any]) -> None:
        """A call of the queue begins, on this machine with these versions."""
        self._append({"event": "call", "sources": self.sources, **facts})

    def start(self, case: Case) -> None:
        event = {"event": "start", **self._identity(case)}
        self._append(event)

    def end(self, outcome: Outcome) -> None:
        """Write down how a case ended."""
        event = {"event": "end", **self._identity(outcome.case), "state": outcome.state}
        event |= {"took_s": round(outcome.took_s, 2), "row": outcome.row, "error": outcome.error}
        self._append(event)
        self.histories.setdefault(outcome.case.name, History()).add(event)

    def standing(self, case: Case) -> str:
        """`done`; `open`; `again` for one that failed, `last` for one that hung, crashed or was interrupted; `settled`
        for one that failed too often.
        """
        history = self.histories.get(case.name)
        if history is None:
            return "open"
        if history.end.get("state") == "measured" and history.end["fingerprint"] == case.fingerprint:
            return "done"
        mine = [f for f in history.failures if (f["fingerprint"], f["sources"]) == (case.fingerprint, self.sources)]
        if not mine:
            return "open"
        if len(mine) >= MOST_TRIES:
            return "settled"
        return "again" if mine[-1]["state"] == "failed" else "last"

    def _identity(self, case: Case) -> dict[str, Any]:
        return {
            "case": case.name, "part": case.part, "key": dict(case.key), "fingerprint": case.fingerprint,
            "sources": self.sources,
        }  # fmt: skip

    def _append(self, event: dict[str, Any]) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(event) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _write_whole(path: Path, text: str) -> None:
    """The file has this text, or what it had before if the call is ended meanwhile."""
    if path.exists() and path.read_text() == text:
        return
    unfinished = path.with_name(f"{path.name}.part")
    with open(unfinished, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def read(lines: Iterable[str]) -> dict[str, History]:
    """Histories by the names of cases, in the order in which they came."""
    found: dict[str, History] = {}
    for line in lines:
        event = json.loads(line)
        if event["event"] != "call":
            found.setdefault(event["case"], History()).add(event)
    for history in found.values():
        history.close()
    return found


def calls(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The calls, with what each ran on."""
    return [event for event in map(json.loads, lines) if event["event"] == "call"]


def lines_of(folder: Path) -> list[str]:
    """The whole lines; the last one is cut off where the machine stopped in the middle of it."""
    path = folder / FILE
    return path.read_text().split("\n")[:-1] if path.exists() else []
