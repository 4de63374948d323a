"""Profiles as Chrome trace files, which ui.perfetto.dev and chrome://tracing show, and NVTX ranges, by which Nsight
Systems and other profilers show what a launch computes.

write_trace("run.json", module.profile(feeds), "bert on cuda:0")

The package `nvtx` writes ranges; without it there are none, and without a profiler they cost next to nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from .archive import atomic_file

DOMAIN = "tilestitch"


def has_ranges() -> bool:
    """Return whether the package `nvtx` is installed."""
    return importlib.util.find_spec("nvtx") is not None


def ranges() -> Callable[[str, tuple[str, ...]], AbstractContextManager[Any]]:
    """Return a function that opens the range for a launch, given its kernel and its ONNX nodes."""
    if not has_ranges():
        return lambda symbol, origins: nullcontext()
    annotate: Callable[..., AbstractContextManager[Any]] = importlib.import_module("nvtx").annotate
    return lambda symbol, origins: annotate(f"{', '.join(origins) or '(no ONNX node)'} [{symbol}]", domain=DOMAIN)


_KERNELS, _NODES = 1, 2
_SHOWN = 3
"""Number of ONNX nodes in a slice's name; all of them are among its arguments."""


class Timed(Protocol):
    """A launch and its time; `LaunchTime` is one."""

    @property
    def symbol(self) -> str: ...
    @property
    def origins(self) -> tuple[str, ...]: ...
    @property
    def microseconds(self) -> float: ...
    @property
    def branch(self) -> int: ...


def trace_events(launches: Sequence[Timed], title: str) -> dict[str, Any]:
    """Return the trace as JSON data: launches one after the other, in one row by kernel and in another by ONNX
    nodes.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": title}},
        {"ph": "M", "pid": 1, "tid": _KERNELS, "name": "thread_name", "args": {"name": "kernels"}},
        {"ph": "M", "pid": 1, "tid": _NODES, "name": "thread_name", "args": {"name": "ONNX nodes"}},
    ]
    start_us = 0.0
    for launch in launches:
        span = {"ph": "X", "pid": 1, "ts": round(start_us, 3), "dur": round(launch.microseconds, 3)}
        arguments = {"kernel": launch.symbol, "onnx_nodes": list(launch.origins), "branch": launch.branch}
        events.append({**span, "tid": _KERNELS, "name": launch.symbol, "args": arguments})
        events.append({**span, "tid": _NODES, "name": _title(launch.origins), "args": arguments})
        start_us += launch.microseconds
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def timeline_events(launches: Sequence[Mapping[str, Any]], title: str) -> dict[str, Any]:
    """Return a predicted schedule (`launches` of `explain`'s `schedule`) as JSON data, each branch in a row of its
    own.
    """
    branches = sorted({launch["branch"] for launch in launches})
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": title}}]
    events += (
        {"ph": "M", "pid": 1, "tid": branch, "name": "thread_name", "args": {"name": f"branch {branch}"}}
        for branch in branches
    )
    for launch in launches:
        events.append({
            "ph": "X", "pid": 1, "tid": launch["branch"], "name": launch["kernel"], "ts": launch["start_us"],
            "dur": round(launch["end_us"] - launch["start_us"], 3),
            "args": {key: launch[key] for key in ("priority", "critical", "alone_us", "after", "why", "beside")},
        })  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _title(origins: tuple[str, ...]) -> str:
    more = f" + {len(origins) - _SHOWN} more" if len(origins) > _SHOWN else ""
    return ", ".join(origins[:_SHOWN]) + more or "(no ONNX node)"


def write_trace(path: str | os.PathLike[str], launches: Sequence[Timed], title: str) -> None:
    """Write the trace atomically. Raises `ArtifactWriteError` when the file cannot be written."""
    with atomic_file(path) as file:
        file.write(json.dumps(trace_events(launches, title)).encode())


def write_timeline(path: str | os.PathLike[str], launches: Sequence[Mapping[str, Any]], title: str) -> None:
    """Write a predicted schedule atomically. Raises `ArtifactWriteError` when the file cannot be written."""
    with atomic_file(path) as file:
        file.write(json.dumps(timeline_events(launches, title)).encode())
