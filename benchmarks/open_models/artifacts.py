"""What models with open dimensions are compiled to: for all sizes, or for one; kept in a folder where one is named."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.open_models.sizes import Feeds, Sizes
from tilestitch.codegen.errors import CodegenError
from tilestitch.compiler import compile_model
from tilestitch.compiler.errors import HostStepsError
from tilestitch.compiler.frontend.errors import FrontendError
from tilestitch.passes.errors import PassError
from tilestitch.runtime import load
from tilestitch.runtime.errors import TilestitchRuntimeError

REFUSALS = (FrontendError, PassError, CodegenError, HostStepsError, TilestitchRuntimeError)
ALL_SIZES = "open"


@dataclass(frozen=True)
class Compiled:
    """What compiling gave: a function that runs it, or why there is none."""

    run: Callable[[Feeds], Sequence[Any]] | None
    facts: Mapping[str, Any]


def compiled(
    path: Path, threads: int, keep: Path | None, sizes: Sizes | None = None, feeds: Feeds | None = None
) -> Compiled:
    """Of a model for all sizes, or for the shapes of `feeds`, made of `sizes`. What a folder keeps is not compiled
    again, whatever has become of the compiler: `commit` in the facts says of which one it is.
    """
    place = None if keep is None else keep / f"{path.stem}.{threads}t.{named(sizes)}.tsm"
    if place is not None and place.exists():
        return opened(place, threads, json.loads(place.with_suffix(".json").read_text()))
    shapes = None if feeds is None else {name: array.shape for name, array in feeds.items()}
    start, used = time.perf_counter(), time.process_time()
    try:
        made = compile_model(path, num_threads=threads, shapes=shapes)
        content = made.to_bytes()
    except REFUSALS as error:
        return Compiled(None, {"failure": f"{type(error).__name__}: {error}"})
    told = made.explain()
    specialisations = (told, *told.get("specialisations", ()))
    facts = {
        "commit": commit(),
        "compile_s": round(time.perf_counter() - start, 2),
        "compile_cpu_s": round(time.process_time() - used, 2),
        "kernels": len(told["kernels"]),
        "host_steps": sum(one["host"]["steps"] for one in specialisations),
        "host_reasons": sorted({reason["reason"] for one in specialisations for reason in one["host"]["reasons"]}),
        "sizes": [one["sizes"] for one in specialisations],
    }
    if place is None:
        return opened(content, threads, facts)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.with_suffix(".json").write_text(json.dumps(facts) + "\n")
    unfinished = place.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(content)
    os.replace(unfinished, place)
    return opened(place, threads, facts)


def opened(source: Path | bytes, threads: int, facts: Mapping[str, Any]) -> Compiled:
    model = load(source, device="cpu", num_threads=threads)
    return Compiled(lambda feeds: list(model.run(feeds).values()), facts)


def named(sizes: Sizes | None) -> str:
    return ALL_SIZES if sizes is None else "_".join(f"{dim}-{size}" for dim, size in sizes.items())


def commit() -> str:
    """That the compiler is of, with a mark where files differ from it; "unknown" outside of a repository."""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    told = subprocess.run(asked, capture_output=True, text=True, cwd=Path(__file__).parent)
    return told.stdout.strip() or "unknown"


def input_names(path: Path) -> set[str]:
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    return {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
