"""Compiles models and runs them on the stand-in: load, build the graphs, run twice, profile, unload.

    python -m tests.runtime.cuda.standin.models [NAME ...] [--target cuda:sm_90a]

The models are ONNX's light models, and those that `python -m benchmarks.models` has made. Exit code 1 if one fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx.backend.test.loader as loader

from tests.runtime.cuda.standin.build import build
from tests.runtime.cuda.standin.child import StandIn, run
from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.dtypes import numpy_dtype

MADE = Path(__file__).resolve().parents[4] / "benchmarks" / "models"
LIGHT = Path(loader.DATA_DIR) / "light"
GPUS = {"cuda:sm_80": "A100", "cuda:sm_90a": "H200"}


def models() -> dict[str, Path]:
    return {path.stem: path for folder in (LIGHT, MADE) for path in sorted(folder.glob("*.onnx"))}


def exercise(artifact: bytes) -> None:
    """Everything that a model does on a GPU, with inputs and results on the host and results on the GPU."""
    with load(artifact, device="cuda") as loaded:
        feeds = {info.name: _zeros(info) for info in loaded.inputs}
        first = loaded.run(feeds, on_device=True)
        again = loaded.run(feeds)
        assert {name: array.shape for name, array in first.items()} == {name: a.shape for name, a in again.items()}
        assert len(loaded.profile(feeds)) > 0
        del first


def _zeros(info: Any) -> np.ndarray:
    """Sizes that are open are 1."""
    return np.zeros([size if isinstance(size, int) else 1 for size in info.shape], numpy_dtype(info.dtype))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.runtime.cuda.standin.models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    parser.add_argument("--target", choices=tuple(GPUS), default="cuda:sm_90a")
    options = parser.parse_args(arguments)
    library, known, failed = build(GPUS[options.target]), models(), 0
    for name in options.names or known:
        start = time.perf_counter()
        artifact = compile_model(known[name], options.target).to_bytes()
        compiled = time.perf_counter()

        def work(stand_in: StandIn, artifact: bytes = artifact) -> None:
            exercise(artifact)

        try:
            run(library, work)
            verdict = "ok"
        except AssertionError as error:
            failed, verdict = failed + 1, f"FAILED\n{error}"
        seconds = f"{compiled - start:.0f} s to compile, {time.perf_counter() - compiled:.1f} s to run"
        print(f"{name} ({options.target}, {seconds}): {verdict}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
