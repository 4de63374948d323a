"""Measures an artifact's latency, alone or interleaved with other engines.

  tilestitch bench model.tsm --against onnxruntime --model model.onnx

The engines take turns, so that other load on the machine affects all of them alike. Medians are compared.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilestitch.compiler.cli import errors, rivals
from tilestitch.compiler.cli.arguments import add_json, add_loading, load_artifact, positive
from tilestitch.compiler.cli.inputs import add_inputs, input_files, inputs_for
from tilestitch.compiler.cli.output import Progress, give, say, table
from tilestitch.compiler.cli.paths import existing, writable

SUMMARY = "measure an artifact's latency"
PERCENTILES = (5, 50, 95, 99)
BURST = 5
SETTLE_S = 0.1
PROFILES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", metavar="MODEL.tsm", help="the artifact to measure")
    parser.add_argument(
        "--against", action="append", choices=(*rivals.RACERS, "pytorch"), default=[],
        help="another engine to measure; may be repeated",
    )  # fmt: skip
    parser.add_argument("--model", metavar="MODEL.onnx", help="the model, for --against onnxruntime and openvino")
    parser.add_argument(
        "--torch", metavar="MODULE:FUNCTION", help="a function that returns the module, for --against pytorch"
    )
    parser.add_argument(
        "--rounds", type=positive, default=100, metavar="N", help="measured runs of each engine (default: 100)"
    )
    parser.add_argument("--warmup", type=positive, default=10, metavar="N", help="runs before measuring (default: 10)")
    parser.add_argument("--profile", action="store_true", help="also measure every kernel launch")
    parser.add_argument("--trace", metavar="FILE.json", help="write a profile of one run, for ui.perfetto.dev")
    add_inputs(parser)
    add_loading(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    taken = [options.artifact, options.weights, options.model, *input_files(options.input)]
    trace = None if options.trace is None else writable(options.trace, taken)
    model = load_artifact(options)
    inputs = inputs_for(model, options)
    engines = {"tilestitch": lambda: model.run(inputs), **_rivals(options, inputs)}
    with Progress() as progress:
        times = interleaved(engines, options.rounds, options.warmup, progress)
    result: dict[str, Any] = {
        "artifact": options.artifact,
        "threads": options.threads,
        "multiprocessors": model.multiprocessors,
        "rounds": options.rounds,
        "engines": {name: statistics(values) for name, values in times.items()},
    }
    ours = result["engines"]["tilestitch"]["p50_us"]
    result["speedup"] = {name: result["engines"][name]["p50_us"] / ours for name in engines if name != "tilestitch"}
    if options.device != "emulator":  # its times are meaningless
        result["host"] = host_share(model, inputs)
    if options.profile:
        result["launches"] = profile(model, inputs, options.rounds)
        if options.device.startswith("cuda"):
            print(ranges_note(), file=sys.stderr)
    if trace is not None:
        from tilestitch.runtime.trace import write_trace

        write_trace(trace, model.profile(inputs), f"{options.artifact} on {options.device}")
    if options.json:
        give(result)
    else:
        say(describe(result))
    return errors.OK


def _rivals(options: argparse.Namespace, inputs: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    engines: dict[str, Callable[[], object]] = {}
    for name in dict.fromkeys(options.against):
        if name in rivals.RACERS:
            if options.model is None:
                raise errors.UsageError(f"--against {name} needs the model: --model MODEL.onnx")
            run_rival = rivals.RACERS[name](existing(options.model), options.threads)
        else:
            if options.torch is None:
                raise errors.UsageError("--against pytorch needs the module: --torch MODULE:FUNCTION")
            run_rival = rivals.pytorch(options.torch, options.threads)
        engines[name] = functools.partial(run_rival, inputs)
    return engines


def interleaved(
    engines: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int,
    progress: Callable[..., None],
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, list[float]]:
    """Return the times in microseconds of ROUNDS runs of each engine. Engines take turns of BURST runs, in changing
    order.

    `clock`: nanoseconds; use `time.thread_time_ns` for engines of one thread on a machine with other load.

    Runs in the first SETTLE_S of a turn are not counted: the previous engine has filled the caches, and its threads may
    still occupy cores (ONNX Runtime's spin for about 50 ms after a run).
    """
    for call in engines.values():
        for _ in range(warmup):
            call()
    times: dict[str, list[float]] = {name: [] for name in engines}
    order = list(engines)
    for done in range(0, rounds, BURST):
        progress("run", done, rounds)
        for name in order:
            _settle(engines[name])
            for _ in range(min(BURST, rounds - done)):
                start = clock()
                engines[name]()
                times[name].append((clock() - start) / 1e3)
        order.reverse()
    return times


def _settle(call: Callable[[], object]) -> None:
    end = time.perf_counter() + SETTLE_S
    call()
    while time.perf_counter() < end:
        call()


def statistics(times_us: Sequence[float]) -> dict[str, float]:
    """Return percentiles, mean and minimum, in microseconds."""
    import numpy as np

    values = {f"p{p}_us": float(np.percentile(times_us, p)) for p in PERCENTILES}
    return {**values, "mean_us": float(np.mean(times_us)), "min_us": float(np.min(times_us))}


def profile(model: Any, inputs: Mapping[str, Any], rounds: int) -> list[dict[str, Any]]:
    """Return the median time of every launch."""
    import numpy as np

    runs = [model.profile(inputs) for _ in range(rounds)]
    return [
        {
            "name": launch.symbol, "onnx_nodes": list(launch.origins), "branch": launch.branch,
            "median_us": float(np.median(times)),
        }
        for launch, times in zip(runs[0], ([one.microseconds for one in column] for column in zip(*runs)))
    ]  # fmt: skip


def ranges_note() -> str:
    """Return a note on whether profilers will show the ONNX nodes of a profile's launches."""
    from tilestitch.runtime.trace import DOMAIN, has_ranges

    if has_ranges():
        return f"profilers show the launches in NVTX ranges of the domain {DOMAIN!r}: nsys profile tilestitch bench …"
    return "no NVTX ranges for profilers; pip install nvtx"


def host_share(model: Any, inputs: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the host steps, their time, and its share of all steps' time; None if everything runs in kernels."""
    from tilestitch.runtime.program import DeviceStep, NativeStep

    if all(isinstance(step, (NativeStep, DeviceStep)) for program in model.artifact.programs for step in program.steps):
        return None
    launches = min(
        (model.profile(inputs) for _ in range(PROFILES)), key=lambda run: sum(one.microseconds for one in run)
    )
    on_host = [launch.microseconds for launch in launches if launch.on_host]
    total_us = sum(launch.microseconds for launch in launches)
    return {"steps": len(on_host), "us": sum(on_host), "share": sum(on_host) / total_us if total_us else 0.0}


def describe(result: Mapping[str, Any]) -> str:
    rows = [
        (name, *(f"{values[key]:.1f}" for key in ("p50_us", "p5_us", "p95_us", "p99_us", "min_us")),
         f"{result['speedup'][name]:.2f}" if name in result["speedup"] else "")
        for name, values in result["engines"].items()
    ]  # fmt: skip
    parts = [table(rows, ("engine", "median µs", "p5", "p95", "p99", "min", "its median over ours"))]
    if result.get("multiprocessors") is not None:
        parts.append(f"on {result['multiprocessors']} multiprocessors of the GPU")
    host = result.get("host")
    if host is not None:
        parts.append(
            f"{host['steps']} steps on the host: {host['us']:.1f} µs, {100 * host['share']:.0f} % of all steps"
        )
    return "\n".join([*parts, *_describe_launches(result.get("launches", []))])


def _describe_launches(launches: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of the launches, and one of their branches if there are several."""
    if not launches:
        return []
    total = sum(launch["median_us"] for launch in launches) or 1.0
    lines = [
        (launch["name"], f"{launch['median_us']:.1f}", f"{100 * launch['median_us'] / total:.1f} %",
         str(launch["branch"]), ", ".join(launch["onnx_nodes"][:4]))
        for launch in sorted(launches, key=lambda launch: -launch["median_us"])
    ]  # fmt: skip
    parts = [table(lines, ("launch", "median µs", "share", "branch", "ONNX nodes"))]
    by_branch: dict[int, list[float]] = {}
    for launch in launches:
        by_branch.setdefault(launch["branch"], []).append(launch["median_us"])
    if len(by_branch) > 1:
        rows = [(str(branch), str(len(times)), f"{sum(times):.1f}") for branch, times in sorted(by_branch.items())]
        parts.append(table(rows, ("branch", "launches", "median µs, one by one")))
    return parts
