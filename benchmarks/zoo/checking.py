"""What tilestitch makes of an exported model: right results, latency against ONNX Runtime, GPU code, emulation."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("ORT_TELEMETRY_DISABLED", "1")

RESULTS = "results.jsonl"
PLANNERS = ("explore", "injective")
Found = dict[str, Any]


def input_names(path: Path) -> list[str]:
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    return [value.name for value in graph.input if value.name not in constants]


def record(folder: Path, stem: str, stage: str, found: Mapping[str, Any]) -> None:
    with (folder / RESULTS).open("a") as file:
        file.write(json.dumps({"model": stem, "stage": stage, **found}) + "\n")


def examine(folder: Path, stem: str, stage: str) -> None:
    found = STAGES[stage](folder / f"{stem}.onnx")
    record(folder, stem, stage, found)
    print(f"{stem} {stage}: " + ", ".join(f"{key} {value}" for key, value in found.items()), flush=True)


def inputs_of(path: Path) -> dict[str, np.ndarray]:
    return dict(np.load(path.with_suffix(".npz"), allow_pickle=False))


def expected(path: Path, inputs: Mapping[str, np.ndarray]) -> Any:
    from tilestitch.compiler.cli import rivals

    return rivals.CHECKERS["onnxruntime"](path)(inputs)


def compiled(path: Path, target: str, threads: int, planner: str = "stitch") -> tuple[Any, float]:
    """The compiled model, and seconds of compiling."""
    from tilestitch.compiler import compile_model

    open_sizes = path.with_suffix(".json")
    shapes = json.loads(open_sizes.read_text()) if open_sizes.exists() else {}
    start = time.perf_counter()
    model = compile_model(path, target, shapes=shapes, num_threads=threads, planner=planner)
    return model, time.perf_counter() - start


def worst(got: Any, want: Any, arithmetic: Sequence[Mapping[str, Any]]) -> tuple[float, bool]:
    """The largest error, and whether all are allowed; `arithmetic` is what `explain` says of each output."""
    from tilestitch.compiler.cli.accuracy import Limits, difference

    found = [difference(str(i), a, b, Limits(inside)) for i, (a, b, inside) in enumerate(zip(got, want, arithmetic))]
    assert len(list(got)) == len(list(want)), "numbers of outputs differ"
    bad = max(found, key=lambda one: (not one.ok, one.error))
    return bad.error, all(one.ok for one in found)


def on_cpu(threads: int) -> Callable[[Path], Found]:
    def examine_cpu(path: Path) -> Found:
        from tilestitch.compiler.cli import rivals
        from tilestitch.compiler.cli.bench import interleaved, statistics
        from tilestitch.compiler.cli.output import Progress
        from tilestitch.runtime import load

        inputs = inputs_of(path)
        model, seconds = compiled(path, "cpu", threads)
        content = model.to_bytes()
        session = load(content, device="cpu", num_threads=threads)
        rival = rivals.onnxruntime(path, threads)
        want = expected(path, inputs)
        start = time.perf_counter()
        rival(inputs)
        once = time.perf_counter() - start
        error, ok = worst(list(session.run(inputs).values()), want, model.explain()["arithmetic"])
        rounds = max(5, min(60, int(1.0 / (once + 1e-4))))
        with Progress() as progress:
            ways = {"ours": lambda: session.run(inputs), "theirs": lambda: rival(inputs)}
            clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns
            times = interleaved(ways, rounds, 3, progress, clock)
        ours, theirs = (statistics(times[key])["p5_us"] for key in ("ours", "theirs"))
        told = model.explain()
        return {
            "ok": ok, "error": float(f"{error:.2g}"), "ratio": round(theirs / ours, 2), "ours_ms": round(ours / 1e3, 3),
            "compile_s": round(seconds, 1), "kernels": len(told["kernels"]), "host_steps": len(told["host_steps"]),
            "bytes": len(content), "onnx_bytes": path.stat().st_size,
        }  # fmt: skip

    return examine_cpu


def beside(*peers: str) -> Callable[[Path], Found]:
    """Other engines' times beside ours, of one thread."""

    def examine_peers(path: Path) -> Found:
        from benchmarks.zoo.peers import raced
        from tilestitch.runtime import load

        model, _ = compiled(path, "cpu", 1)
        with load(model.to_bytes(), device="cpu", num_threads=1) as session:
            return raced(path, session, inputs_of(path), peers)

    return examine_peers


def with_planners(path: Path) -> Found:
    """Other planners against ONNX Runtime."""
    from tilestitch.runtime import load

    inputs = inputs_of(path)
    found: Found = {}
    want = expected(path, inputs)
    for planner in PLANNERS:
        model, seconds = compiled(path, "cpu", 1, planner)
        got = list(load(model.to_bytes(), device="cpu", num_threads=1).run(inputs).values())
        error, ok = worst(got, want, model.explain()["arithmetic"])
        found |= {f"{planner}_ok": ok, f"{planner}_error": float(f"{error:.2g}"), f"{planner}_s": round(seconds, 1)}
    return found


def for_gpus(path: Path) -> Found:
    """All kernels through NVRTC."""
    model, seconds = compiled(path, "cuda:sm_80,sm_90a", 1)
    told = model.explain()
    counts = {"kernels": len(told["kernels"]), "host_steps": len(told["host_steps"])}
    return {"ok": True, "compile_s": round(seconds, 1), **counts}


def on_emulator(path: Path) -> Found:
    from tilestitch.runtime import load

    inputs = inputs_of(path)
    model, _ = compiled(path, "emulator", 1)
    start = time.perf_counter()
    got = list(load(model.to_bytes(), device="emulator").run(inputs).values())
    seconds = time.perf_counter() - start
    error, ok = worst(got, expected(path, inputs), model.explain()["arithmetic"])
    return {"ok": ok, "error": float(f"{error:.2g}"), "run_s": round(seconds, 1)}


STAGES: dict[str, Callable[[Path], Found]] = {
    "cpu": on_cpu(1), "threads": on_cpu(2), "planners": with_planners, "cuda": for_gpus, "emulator": on_emulator,
    "peers": beside("onnxruntime", "openvino"), "inductor": beside("inductor"),
}  # fmt: skip

TABULATED = ("cpu", "threads", "planners", "cuda", "emulator")


def newest(folder: Path) -> dict[str, dict[str, Found]]:
    """Results by model and stage."""
    found: dict[str, dict[str, Found]] = {}
    for line in (folder / RESULTS).read_text().splitlines():
        one = json.loads(line)
        found.setdefault(one["model"], {})[one["stage"]] = one
    return found


def markdown(folder: Path) -> str:
    header = "model | kernels | compile s | max. rel. error | ORT / ours, 1 thread | 2 threads"
    header += " | explore, injective | sm_80, sm_90a | emulator"
    lines = [f"| {header} |", "|" + "---|" * (header.count("|") + 1)]
    for model, stages in sorted(newest(folder).items()):
        cpu, two, others, cuda, emulated = (stages.get(stage, {}) for stage in TABULATED)
        cells = [model, cpu.get("kernels", ""), cpu.get("compile_s", ""), verdict(cpu), cpu.get("ratio", "")]
        cells += [two.get("ratio", ""), agreement(others), built(cuda), verdict(emulated)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def verdict(found: Found) -> str:
    if not found:
        return ""
    if "failure" in found:
        return "refused" if "UnsupportedOperatorsError" in found["failure"] else "fails"
    return f"{found['error']:.0e}" + ("" if found["ok"] else " OFF")


def agreement(found: Found) -> str:
    """Of the two other planners."""
    if not found or "failure" in found:
        return "fails" if found else ""
    return ", ".join(verdict({"ok": found[f"{name}_ok"], "error": found[f"{name}_error"]}) for name in PLANNERS)


def built(found: Found) -> str:
    return "" if not found else "fails" if "failure" in found else f"{found['kernels']} kernels"
