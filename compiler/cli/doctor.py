"""Says what this machine has and what that allows. Exit code 4 when artifacts cannot be run or compiled here."""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from tilestitch import __version__
from tilestitch.compiler.cli import errors
from tilestitch.compiler.cli.output import give, say

SUMMARY = "say what this machine has and what is missing"

# Distribution names by what they are needed for.
PACKAGES = {
    "run": ("numpy",),
    "compile": ("apache-tvm", "apache-tvm-ffi", "onnx", "ml_dtypes"),
    "cuda": ("cuda-core", "cuda-bindings"),
    "train": ("xgboost-cpu",),
    "compare": ("onnxruntime", "torch"),
}
EXTRAS = {"compile": "compiler", "cuda": "cuda", "train": "train", "compare": "bench"}

# With newer ones every tensorize crashes the process.
KNOWN_GOOD = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}

# Found or not, they are never needed: object code is linked by LLVM, and loaded by the system's loader.
TOOLS = ("cc", "gcc", "clang", "ld", "ld.lld", "nvcc")

CPU_FLAGS = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "asimd", "asimdhp", "asimddp", "i8mm", "bf16",
    "sve", "sve2",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    facts = examine()
    if options.json:
        give(facts)
    else:
        say(describe(facts))
    return errors.ENVIRONMENT if facts["problems"] else errors.OK


def examine() -> dict[str, Any]:
    """All facts as plain data; `problems` is empty when models can be compiled and run for the CPU."""
    packages = {use: {name: _version(name) for name in names} for use, names in PACKAGES.items()}
    return {
        "tilestitch": __version__,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "system": {"machine": platform.machine(), "os": platform.platform(), "libc": " ".join(platform.libc_ver())},
        "cpu": _cpu(),
        "memory": _memory(),
        "packages": packages,
        "tools": {tool: shutil.which(tool) for tool in TOOLS},
        "gpu": _gpu(),
        "problems": _problems(packages),
    }


def describe(facts: dict[str, Any]) -> str:
    """FACTS as text for people."""
    cpu, memory, gpu = facts["cpu"], facts["memory"], facts["gpu"]
    lines = [
        f"tilestitch {facts['tilestitch']}, Python {facts['python']['version']} ({facts['python']['executable']})",
        f"system   {facts['system']['os']}",
        f"cpu      {cpu['model']}, {cpu['usable_cores']} of {cpu['cores']} cores usable",
        f"         {' '.join(cpu['features']) or 'features unknown'}",
        f"memory   {_gib(memory['total_bytes'])} total, {_gib(memory['available_bytes'])} available",
    ]
    for use, versions in facts["packages"].items():
        text = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
        lines.append(f"{use:8} {text}")
    found = [tool for tool, path in facts["tools"].items() if path]
    lines.append(f"tools    {', '.join(found) or 'no compiler or linker'} (none is needed)")
    lines.append(f"gpu      {_gpu_text(gpu)}")
    lines += [f"problem: {problem}" for problem in facts["problems"]] or ["models can be compiled and run for the CPU"]
    return "\n".join(lines)


def _problems(packages: dict[str, dict[str, str | None]]) -> list[str]:
    problems = []
    for use in ("run", "compile"):
        missing = [name for name, version in packages[use].items() if version is None]
        if missing:
            package = f"tilestitch[{EXTRAS[use]}]" if use in EXTRAS else "tilestitch"
            problems.append(f"cannot {use} models: {', '.join(missing)} not installed; pip install '{package}'")
    for name, good in KNOWN_GOOD.items():
        version = packages["compile"].get(name)
        if version is not None and version != good:
            problems.append(f"{name} is {version}; tilestitch was made for {good}: pip install {name}=={good}")
    if sys.platform != "linux":
        problems.append(f"{sys.platform} is not supported; artifacts are made for Linux")
    return problems


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> dict[str, Any]:
    fields = _key_values(Path("/proc/cpuinfo"), stop_at_blank=True)
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "model": fields.get("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": usable,
        "features": [flag for flag in CPU_FLAGS if flag in flags],
    }


def _memory() -> dict[str, int | None]:
    fields = _key_values(Path("/proc/meminfo"))

    def bytes_of(name: str) -> int | None:
        value = fields.get(name, "").split()
        return int(value[0]) * 1024 if value else None

    return {"total_bytes": bytes_of("MemTotal"), "available_bytes": bytes_of("MemAvailable")}


def _key_values(path: Path, stop_at_blank: bool = False) -> dict[str, str]:
    """The `key: value` lines of a file below /proc; empty where there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs: dict[str, str] = {}
    for line in lines:
        if stop_at_blank and not line.strip():
            break
        key, _, value = line.partition(":")
        pairs[key.strip()] = value.strip()
    return pairs


def _gpu() -> dict[str, Any]:
    """The CUDA driver's own answer, asked through the C interface, so that no package is needed."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"driver": None, "devices": [], "problem": "no CUDA driver (libcuda.so.1)"}
    status = driver.cuInit(0)
    if status != 0:
        return {"driver": None, "devices": [], "problem": f"cuInit failed with code {status}"}
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetCount(ctypes.byref(count))
    devices = [_device(driver, index) for index in range(count.value)]
    return {"driver": f"{version.value // 1000}.{version.value % 1000 // 10}", "devices": devices, "problem": None}


def _device(driver: ctypes.CDLL, index: int) -> dict[str, Any]:
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    major, minor, multiprocessors = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetName(name, len(name), index)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), index)
    for number, result in ((75, major), (76, minor), (16, multiprocessors)):  # CUdevice_attribute
        driver.cuDeviceGetAttribute(ctypes.byref(result), number, index)
    return {
        "name": name.value.decode(),
        "architecture": f"sm_{major.value}{minor.value}",
        "multiprocessors": multiprocessors.value,
        "memory_bytes": memory.value,
    }


def _gpu_text(gpu: dict[str, Any]) -> str:
    if gpu["problem"]:
        return f"{gpu['problem']}; only needed to run on a GPU"
    names = [
        f"{device['name']} ({device['architecture']}, {_gib(device['memory_bytes'])})" for device in gpu["devices"]
    ]
    return f"{', '.join(names) or 'no device'}; driver for CUDA {gpu['driver']}"


def _gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**30:.1f} GiB"
