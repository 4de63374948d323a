"""Runs what is still open of the device queue, within a time budget, and writes the tables.

    python -m benchmarks.device.run_queue --out RESULTS [--earlier RESULTS] [--budget 530] [--only S0,B1] [--list]

Results of a GPU have a folder of their own, RESULTS/h100 or RESULTS/h200: what was measured on one is open on another.
Every case runs in a process of its own with a time limit. What was begun before is continued; what failed is tried once
more after everything else, what hung last of all. From the root of the repository; nothing of ours need be installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.device import package
from benchmarks.device.case import LIMIT_S, Case, Setup
from benchmarks.device.journal import FILE, Journal, calls, lines_of
from benchmarks.device.output import left_behind, shorten
from benchmarks.device.processes import POLL_S, Outcome, Running, start
from benchmarks.device.queue_parts import BY_NAME, PARTS, Part

RESULTS = Path("benchmarks/results")
STANDINGS = ("done", "open", "again", "last", "settled", "absent")
LEAST_S = 3.0
"""With less time left, no case is started; one that needs longer than most wants half of its limit."""

PROBES = 3
"""How often the GPU is asked for a sign of life after a hang or a crash."""


@dataclass
class Queue:
    """Runs cases until `end` on the monotonic clock, and writes down what becomes of them.

    alive: whether the GPU still answers; asked after every case that hung or crashed.
    """

    journal: Journal
    log: Path
    end: float
    alive: Callable[[], bool] = lambda: True
    outcomes: list[Outcome] = field(default_factory=list)
    is_lost: bool = False

    def run(self, cases: Sequence[Case], jobs: int, budget_s: float = float("inf")) -> None:
        """Run cases in order, `jobs` at a time; none is started after the budget or the call's end."""
        stop = min(self.end, time.monotonic() + budget_s)
        waiting, running = list(cases), list[Running]()
        while waiting or running:
            while waiting and len(running) < jobs and not self.is_lost:
                if not self._has_time(waiting[0], stop):
                    waiting.pop(0)
                    continue
                running.append(self._start(waiting.pop(0)))
            if not running:
                return
            self._collect(running)
            time.sleep(POLL_S)

    def _has_time(self, case: Case, stop: float) -> bool:
        now = time.monotonic()
        return now < stop and self.end - now >= max(LEAST_S, case.limit_s / 2 if case.limit_s > LIMIT_S else 0.0)

    def _start(self, case: Case) -> Running:
        self.journal.start(case)
        return start(case, self.log, min(case.limit_s, self.end - time.monotonic()))

    def _collect(self, running: list[Running]) -> None:
        for item in list(running):
            outcome = item.outcome()
            if outcome is None:
                continue
            running.remove(item)
            if outcome.state in ("hung", "crashed") and not self._answers():
                self.is_lost = True
            self.journal.end(outcome)
            self.outcomes.append(outcome)
            shorten(self.log)
            if outcome.state != "measured":
                print(f"{outcome.state}: {outcome.case.name}: {outcome.error}", flush=True)

    def _answers(self) -> bool:
        return any(self.alive() for _ in range(PROBES))


def cases_of(parts: Sequence[Part], setup: Setup, match: str) -> tuple[list[tuple[Part, list[Case]]], list[str]]:
    """The cases of each part whose names have `match`, and what is to be said of parts that have none for an error."""
    made, broken = [], []
    for part in parts:
        try:
            made.append((part, [case for case in part.make(setup) if match in case.name]))
        except Exception as error:  # noqa: BLE001 - one part that cannot be made must not cost the others
            broken.append(f"{part.name:3} cannot be made: {type(error).__name__}: {error}")
    return made, broken


def run_parts(queue: Queue, parts: Sequence[tuple[Part, Sequence[Case]]]) -> None:
    """What is open part by part, each within its budget; then without budgets; then what failed; then what hung."""
    for standing, with_budget in (("open", True), ("open", False), ("again", False), ("last", False)):
        for part, cases in parts:
            pending = [case for case in cases if queue.journal.standing(case) == standing]
            if not pending or queue.is_lost:
                continue
            before, began = len(queue.outcomes), time.monotonic()
            jobs = part.jobs if standing == "open" else 1
            queue.run(pending, jobs, part.budget_s if with_budget else float("inf"))
            states = Counter(outcome.state for outcome in queue.outcomes[before:])
            if states:
                said = ", ".join(f"{count} {state}" for state, count in states.items())
                print(f"{part.name:3} {time.monotonic() - began:6.1f} s  {said}", flush=True)


def summary(parts: Sequence[tuple[Part, Sequence[Case]]], journal: Journal, absent: set[str]) -> Iterator[str]:
    """A line a part: how many of its cases stand how."""
    for part, cases in parts:
        states = Counter("absent" if absent & set(case.needs) else journal.standing(case) for case in cases)
        counts = ", ".join(f"{states[name]} {name}" for name in STANDINGS if states[name])
        yield f"{part.name:3} {counts or 'not in the bundle':40} {part.question}"


def unfit_bundle(setup: Setup) -> str:
    """Why this runtime cannot read the bundle's artifacts: before a GPU is asked for; empty if it can."""
    from tilestitch.runtime.artifact import read_artifact
    from tilestitch.runtime.errors import ArtifactError

    for listing in ("cases", "open", "sizes", "models"):
        for entry in setup.listing(listing)[:1]:
            try:
                read_artifact(setup.bundle / f"{entry['name']}.tsm")
            except ArtifactError as error:
                return str(error)
    return ""


def found_gpu() -> dict[str, Any]:
    """What GPU 0 is; under `problem`, why there is none, and what was printed meanwhile goes to stderr."""
    from benchmarks.device import probe

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "probe.log"
        facts = probe.facts(log)
        if "problem" in facts and log.exists():
            print(log.read_text(errors="replace"), file=sys.stderr)
    return facts


def strangers(folder: Path, card: str, executes: bool) -> Iterator[str]:
    """Why results in `folder` are none of this card, on which kernels execute or do not; nothing where they are."""
    from benchmarks.device.cards import card_of

    for call in calls(lines_of(folder)):
        name = call["gpu"].get("name")
        if name is not None and card_of(name) != card:
            yield f"{folder} has results of {name}, which say nothing of {card}; move them to a folder {card_of(name)}"
        if call.get("executes", executes) != executes:
            yield f"{folder} has results of {'real calls' if executes is False else 'a dry run'}; give another folder"


def listed(
    roots: Iterable[Path | None], parts: Sequence[tuple[Part, Sequence[Case]]], absent: set[str]
) -> Iterator[str]:
    """How cases stand for each GPU of which there are results, without asking for one."""
    found = {path.parent.name: path.parent for root in roots if root for path in sorted(root.glob(f"*/{FILE}"))[::-1]}
    for card in sorted(found) or [""]:
        yield f"{card}:" if card else "no results yet:"
        with tempfile.TemporaryDirectory() as folder:
            journal = Journal(Path(folder), package.sources_digest(), found.get(card))
            yield from summary(parts, journal, absent)


def absent_packages(without: Sequence[str]) -> set[str]:
    """Of the packages that peers need, those that are not installed, or not wanted."""
    return {name for name in ("torch", "jax") if name in without or importlib.util.find_spec(name) is None}


def preload(absent: set[str]) -> None:
    """Import what cases import, once. Nothing here may touch the GPU: a process forked after that cannot use it."""
    names = ["numpy", "cuda.bindings.driver", "tilestitch.runtime.cuda.backend"]
    for name in names + ([] if "torch" in absent else ["torch"]):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device.run_queue", description=__doc__)
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help=f"in it a folder for each GPU is written (default {RESULTS})"
    )
    earlier = f"of earlier calls, which are not changed: the same folders (default {RESULTS}; none for a dry run)"
    parser.add_argument("--earlier", type=Path, metavar="FOLDER", help=earlier)
    parser.add_argument("--bundle", type=Path, default=package.ARCHIVE, metavar="FILE", help="what bundle.py packed")
    parser.add_argument("--budget", type=float, default=530.0, metavar="SECONDS", help="for this call (default 530)")
    parser.add_argument("--only", metavar="S0,B1", help="these parts, in this order")
    parser.add_argument("--match", default="", metavar="TEXT", help="cases whose name has this text")
    parser.add_argument("--without", default="", metavar="torch,jax", help="as if these packages were not there")
    dry = "on the stand-in for the driver: kernels do not execute, nothing is judged, there are no peers"
    parser.add_argument("--dry-run", action="store_true", help=dry)
    parser.add_argument("--list", action="store_true", help="say what is open and run nothing")
    options = parser.parse_args(arguments)
    if options.dry_run and not options.list and options.out is None:
        parser.error("a dry run measures nothing; give --out a folder of its own")
    options.out = options.out or RESULTS
    options.earlier = options.earlier or (None if options.dry_run else RESULTS)
    names = options.only.split(",") if options.only else [part.name for part in PARTS]
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    return call(options, [BY_NAME[name] for name in names])


def call(options: argparse.Namespace, parts: Sequence[Part]) -> int:
    """One call of the queue. Returns 0 when nothing failed, 1 when something did, 2 for a bundle or results that do not
    fit, 4 when there is no GPU.
    """
    end = time.monotonic() + options.budget
    package.make_importable()
    from benchmarks.device import probe, render
    from benchmarks.device.cards import card_of

    setup = Setup(package.unpacked(options.bundle), executes=not options.dry_run)
    absent = {"torch", "jax"} if options.dry_run else absent_packages(options.without.split(","))
    made, broken = cases_of(parts, setup, options.match)
    unfit = unfit_bundle(setup)
    if unfit:
        print(f"{unfit}; make the bundle again: python -m benchmarks.device.bundle", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join([*listed((options.earlier, options.out), made, absent), *broken]))
        return int(bool(broken))
    preload(absent)
    facts = found_gpu()
    if "problem" in facts:
        print(f"there is no GPU to measure: {facts['problem']}", file=sys.stderr)
        return 4
    card = card_of(facts["name"])
    folder, earlier = options.out / card, options.earlier / card if options.earlier else None
    mixed = [text for each in (folder, earlier) if each for text in strangers(each, card, setup.executes)]
    if mixed:
        print("\n".join(mixed), file=sys.stderr)
        return 2
    print(f"{facts['name']}: results go to {folder}", flush=True)
    journal = Journal(folder, package.sources_digest(), earlier)
    journal.call({**probe.provenance(), "gpu": facts, "executes": setup.executes})
    log = folder / "queue.log"
    queue = Queue(journal, log, end, lambda: probe.answers(log))
    run_parts(queue, [(part, [c for c in cases if not absent & set(c.needs)]) for part, cases in made])
    (folder / "README.md").write_text(render.markdown(folder))
    print("\n".join([*summary(made, journal, absent), *broken]))
    print(f"tables: {folder / 'README.md'}; what cases printed: {log}")
    for text in left_behind(options.out) if options.out != RESULTS else ():
        print(f"not all comes back from a lent machine: {text}")
    if queue.is_lost:
        print("the GPU does not answer any more: the rest is open for another call")
    return int(
        queue.is_lost or bool(broken) or any(outcome.state not in ("measured", "cut") for outcome in queue.outcomes)
    )


if __name__ == "__main__":
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # XLA would take most of the GPU's memory at its first use
    sys.exit(main())
