"""The command `python -m tilestitch.compiler.conformance`."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from tilestitch.compiler.cli.errors import UsageError
from tilestitch.compiler.cli.paths import writable
from tilestitch.compiler.conformance import report
from tilestitch.compiler.conformance.cases import KINDS, Case, load_cases
from tilestitch.compiler.conformance.engines import DEFAULT_KINDS, ENGINES
from tilestitch.compiler.conformance.outcome import Outcome
from tilestitch.compiler.conformance.pool import Engine, check_case, run_all
from tilestitch.compiler.conformance.remote import remote
from tilestitch.compiler.conformance.sampling import sample


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tilestitch.compiler.conformance",
        description="Run ONNX's backend tests. Exit code 0: all that ran passed; 3: some failed; 1: wrong usage.",
    )
    parser.add_argument("--filter", metavar="REGEX", help="only cases whose name or operators match")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; may be repeated")
    parser.add_argument(
        "--engine",
        action="append",
        choices=ENGINES,
        help="default tilestitch, for the CPU; may be repeated",
    )
    parser.add_argument("--target", metavar="TARGET", help="compile for a CPU that this machine does not have …")
    parser.add_argument(
        "--python", metavar="COMMAND", help="… and run by the Python of one that has it, which this starts"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="only N cases, spread over operators and types")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="worker processes")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for one case (default 60)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every outcome there")
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help="say what changed since that run")
    parser.add_argument("--write", type=Path, metavar="PAGE.md", help="write the page of the docs")
    parser.add_argument("--at-least", type=float, metavar="PERCENT", help="exit code 0 if so many pass")
    parser.add_argument("--traceback", action="store_true", help="run in this process; show each failure's traceback")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and do nothing")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    if options.sample is not None and options.sample < 1:
        parser.error("--sample must be at least 1")
    if bool(options.target) != bool(options.python):
        parser.error("--target and --python go together")
    if options.target and options.engine:
        parser.error("--target is for the CPU; leave --engine out")
    options.engine = [options.target] if options.target else options.engine
    options.engine = list(dict.fromkeys(options.engine or ["tilestitch"]))
    if len(options.engine) > 1 and (options.json or options.compare or options.traceback):
        parser.error("--json, --compare and --traceback are for one engine")
    for output in filter(None, (options.json, options.write)):
        try:
            writable(str(output))
        except UsageError as error:
            parser.error(str(error))
    if options.filter is not None:
        try:
            re.compile(options.filter)
        except re.error as error:
            parser.error(f"--filter is not a regular expression: {error}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    before = _statuses(options.compare) if options.compare else {}
    everything = load_cases(options.kind or KINDS)
    results = {}
    for engine in options.engine:
        kinds = options.kind or DEFAULT_KINDS.get(engine, KINDS)
        cases = _select([case for case in everything if case.kind in kinds], options.filter, options.sample)
        if not cases:
            print("no case matches; --list shows the names", file=sys.stderr)
            return 1
        if options.list:
            print("\n".join(f"{case.kind}/{case.name}" for case in cases))
            return 0
        if options.traceback:
            return _trace(_engine(engine, options), cases)
        results[engine] = _run(engine, cases, options)
    outcomes = [outcome for found in results.values() for outcome in found]
    if options.compare:
        print(report.changes(outcomes, before))
    if options.json:
        _write_json(options.json, options.engine[0], outcomes)
    if options.write:
        options.write.write_text(report.page(results, _versions(options.engine)))
    enough = 100 if options.at_least is None else options.at_least
    return 0 if all(_passed(found) >= enough / 100 * len(found) for found in results.values()) else 3


def _run(engine: str, cases: list[Case], options: argparse.Namespace) -> list[Outcome]:
    start = time.perf_counter()
    progress = _Progress(len(cases))
    outcomes = run_all(_engine(engine, options), cases, options.jobs, options.timeout, progress.show)
    progress.finish()
    print(report.summary(outcomes))
    print(f"\n{engine}: {len(outcomes)} cases in {time.perf_counter() - start:.0f} s", flush=True)
    return outcomes


def _passed(outcomes: list[Outcome]) -> int:
    return sum(outcome.passed for outcome in outcomes)


def _select(cases: list[Case], pattern: str | None, count: int | None) -> list[Case]:
    expression = re.compile(pattern or "")
    matching = [case for case in cases if expression.search(case.name) or expression.search(case.operators)]
    return matching if count is None else sample(matching, count)


def _engine(name: str, options: argparse.Namespace) -> Engine:
    return partial(remote, options.target, options.python) if options.target else ENGINES[name]


def _trace(engine: Engine, cases: list[Case]) -> int:
    prepare = engine()
    failed = 0
    for case in cases:
        try:
            check_case(prepare, case)
        except Exception:  # noqa: BLE001 - shown in full
            failed += 1
            print(f"--- {case.kind}/{case.name}  {case.operators}")
            traceback.print_exc(file=sys.stdout)
    print(f"{len(cases) - failed} of {len(cases)} passed")
    return 3 if failed else 0


class _Progress:
    """A counter line, on a terminal only."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = self.passed = 0
        self.visible = sys.stderr.isatty()

    def show(self, outcome: Outcome) -> None:
        self.done += 1
        self.passed += outcome.passed
        if self.visible:
            line = f"\r{self.done}/{self.total}, {self.passed} passed  {outcome.name[:60]:60}"
            print(line, end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        if self.visible:
            print("\r" + " " * 100 + "\r", end="", file=sys.stderr)


def _versions(engines: Iterable[str]) -> dict[str, str]:
    """Return the versions of onnx and of each engine's package."""
    packages = {"onnxruntime": "onnxruntime", "reference": "onnx"}
    versions = {engine: importlib.metadata.version(packages.get(engine, "tilestitch")) for engine in engines}
    return {"onnx": importlib.metadata.version("onnx"), **versions}


def _write_json(path: Path, engine: str, outcomes: list[Outcome]) -> None:
    content: dict[str, Any] = {
        "engine": engine,
        "versions": _versions([engine]),
        "passed": _passed(outcomes),
        "cases": [outcome.to_json() for outcome in outcomes],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _statuses(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text())
        return {f"{case['kind']}/{case['name']}": case["status"] for case in content["cases"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path} is not the outcome of an earlier run ({error}); make one with --json")


if __name__ == "__main__":
    sys.exit(main())
