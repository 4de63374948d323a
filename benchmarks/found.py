"""What the data decides the size of, in large tensors: compiled kernels against ONNX Runtime and numpy's host steps.

    python -m benchmarks.found [--elements N] [--threads N ...] [--rounds N]

NonZero and Compress of masks of which none, few, half and all is true, and Unique of few, many and of floating-point
values. All give the same values and take turns. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import parser

from benchmarks.turns import markdown, microseconds, onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.host import TABLE

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
DENSITIES = (0.0, 0.01, 0.5, 1.0)
NON_ZERO = "(bool[a, b] x) => (int64[2, k] y) { y = NonZero(x) }"
FLAT = "(bool[n] x) => (int64[1, k] y) { y = NonZero(x) }"
COMPRESS = "(float[n] x, bool[n] q) => (float[k] y) { y = Compress<axis=0>(x, q) }"
UNIQUE = "(KIND[n] x) => (KIND[k] y, int64[k] f, int64[n] w, int64[k] c) { y, f, w, c = Unique(x) }"


@dataclass(frozen=True)
class Case:
    """One operator. attrs: of the host step."""

    name: str
    text: str
    feeds: dict[str, np.ndarray]
    operator: str
    attrs: dict[str, Any]


def cases(elements: int) -> Iterator[Case]:
    random = np.random.default_rng(0)
    for density in DENSITIES:
        mask, floats = random.random(elements) < density, random.standard_normal(elements).astype(np.float32)
        yield Case(f"NonZero [n], {density:.0%}", FLAT, {"x": mask}, "NonZero", {})
        yield Case(f"NonZero [n, 1000], {density:.0%}", NON_ZERO, {"x": mask.reshape(-1, 1000)}, "NonZero", {})
        yield Case(f"Compress, {density:.0%}", COMPRESS, {"x": floats, "q": mask}, "Compress", {"axis": 0})
    count = elements // 10
    for name, kind, x in (
        ("of 1000 int64", "int64", random.integers(0, 1000, count)),
        ("of many int64", "int64", random.integers(0, count, count)),
        ("of float32", "float", random.standard_normal(count).astype(np.float32)),
    ):
        yield Case(f"Unique {name}, n / 10", UNIQUE.replace("KIND", kind), {"x": x}, "Unique", {})


def wanted_of(case: Case) -> list[Any]:
    return list(TABLE[case.operator](list(case.feeds.values()), case.attrs))


def measured(case: Case, threads: int, rounds: int) -> dict[str, Any]:
    model = parser.parse_model(HEAD + case.text)
    session = onnxruntime_session(model, threads)
    with load(compile_model(model, num_threads=threads).to_bytes(), num_threads=threads) as module:
        for actual, wanted in zip(module.run(case.feeds).values(), wanted_of(case), strict=True):
            np.testing.assert_array_equal(actual, wanted)
        ways = {
            "compiled": lambda: module.run(case.feeds),
            "onnxruntime": lambda: session.run(None, case.feeds),
            "numpy": lambda: wanted_of(case),
        }
        return {"case": case.name, "threads": threads, **microseconds(ways, rounds, 1)}


def main() -> int:
    parser_ = argparse.ArgumentParser(prog="python -m benchmarks.found", description=__doc__.partition("\n")[0])
    parser_.add_argument("--elements", type=int, default=10_000_000, metavar="N", help="of a mask, thousands of them")
    parser_.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser_.add_argument("--rounds", type=int, default=7, metavar="N")
    options = parser_.parse_args()
    rows = [measured(case, n, options.rounds) for n in options.threads for case in cases(options.elements)]
    names = ("compiled", "onnxruntime", "numpy")
    lines = [(row["case"], row["threads"], *(row[name]["median_us"] for name in names)) for row in rows]
    print(markdown(("case", "threads", *(f"{name} us" for name in names)), lines))
    print(f"written to {write_results('found', rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
