"""Which lines of our CUDA kernels ask memory for more than they need: counted on the emulated device, without a GPU.

    python -m benchmarks.warp_requests [CASE ...] [--match TEXT] [--without TEXT] ... [--variant float16] ...
                                       [--above 1.25] [--share 0.05] [--json FILE]

CASE is one of benchmarks.device.bundle_cases, one or more for each family of kernels. Of each kernel it prints the
lines whose warps touch more sectors of global memory than their bytes fill, or take more wavefronts of shared memory
than without bank conflicts, and that have a share of what the kernel does in that memory. Sectors that several requests
of a line touch are counted each time: L1 may hold them. Exit code 0.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.device.bundle_cases import CASES, VARIANTS, Family
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.inputs import make_inputs
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions, Requests
from tilestitch.runtime.members import cuda_source_member


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
    parser.add_argument(
        "--without", action="append", default=[], metavar="TEXT", help="no cases whose names contain it"
    )
    parser.add_argument("--variant", action="append", help="only these data types")
    parser.add_argument("--above", type=float, default=1.25, help="transactions over the least (default 1.25)")
    parser.add_argument(
        "--share", type=float, default=0.05, help="least share of the kernel's transactions (default 0.05)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the sums of every kernel as JSON")
    options = parser.parse_args(arguments)
    for name in set(options.names) - set(CASES):
        parser.error(f"there is no case {name!r}; there are {', '.join(CASES)}")
    names = [n for n in options.names or CASES if options.match in n and not any(w in n for w in options.without)]
    rows: list[Row] = []
    for name in names:
        for variant in CASES[name].variants:
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
            options.json.write_text(_summary(rows, sys.argv[1:] if arguments is None else arguments))
    return 0


def _summary(rows: Sequence[Row], given: Sequence[str]) -> str:
    """Transactions, and the least, of each template of each case by memory and direction."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        one = row.requests
        way = "write" if one.is_write else "read"
        total = sums.setdefault((row.case, row.variant, row.kernel.rpartition("_")[0], one.space, way), [0, 0])
        total[0] += one.transactions
        total[1] += one.least_transactions
    names = ("case", "variant", "template", "space", "way", "transactions", "least", "excess")
    results = [dict(zip(names, (*key, *total, round(total[0] / total[1], 2)))) for key, total in sums.items()]
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    command = " ".join(["python -m benchmarks.warp_requests", *given])
    lines = ",\n".join(f"  {json.dumps(result)}" for result in results)
    head = json.dumps({"date": now, "command": command, "emulated": True}, indent=1).removesuffix("\n}")
    return f'{head},\n "results": [\n{lines}\n ]\n}}\n'


def _shown(row: Row) -> str:
    one = row.requests
    way = "write" if one.is_write else "read"
    return (
        f"{row.kernel} {one.space} {way}: {one.excess:.2f} times the least of {one.least_transactions}, "
        f"{row.share:.0%} of all, {one.bytes / one.requests:.0f} bytes a request\n    {one.line}: {row.text[:150]}"
    )


if __name__ == "__main__":
    sys.exit(main())
