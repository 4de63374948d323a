"""Which lines of our CUDA kernels ask memory for more than they need: counted on the emulated device, without a GPU.

    python -m benchmarks.warp_requests [CASE ...] [--variant float16] [--above 1.25] [--share 0.05] [--json FILE]

CASE is one of benchmarks.device.bundle_cases, one or more for each family of kernels; --match takes a part of their
names. Of each kernel it prints the lines whose warps touch more sectors of global memory than their bytes fill, or take
more wavefronts of shared memory than without bank conflicts, and that have a share of what the kernel does in that
memory. Sectors that several requests of a line touch are counted each time: L1 may hold them. Exit code 0.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.device.bundle_cases import CASES, VARIANTS, Family
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.inputs import make_inputs
from tilestitch.runtime import load
from tilestitch.runtime.artifact import cuda_source_member
from tilestitch.runtime.emulator import EmulatorOptions, Requests


@dataclass(frozen=True)
class Row:
    """A line of a kernel. share: of the transactions of all lines of the kernel in that memory."""

    case: str
    variant: str
    kernel: str
    share: float
    requests: Requests
    text: str


def rows_of(name: str, family: Family, variant: str) -> Iterator[Row]:
    kind = VARIANTS[variant]
    compiled = compile_model(
        family.make(kind.dtype), family.target, precision=kind.precision, passes=family.passes, sync=family.sync,
        keep_source=True,
    )  # fmt: skip
    texts = compiled.contents.extra
    seen: list[tuple[str, Sequence[Requests]]] = []
    options = EmulatorOptions(on_requests=lambda symbol, found: seen.append((symbol, found)))
    with load(compiled.to_bytes(), device=options) as module:
        module.run(make_inputs(module, {}, seed=0))
    for symbol, found in seen:
        for one in found:
            every = sum(other.transactions for other in found if other.space == one.space)
            lines = texts.get(cuda_source_member(one.source), b"").decode().splitlines()
            text = lines[one.line - 1].strip() if 0 < one.line <= len(lines) else ""
            yield Row(name, variant, symbol, one.transactions / every, one, text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warp_requests", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="CASE", help="default: all")
    parser.add_argument("--match", default="", help="only cases whose names contain this")
    parser.add_argument("--variant", action="append", help="only these data types")
    parser.add_argument("--above", type=float, default=1.25, help="transactions over the least (default 1.25)")
    parser.add_argument(
        "--share", type=float, default=0.05, help="least share of the kernel's transactions (default 0.05)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row as JSON")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for name in options.names or CASES:
        for variant in CASES[name].variants if options.match in name else ():
            if options.variant and variant not in options.variant:
                continue
            start = time.process_time()
            found = list(rows_of(name, CASES[name], variant))
            rows += found
            print(f"## {name} {variant} ({time.process_time() - start:.0f} s)", flush=True)
            for row in found:
                if row.requests.excess >= options.above and row.share >= options.share:
                    print(_shown(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


def _shown(row: Row) -> str:
    one = row.requests
    way = "write" if one.is_write else "read"
    return (
        f"{row.kernel} {one.space} {way}: {one.excess:.2f} times the least of {one.least_transactions}, "
        f"{row.share:.0%} of all, {one.bytes / one.requests:.0f} bytes a request\n    {one.line}: {row.text[:150]}"
    )


if __name__ == "__main__":
    sys.exit(main())
