"""Exports architectures that nobody tuned on, and checks what tilestitch makes of each.

    python -m benchmarks.zoo export FOLDER [NAME ...] [--exporter dynamo|script] [--opset N] [--half] [--dynamic]
    python -m benchmarks.zoo check  FOLDER [NAME ...] [--stages cpu threads planners cuda emulator]
    python -m benchmarks.zoo table  FOLDER

`export` needs torch, transformers and timm, and for the classical models scikit-learn and skl2onnx; it may run in
another environment than `check`. Each model is exported and checked in a process of its own. `check` appends to
FOLDER/results.jsonl, the newest line of a model and a stage counts; `table` prints it as Markdown.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

EXPORTERS = {"dynamo": 18, "script": 17}
"""Exporter to its usual operator set."""


def variant(options: argparse.Namespace, name: str) -> str:
    """The file's stem of an export of NAME."""
    marks = ("-half" if options.half else "") + ("-dynamic" if options.dynamic else "")
    return f"{name}.{options.exporter}{options.opset or EXPORTERS[options.exporter]}{marks}"


def export(options: argparse.Namespace) -> int:
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.one:
        from benchmarks.zoo.catalogue import write

        write(options.names[0], options.folder, variant(options, options.names[0]), options)
        return 0
    from benchmarks.zoo.catalogue import names

    chosen = options.names or names()
    failed = 0
    for name in chosen:
        stem = variant(options, name)
        if (options.folder / f"{stem}.onnx").exists() and not options.force:
            continue
        failed += alone(
            ["export", str(options.folder), name, "--one", *forwarded(options)], f"export of {stem}", options
        )
    return 1 if failed else 0


def forwarded(options: argparse.Namespace) -> list[str]:
    given = ["--exporter", options.exporter]
    given += ["--opset", str(options.opset)] if options.opset else []
    return given + [flag for flag in ("--half", "--dynamic") if getattr(options, flag[2:])]


def check(options: argparse.Namespace) -> int:
    if options.one:
        from benchmarks.zoo.checking import examine

        examine(options.folder, options.names[0], options.stages)
        return 0
    stems = sorted(path.stem for path in options.folder.glob("*.onnx"))
    chosen = [
        stem for stem in stems if not options.names or any(stem == n or stem.startswith(f"{n}.") for n in options.names)
    ]
    failed = 0
    for stem in chosen:
        for stage in options.stages:
            command = ["check", str(options.folder), stem, "--one", "--stages", stage]
            failed += alone(command, f"{stage} of {stem}", options, stem, stage)
    return 1 if failed else 0


def alone(arguments: list[str], what: str, options: argparse.Namespace, stem: str = "", stage: str = "") -> bool:
    """Runs this program with ARGUMENTS in a process of its own; tells when that fails."""
    command = [sys.executable, "-m", "benchmarks.zoo", *arguments]
    note = ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout, check=False)
        if done.returncode:
            lines = (done.stderr.strip().splitlines() or ["no message"])[-options.lines :]
            note = "\n".join(lines) if done.returncode > 0 else f"killed by signal {-done.returncode}"
        else:
            print(done.stdout, end="", flush=True)
    except subprocess.TimeoutExpired:
        note = f"not done after {options.timeout} s"
    if note:
        print(f"{what}: FAILED\n  " + note.replace("\n", "\n  "), flush=True)
        if stem:
            from benchmarks.zoo.checking import record

            record(options.folder, stem, stage, {"failure": note.splitlines()[-1]})
    return bool(note)


def table(options: argparse.Namespace) -> int:
    from benchmarks.zoo.checking import markdown

    print(markdown(options.folder))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description="Models nobody tuned on.")
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("export")
    one.set_defaults(run=export)
    one.add_argument("--exporter", choices=EXPORTERS, default="dynamo")
    one.add_argument("--opset", type=int)
    one.add_argument("--half", action="store_true", help="weights and inputs in float16")
    one.add_argument("--dynamic", action="store_true", help="leave axes open")
    one.add_argument("--force", action="store_true", help="export what is there again")
    two = commands.add_parser("check")
    two.set_defaults(run=check)
    two.add_argument("--stages", nargs="+", default=["cpu"], choices=("cpu", "threads", "planners", "cuda", "emulator"))
    for command in (one, two):
        command.add_argument("--timeout", type=int, default=600, metavar="S", help="of one model")
        command.add_argument("--lines", type=int, default=3, help="of an error that are shown")
        command.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    three = commands.add_parser("table")
    three.set_defaults(run=table)
    for command in (one, two, three):
        command.add_argument("folder", type=Path)
        command.add_argument("names", nargs="*")
    options = parser.parse_args()
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
