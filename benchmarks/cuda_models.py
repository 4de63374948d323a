"""Compiles the benchmark models and ONNX's nine light models for GPUs, from an empty cache, and says how long it took.

    python -m benchmarks.cuda_models [NAME ...] [--target cuda:sm_80] ... [--processes N]

No GPU is needed, and no CUDA installation. Exit code 1 if a model does not compile. The benchmark models are those
that `python -m benchmarks.models` has made; light models come with the onnx package.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import onnx.backend.test.loader as loader

from tilestitch.compiler.driver import compile_model

MADE = Path(__file__).parent / "models"
LIGHT = Path(loader.DATA_DIR) / "light"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    parser.add_argument("--target", action="append", help="may be repeated (default: cuda:sm_80, then cuda:sm_90a)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="compile so many at once"
    )
    options = parser.parse_args(arguments)
    models = {path.stem: path for folder in (MADE, LIGHT) for path in sorted(folder.glob("*.onnx"))}
    unknown = sorted(set(options.names) - set(models))
    if unknown:
        parser.error(f"there is no model {', '.join(unknown)}; there are {', '.join(models)}")
    print(f"{options.processes} processes, empty cache\n")
    print(
        "| model | target | launches | compilations | machine code, MiB | seconds | of CPUs |\n"
        "|---|---|---|---|---|---|---|",
        flush=True,
    )
    failed = 0
    for name in options.names or models:
        for target in options.target or ("cuda:sm_80", "cuda:sm_90a"):
            failed += not _compiles(name, models[name], target, options.processes)
    return 1 if failed else 0


def _compiles(name: str, path: Path, target: str, processes: int) -> bool:
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    try:
        compiled = compile_model(path, target, num_threads=processes, cache=False)
    except Exception as error:  # noqa: BLE001 - reported, and the others go on
        print(f"| {name} | {target} | {type(error).__name__}: {error} | | | | |", flush=True)
        return False
    seconds, cpu_seconds = time.perf_counter() - start, _cpu_seconds() - cpu_start
    code = compiled.contents.kernels
    launches = sum(len(kernel["launches"]) for kernel in compiled.explain()["kernels"])
    size_mib = sum(map(len, code.values())) / 2**20
    row = name, target, launches, len(code), f"{size_mib:.1f}", f"{seconds:.1f}", f"{cpu_seconds:.1f}"
    print(f"| {' | '.join(map(str, row))} |", flush=True)
    return True


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for: what a busy machine does not lengthen."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    sys.exit(main())
