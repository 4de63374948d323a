"""Whole models on the CPU with `--precision` bf16 and fp16, against our own float32 and ONNX Runtime's.

    python -m benchmarks.precisions [NAME ...] [--threads 1 2] [--rounds N]

All take turns. With one thread CPU time counts, which a busy machine does not lengthen; with more, wall clock. Errors
are the largest ones against ONNX Runtime's results, over the largest of these. Models are those of
`python -m benchmarks.models`; results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from benchmarks.models import FOLDER
from benchmarks.quantised import least_ms, least_wall_ms, random_inputs, relative_error
from benchmarks.turns import onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import load

NAMES = ("resnet50", "mobilenetv2", "bert_base", "gpt2_small", "vit_b16")
PRECISIONS = ("fp32", "bf16", "fp16")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precisions", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="NAME", help="only these models")
    parser.add_argument("--threads", nargs="+", type=int, default=[1], metavar="N")
    parser.add_argument("--rounds", type=int, default=15, metavar="N")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.names:
        for threads in options.threads:
            for row in _measured(name, threads, options.rounds):
                rows.append(row)
                print(row, flush=True)
    print(table([list(row.values()) for row in rows], list(rows[0])))
    print(write_results("precisions", rows))
    return 0


def _measured(name: str, threads: int, rounds: int) -> Iterator[dict[str, Any]]:
    path = FOLDER / f"{name}.onnx"
    feeds = next(random_inputs(onnx.load(path))())
    rival = onnxruntime_session(path, threads)
    ways: dict[str, Callable[[], Any]] = {"onnxruntime": partial(rival.run, None, feeds)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for precision in PRECISIONS:
            artifact = folder / f"{precision}.tsm"
            compile_model(path, num_threads=threads, precision=precision).save(artifact)
            ways[precision] = partial(stack.enter_context(load(artifact, num_threads=threads)).run, feeds)
        least = least_ms(ways, rounds) if threads == 1 else least_wall_ms(ways, rounds)
        expected = rival.run(None, feeds)[0]
        errors = {each: relative_error(next(iter(ways[each]().values())), expected) for each in PRECISIONS}
    for precision in PRECISIONS:
        yield {
            "model": name, "precision": precision, "threads": threads, "ms": round(least[precision], 2),
            "against_float32": round(least["fp32"] / least[precision], 2),
            "against_onnxruntime": round(least["onnxruntime"] / least[precision], 2), "error": errors[precision],
        }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
