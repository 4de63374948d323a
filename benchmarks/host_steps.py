"""Models of what is slow around kernels: sizes that the data decides, sequences, optional values, texts.

    python -m benchmarks.host_steps [PART OF A NAME ...] [--rounds N]

All give what ONNX Runtime gives and take turns with it; CPU time of one thread counts. Results go to
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.host_models import CASES, Case, names
from benchmarks.turns import cpu_microseconds, markdown, onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.runtime import Module, load

MOST_SECONDS = 1.0
"""For the turns of one row."""


def compare(name: str, ours: Any, theirs: Any) -> None:
    if isinstance(theirs, list):
        assert len(ours) == len(theirs), f"{name}: {len(ours)} items, not {len(theirs)}"
        for one, other in zip(ours, theirs):
            compare(name, one, other)
    elif np.asarray(theirs).dtype.kind == "f":
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=name)
    else:
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


def measured(name: str, word: str, module: Module, session: Any, case: Case, rounds: int) -> dict[str, Any]:
    feeds = case.feeds[word]
    for (output, ours), theirs in zip(module.run(feeds).items(), session.run(None, feeds), strict=True):
        if output not in case.partial:
            compare(f"{name}, {output}", ours, theirs)
    ways = {"ours_us": lambda: module.run(feeds), "onnxruntime_us": lambda: session.run(None, feeds)}
    few = cpu_microseconds(ways, 8)
    times = cpu_microseconds(ways, max(16, min(rounds, int(MOST_SECONDS * 1e6 / sum(few.values())))))
    steps = [step.symbol.removeprefix("host.") for step in module.profile(feeds) if step.on_host]
    counts = {step: steps.count(step) for step in dict.fromkeys(steps)}
    shown = {way: round(time, 1) for way, time in times.items()}
    return {"case": name, "input": word, **shown, "speed": round(times["onnxruntime_us"] / times["ours_us"], 2),
            "host_steps": counts}  # fmt: skip


def measured_all(name: str, rounds: int) -> list[dict[str, Any]]:
    case = CASES[name]()
    session = onnxruntime_session(case.model, 1)
    with load(compile_model(case.model, num_threads=1).to_bytes(), num_threads=1) as module:
        return [measured(name, word, module, session, case, rounds) for word in case.feeds]


def main() -> int:
    """Prints a table and writes a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_steps", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="of the names of the cases wanted")
    parser.add_argument("--rounds", type=int, default=2000, metavar="N")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.json")
    options = parser.parse_args()
    results = []
    for name in names(options.parts):
        for row in measured_all(name, options.rounds):
            print(row, flush=True)
            results.append(row)
    cells = [[row[key] for key in ("case", "input", "ours_us", "onnxruntime_us", "speed")] for row in results]
    print(markdown(("case", "input", "us", "onnxruntime us", "times its speed"), cells))
    print(f"written to {write_results('host_steps', results, options.output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
