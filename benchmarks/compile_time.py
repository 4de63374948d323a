"""How long compiling takes, and how that grows with the number of nodes: large graphs of many kinds.

    python -m benchmarks.compile_time [KIND ...] [--nodes N ...] [--targets T ...] [--planner P] [--limit S]

Each graph is compiled in a process of its own, after a tiny one that has everything imported, and without kernels from
the cache. What counts is the CPU time, user and system, of all threads and child processes: on a machine that does
other things as well it is steadier than the time of day. The rows measured take the place of those of the same kind,
size, target and planner in benchmarks/results/compile_time.json, and docs/measurements/compile_time.md shows all.

Target `emulator:sm_90a` is planning and code generation for such a GPU, CUDA text included, without NVRTC.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.large_graphs import KINDS

RESULTS = Path(__file__).parent / "results" / "compile_time.json"
PAGE = Path(__file__).parent.parent / "docs" / "measurements" / "compile_time.md"
THREADS = 2
HEADER = (
    "kind", "nodes", "target", "planner", "CPU s", "ms a node", "planning s", "kernels", "peak MiB", "date", "load"
)  # fmt: skip
PACKAGES = ("apache-tvm", "nvidia-cuda-nvrtc", "onnx", "numpy")
INTRODUCTION = """# Compile time

<!-- written by: python -m benchmarks.compile_time -->

Graphs of a single kind with many nodes (`benchmarks/large_graphs.py` defines the kinds; in `concat_inputs` and
`sum_inputs` the nodes are operands of one node), compiled with {threads} threads. Times are CPU seconds, user and
system, summed over all threads, without imports; *planning* is the time until kernels are generated. Compiles that
exceeded their limit have none. `cuda:sm_90a` is a whole compile, with NVRTC; `emulator:sm_90a` is planning and
code generation for such a GPU, without NVRTC. *load* is the mean number of runnable processes in the minute
before, where recorded: on a loaded machine the same compile takes more CPU time, as caches are shared.

{machine}

"""


def compiled(kind: str, nodes: int, target: str, planner: str) -> dict[str, Any]:
    """One row: compiles the graph in this process."""
    from tilestitch.compiler import compile_model

    def compile_(model: Any, progress: Any = None) -> Any:
        return compile_model(model, target=target, planner=planner, num_threads=THREADS, cache=False, progress=progress)

    compile_(KINDS["chain"](3))
    model = KINDS[kind](nodes)
    planned: list[float] = []

    def progress(stage: str, done: int, total: int) -> None:
        if done == total and not planned:
            planned.append(_cpu_s())

    load = os.getloadavg()[0]
    start, began = _cpu_s(), time.perf_counter()
    result = compile_(model, progress)
    return {
        "cpu_s": round(_cpu_s() - start, 2),
        "wall_s": round(time.perf_counter() - began, 2),
        "planning_s": round(planned[0] - start, 2),
        "kernels": sum(len(p.groups) for s in result.specialisations for p in s.plan.walk()),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load": round(load, 1),
    }


def machine() -> str:
    """The machine that runs this, and the versions of what compiles."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    model = models[0] if models else platform.machine()
    return f"{model}, {os.cpu_count()} CPUs; Python {platform.python_version()}, {versions}."


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


def measure(kind: str, nodes: int, target: str, planner: str, limit_s: int) -> dict[str, Any]:
    """One row, from a process of its own, which ends after `limit_s` seconds of CPU time."""
    row = {"kind": kind, "nodes": nodes, "target": target, "planner": planner}
    command = [sys.executable, "-m", "benchmarks.compile_time", kind, "--nodes", str(nodes), "--targets", target]
    done = subprocess.run(
        [*command, "--planner", planner, "--here"], capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s)),
    )  # fmt: skip
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"ended by signal {-done.returncode}"])[-1]
        print(f"{kind} {nodes} {target}: {reason}", file=sys.stderr)
        return {**row, "failure": reason, "limit_s": limit_s}
    return {**row, **json.loads(done.stdout.splitlines()[-1])}


def merged(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by kind, target, planner and size, in the order of KINDS; the new ones take the place of old ones."""
    kinds = list(KINDS)
    rows = {_key(row): row for row in (*old, *new) if row["kind"] in KINDS}
    return sorted(rows.values(), key=lambda r: (r["planner"], r["target"], kinds.index(r["kind"]), r["nodes"]))


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["kind"], row["nodes"], row["target"], row["planner"]


def page(rows: Sequence[dict[str, Any]], about: str) -> str:
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    return INTRODUCTION.format(threads=THREADS, machine=about) + "\n".join(lines) + "\n"


def _cells(row: dict[str, Any]) -> list[str]:
    about = [row["kind"], f"{row['nodes']:,}", row["target"], row["planner"]]
    if "failure" in row:
        return [*about, f"not done (limit {row['limit_s']})", *[""] * 6]
    per_node = f"{1000 * row['cpu_s'] / row['nodes']:.2f}"
    return [
        *about,
        f"{row['cpu_s']:.1f}",
        per_node,
        f"{row['planning_s']:.1f}",
        str(row["kernels"]),
        str(row["peak_mib"]),
        row.get("date", ""),
        str(row.get("load", "")),
    ]


def main() -> int:
    """Measures, prints each row when it is there, and writes the results and the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time", description="Measure compile time.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all when none is named")
    parser.add_argument("--nodes", nargs="+", type=int, default=[300, 3000], metavar="N")
    parser.add_argument("--targets", nargs="+", default=["cpu", "emulator:sm_90a"], metavar="T")
    parser.add_argument("--planner", default="stitch", metavar="P")
    parser.add_argument("--limit", type=int, default=300, metavar="S", help="CPU seconds after which a compile ends")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [kind for kind in options.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"no kind named {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if options.here:
        print(json.dumps(compiled(options.kinds[0], options.nodes[0], options.targets[0], options.planner)))
        return 0
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    for target in options.targets:
        for kind in options.kinds or KINDS:
            for nodes in options.nodes:
                row = measure(kind, nodes, target, options.planner, options.limit)
                print("  ".join(_cells(row)), flush=True)
                rows = merged(rows, [row])
                _write(rows)
    return 0


def _write(rows: Sequence[dict[str, Any]]) -> None:
    about = {"threads": THREADS, "cpus": os.cpu_count(), "machine": machine()}
    RESULTS.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(rows, machine()), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
