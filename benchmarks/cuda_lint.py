"""Reads the machine code of the benchmark models and ONNX's nine light models, and says what is wrong with it.

    python -m benchmarks.cuda_lint [NAME ...] [--target cuda:sm_80] ... [--precision fp16] ... [--processes N]

No GPU is needed, and no CUDA installation. Exit code 1 if something is wrong. Kernels come from the user's cache where
they were compiled before. The benchmark models are those that `python -m benchmarks.models` has made; light models come
with the onnx package.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

from benchmarks.cuda_choices import add_choices, chosen
from tilestitch.codegen.cuda.machine_code.disassemble import disassemble
from tilestitch.codegen.cuda.machine_code.flow import MachineCode
from tilestitch.codegen.cuda.machine_code.lint import Finding, Widths, lint, widths
from tilestitch.compiler.driver import CompiledModel, compile_model


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_lint", description=__doc__)
    add_choices(parser)
    options = parser.parse_args(arguments)
    choices = list(chosen(parser, options))
    print("| model | target | precision | kernels | of 16-byte loads | of 16-byte stores | findings |")
    print("|---|---|---|---|---|---|---|", flush=True)
    findings: list[Finding] = []
    kinds: Counter[tuple[str, Widths]] = Counter()
    for path, target, precision in choices:
        compiled = compile_model(path, target, precision=precision, num_threads=options.processes)
        codes = list(_codes(compiled))
        found = [finding for code, promised in codes for finding in lint(code, promised)]
        wide = [widths(code) for code, _ in codes]
        kinds.update((code.symbol.rpartition("_")[0], widths(code)) for code, _ in codes)
        loads, stores = (sum(n >= 16 for n in side) for side in zip(*((w.load_bytes, w.store_bytes) for w in wide)))
        row = path.stem, target, precision, len(codes), loads, stores, len(found)
        print(f"| {' | '.join(map(str, row))} |", flush=True)
        findings += found
    print("\n| template | widest load, bytes | widest store, bytes | kernels |\n|---|---|---|---|")
    for (kind, widest), count in sorted(kinds.items(), key=str):
        print(f"| {kind} | {widest.load_bytes} | {widest.store_bytes} | {count} |")
    print("\n".join(["", *map(str, findings)] if findings else ["", "nothing is wrong"]))
    return 1 if findings else 0


def _codes(compiled: CompiledModel) -> Iterator[tuple[MachineCode, Widths]]:
    """Every kernel, with what its template asked for."""
    asked = {
        launch["symbol"]: Widths(**launch["widest_access"])
        for kernel in compiled.explain()["kernels"]
        for launch in kernel["launches"]
    }
    members = compiled.contents.kernels.items()
    cubins = ((name.split("/")[1], bytes(data)) for name, data in members if name.endswith(".cubin"))
    for code in disassemble(cubins):
        yield code, asked.get(code.symbol, Widths())


if __name__ == "__main__":
    sys.exit(main())
