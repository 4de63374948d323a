"""Compiles the benchmark models and ONNX's nine light models for GPUs, from an empty cache, and says how long it took.

    python -m benchmarks.cuda_models [NAME ...] [--target cuda:sm_80] ... [--precision fp16] ... [--processes N]

No GPU is needed, and no CUDA installation. Exit code 1 if a model does not compile. The benchmark models are those
that `python -m benchmarks.models` has made; light models come with the onnx package.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks.cuda_choices import add_choices, chosen
from tilestitch.compiler.driver import compile_model


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_models", description=__doc__)
    add_choices(parser, precisions=("fp32",))
    options = parser.parse_args(arguments)
    choices = list(chosen(parser, options))
    print(f"{options.processes} processes, empty cache\n")
    print(
        "| model | target | precision | launches | compilations | machine code, MiB | seconds | of CPUs |\n"
        "|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    failed = sum(not _compiles(*choice, options.processes) for choice in choices)
    return 1 if failed else 0


def _compiles(path: Path, target: str, precision: str, processes: int) -> bool:
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    try:
        compiled = compile_model(path, target, precision=precision, num_threads=processes, cache=False)
    except Exception as error:  # noqa: BLE001 - reported, and the others go on
        print(f"| {path.stem} | {target} | {precision} | {type(error).__name__}: {error} | | | | |", flush=True)
        return False
    seconds, cpu_seconds = time.perf_counter() - start, _cpu_seconds() - cpu_start
    code = compiled.contents.kernels
    launches = sum(len(kernel["launches"]) for kernel in compiled.explain()["kernels"])
    size_mib = sum(map(len, code.values())) / 2**20
    row = path.stem, target, precision, launches, len(code), f"{size_mib:.1f}", f"{seconds:.1f}", f"{cpu_seconds:.1f}"
    print(f"| {' | '.join(map(str, row))} |", flush=True)
    return True


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for: what a busy machine does not lengthen."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    sys.exit(main())
