"""Exports architectures that were not tuned on, and checks what tilestitch makes of each.

    python -m benchmarks.zoo export FOLDER [NAME ...] [--exporter dynamo|script] [--opset N] [--half] [--dynamic]
    python -m benchmarks.zoo classical FOLDER [NAME ...]
    python -m benchmarks.zoo check  FOLDER [NAME ...] [--stages cpu threads planners cuda emulator]
    python -m benchmarks.zoo table  FOLDER [--peers]

`export` needs torch, transformers and timm, `classical` scikit-learn, skl2onnx and onnx-simplifier; both may run in
another environment than `check`. Each model is exported and checked in a process of its own (forked, so POSIX only).
The stages `peers` (ONNX Runtime and OpenVINO) and `inductor` race other engines; the latter needs what `export` needs.
`check` appends to FOLDER/results.jsonl, the newest line of a model and a stage counts; `table` prints it as Markdown.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

STAGES = ("cpu", "threads", "planners", "cuda", "emulator", "peers", "inductor")
EXPORTERS = {"dynamo": 18, "script": 17}
"""Exporter to its usual operator set."""


def variant(options: argparse.Namespace, name: str) -> str:
    """The file's stem of an export of NAME."""
    marks = ("-half" if options.half else "") + ("-dynamic" if options.dynamic else "")
    return f"{name}.{options.exporter}{options.opset or EXPORTERS[options.exporter]}{marks}"


def export(options: argparse.Namespace) -> int:
    from benchmarks.zoo.catalogue import names, write

    options.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.names or names():
        stem = variant(options, name)
        if options.force or not (options.folder / f"{stem}.onnx").exists():
            opset = options.opset or EXPORTERS[options.exporter]
            job = partial(
                write, name, options.folder / f"{stem}.onnx", options.exporter, opset, options.half, options.dynamic
            )
            failed += bool(alone(job, f"export of {stem}", options))
    return 1 if failed else 0


def check(options: argparse.Namespace) -> int:
    from benchmarks.zoo.checking import examine, record

    for module in (
        "onnxruntime",
        "tilestitch.codegen.assemble",
        "tilestitch.codegen.cpu.backend",
        "tilestitch.runtime",
    ):
        importlib.import_module(module)
    stems = sorted(path.stem for path in options.folder.glob("*.onnx"))
    wanted = options.names or stems
    failed = 0
    for stem in stems:
        if not any(stem == name or stem.startswith(f"{name}.") for name in wanted):
            continue
        for stage in options.stages:
            failure = alone(partial(examine, options.folder, stem, stage), f"{stage} of {stem}", options)
            if failure:
                record(options.folder, stem, stage, {"failure": failure})
                failed += 1
    return 1 if failed else 0


def alone(job: Callable[[], None], what: str, options: argparse.Namespace) -> str:
    """Runs JOB in a fork of this process, which has imported what takes long; returns why that failed, or nothing."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=reported, args=(job, sender))
    process.start()
    process.join(options.timeout)
    if process.is_alive():
        process.kill()
        process.join()
        failure = f"not done after {options.timeout} s"
    elif receiver.poll():
        failure = receiver.recv()
    else:
        failure = f"killed by signal {-process.exitcode}" if process.exitcode else ""
    if failure:
        shown = failure.strip().splitlines()[-options.lines :]
        print(f"{what}: FAILED\n  " + "\n  ".join(shown), flush=True)
    return failure


def reported(job: Callable[[], None], sender: Connection) -> None:
    """JOB, and what it raised to SENDER, whatever that was: a model must not end the whole run."""
    try:
        job()
    except BaseException:  # noqa: BLE001
        sender.send(f"{traceback.format_exc()[-4000:]}")


def classical(options: argparse.Namespace) -> int:
    from benchmarks.zoo.classical import MODELS, write

    options.folder.mkdir(parents=True, exist_ok=True)
    chosen = options.names or MODELS
    return max(bool(alone(partial(write, name, options.folder), name, options)) for name in chosen)


def table(options: argparse.Namespace) -> int:
    from benchmarks.zoo.checking import markdown
    from benchmarks.zoo.peers import tabulated

    print((tabulated if options.peers else markdown)(options.folder))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description="Models that were not tuned on.")
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
    two.add_argument("--stages", nargs="+", default=["cpu"], choices=STAGES)
    four = commands.add_parser("classical")
    four.set_defaults(run=classical)
    for command in (one, two, four):
        command.add_argument("--timeout", type=int, default=600, metavar="S", help="of one model")
        command.add_argument("--lines", type=int, default=3, help="of an error that are shown")
    three = commands.add_parser("table")
    three.set_defaults(run=table)
    three.add_argument("--peers", action="store_true", help="times of other engines over ours")
    for command in (one, two, three, four):
        command.add_argument("folder", type=Path)
        command.add_argument("names", nargs="*")
    options = parser.parse_args()
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
