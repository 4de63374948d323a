"""What is needed to mend cases that failed on a GPU: their models, the text and machine code of their kernels.

    python -m benchmarks.device.failed benchmarks/results/h100 --out FOLDER

Makes a folder for each failed case of S0, B1, S1 and B2, where the compiler is, and prints how to make and run that
case alone. The machine code is that of the compiler as it is now: of what ran, as long as nothing has changed since.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.device import open_cases
from benchmarks.device.bundle import repeating
from benchmarks.device.bundle_cases import CASES, TARGET, VARIANTS
from benchmarks.device.journal import lines_of, read
from tilestitch.codegen.cuda.machine_code.disassemble import find_disassembler
from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel

PARTS = ("S0", "B1", "S1", "B2")
OPEN = "open."


def failures(results: Path) -> Iterator[tuple[str, str, str]]:
    """Part, name and error of the cases whose last result is a failure."""
    for history in read(lines_of(results)).values():
        end = history.end
        if end.get("state") not in (None, "measured") and end["part"] in PARTS:
            yield end["part"], str(end["key"]["name"]), end["error"]


def compiled(name: str) -> tuple[Any, CompiledModel]:
    """The model of a case, and what is bundled of it, with the text of its kernels. KeyError for another name."""
    if name.startswith(OPEN):
        case = open_cases.CASES[name.removeprefix(OPEN)]
        model = case.model()
        return model, compile_model(model, TARGET, dims=case.dims, keep_source=True, donate=case.donate)
    family, variant = CASES[name.rpartition(".")[0]], VARIANTS[name.rpartition(".")[2]]
    model = repeating(family.make(variant.dtype))
    return model, compile_model(model, family.target, precision=variant.precision, passes=family.passes,
                                sync=family.sync, keep_source=True)  # fmt: skip


def write(name: str, folder: Path) -> None:
    """The model, what is planned, and of each kernel its text and its machine code."""
    model, found = compiled(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "case.tsm").write_bytes(found.to_bytes())
    for member, text in found.contents.extra.items():
        if member.endswith(".cu"):
            (folder / Path(member).name).write_bytes(text)
    for number, (member, cubin) in enumerate(sorted(found.contents.kernels.items())):
        if member.endswith(".cubin"):
            path = folder / f"{number}.cubin"
            path.write_bytes(cubin)
            shown = subprocess.run([find_disassembler(), "-c", str(path)], capture_output=True, text=True, check=True)
            path.with_suffix(".sass").write_text(shown.stdout)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device.failed", description=__doc__)
    parser.add_argument("results", type=Path, help="a folder with queue.jsonl")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args(arguments)
    for part, name, error in failures(options.results):
        write(name, options.out / name)
        listing = "open" if name.startswith(OPEN) else "cases"
        print(f"{part} {name}: {error}\n  {options.out / name}")
        print(f"  make   python -m benchmarks.device.bundle --only {listing} --match {name}")
        print(f"  run    python3 -m benchmarks.device.run_queue --out RESULTS --only {part} --match {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
