"""tilestitch against other engines on the CPU: latency of the five benchmark models at 1 and 2 threads.

    python -m benchmarks.cpu [--models NAME ...] [--threads N ...] [--rounds N] [--against onnxruntime openvino]

Other models of benchmarks/models.py can be named, such as the transformers with all their context (bert_base_512,
gpt2_small_1024, vit_b16_384). All engines get the same random inputs and take turns; the median of many runs counts.
Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("ORT_TELEMETRY_DISABLED", "1")

from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.cli.accuracy import difference
from tilestitch.compiler.cli.bench import interleaved, statistics
from tilestitch.compiler.cli.doctor import examine
from tilestitch.compiler.cli.inputs import make_inputs
from tilestitch.compiler.cli.output import Progress, table
from tilestitch.runtime import load

MODELS = ("resnet50", "mobilenetv2", "bert_base", "gpt2_small", "vit_b16")
FOLDER = Path(__file__).parent


def measure(name: str, threads: int, rounds: int, warmup: int, against: Sequence[str]) -> dict[str, Any]:
    """One row: compile NAME for THREADS, check it, and race it; the first rival tells how far results may differ."""
    path = FOLDER / "models" / f"{name}.onnx"
    if not path.exists():
        raise SystemExit(f"{path} is not there; make it with: python -m benchmarks.models {name}")
    start = time.perf_counter()
    compiled = compile_model(path, "cpu", num_threads=threads)
    compile_s = time.perf_counter() - start
    model = load(compiled.to_bytes(), device="cpu", num_threads=threads)
    inputs = make_inputs(model, {}, seed=0)
    engines: dict[str, Callable[[], Any]] = {"tilestitch": lambda: model.run(inputs)}
    for rival in against:
        engines[rival] = partial(rivals.RACERS[rival](path, threads), inputs)
    ours, theirs = list(model.run(inputs).values()), engines[against[0]]()
    worst = max((difference(str(i), a, b) for i, (a, b) in enumerate(zip(ours, theirs))), key=lambda d: d.error)
    with Progress() as progress:
        times = interleaved(engines, rounds, warmup, progress)
    latency = {engine: statistics(values) for engine, values in times.items()}
    return {
        "model": name,
        "threads": threads,
        "compile_s": round(compile_s, 2),
        "kernels": len(compiled.explain()["kernels"]),
        "latency": latency,
        "speedup": {rival: latency[rival]["p50_us"] / latency["tilestitch"]["p50_us"] for rival in against},
        "error": worst.error,
        "accurate": worst.ok,
    }


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def header(against: Sequence[str]) -> tuple[str, ...]:
    rivals_columns = [column for rival in against for column in (f"{rival} ms", "speed-up")]
    return "model", "threads", "compile s", "kernels", "tilestitch ms", *rivals_columns, "error"


def row(result: dict[str, Any]) -> tuple[object, ...]:
    ms = {engine: f"{values['p50_us'] / 1e3:.2f}" for engine, values in result["latency"].items()}
    compared = [cell for rival, ratio in result["speedup"].items() for cell in (ms[rival], f"{ratio:.2f}")]
    error = f"{result['error']:.1e}{'' if result['accurate'] else ' OFF'}"
    facts = (result["model"], result["threads"], result["compile_s"], result["kernels"])
    return *facts, ms["tilestitch"], *compared, error


def means(results: Sequence[dict[str, Any]], threads: int) -> dict[str, float]:
    """Geometric means of the speed-up over each rival."""
    chosen = [result["speedup"] for result in results if result["threads"] == threads]
    return {rival: geometric_mean([speedup[rival] for speedup in chosen]) for rival in chosen[0]}


def save(results: Sequence[dict[str, Any]], options: argparse.Namespace) -> Path:
    facts = examine()
    now = datetime.datetime.now(datetime.timezone.utc)
    content = {
        "date": now.isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", "benchmarks.cpu", *options.given]),
        "cpu": facts["cpu"],
        "system": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("tilestitch", "numpy", "onnx", "apache-tvm", *options.against)},
        },
        "geometric_mean_speedup": {str(threads): means(results, threads) for threads in options.threads},
        "results": list(results),
    }
    path = options.output or FOLDER / "results" / f"cpu-{now:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def main(arguments: list[str] | None = None) -> int:
    """Prints a table and writes a file; exit code 3 when a result is wrong."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description="Race with other engines on the CPU.")
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="NAME")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--rounds", type=int, default=100, metavar="N", help="measured runs of each (default 100)")
    parser.add_argument("--warmup", type=int, default=5, metavar="N")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.json")
    parser.add_argument("--against", nargs="+", choices=rivals.RACERS, default=["onnxruntime"], metavar="ENGINE")
    options = parser.parse_args(given)
    options.given = given
    results = []
    for threads in options.threads:
        for name in options.models:
            results.append(measure(name, threads, options.rounds, options.warmup, options.against))
            print("  ".join(map(str, row(results[-1]))), file=sys.stderr)
    print(table([row(result) for result in results], header(options.against)))
    for threads in options.threads:
        for rival, ratio in means(results, threads).items():
            print(f"threads: {threads}, geometric mean: {ratio:.2f} times the speed of {rival}")
    print(f"written to {save(results, options)}")
    return 0 if all(result["accurate"] for result in results) else 3


if __name__ == "__main__":
    sys.exit(main())
