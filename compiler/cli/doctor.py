"""Reports what this machine has and what that allows. Exit code 4 when artifacts cannot be run or compiled here."""

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

# Distribution names by purpose.
PACKAGES = {
    "run": ("numpy",),
    "compile": ("apache-tvm", "apache-tvm-ffi", "onnx", "ml_dtypes"),
    "compile for CUDA": ("cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-cccl"),
    "run on CUDA": ("cuda-core", "cuda-bindings"),
    "check": ("onnxruntime",),
    "bench": ("torch",),
}
EXTRAS = {
    "compile": "compiler",
    "compile for CUDA": "cuda-compiler",
    "run on CUDA": "cuda",
    "check": "check",
    "bench": "bench",
}

# With newer versions every tensorize crashes the process.
KNOWN_GOOD = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}

# None is needed to compile and run a model.
TOOLS = {
    "C++": (("g++", "clang++"), "the emulated device", "apt-get install g++"),
    "C": (("cc", "gcc", "clang"), "plug-ins with kernels in C", "apt-get install gcc"),
    "nvcc": (("nvcc",), "compile --nvcc, in place of NVRTC", "not needed"),
}
"""Programs by purpose: their names, what needs them, and how to install them on Debian and Ubuntu."""

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
    """Return all facts as plain data; `problems` is empty when models can be compiled and run for the CPU."""
    packages = {use: {name: _version(name) for name in names} for use, names in PACKAGES.items()}
    return {
        "tilestitch": __version__,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "system": {"machine": platform.machine(), "os": platform.platform(), "libc": " ".join(platform.libc_ver())},
        "cpu": _cpu(),
        "memory": _memory(),
        "packages": packages,
        "tools": {tool: _first(names) for tool, (names, _, _) in TOOLS.items()},
        "nvrtc": _nvrtc(),
        "gpu": _gpu(),
        "plugins": _plugins(),
        "problems": _problems(packages),
    }


def describe(facts: dict[str, Any]) -> str:
    """Return FACTS as text."""
    cpu, memory, gpu = facts["cpu"], facts["memory"], facts["gpu"]
    lines = [
        f"tilestitch {facts['tilestitch']}, Python {facts['python']['version']} ({facts['python']['executable']})",
        f"system   {facts['system']['os']}",
        f"cpu      {cpu['model']}, {cpu['usable_cores']} of {cpu['cores']} cores usable",
        f"         {' '.join(cpu['features']) or 'features unknown'}",
        f"memory   {_gib(memory['total_bytes'])} total, {_gib(memory['available_bytes'])} available",
    ]
    lines += ["packages, by what they are for:", *(_packages_text(*item) for item in facts["packages"].items())]
    lines.append(f"nvrtc    {_nvrtc_text(facts['nvrtc'])}")
    for tool, path in facts["tools"].items():
        _, use, remedy = TOOLS[tool]
        lines.append(f"{tool:8} {path or f'none ({remedy})'}, for {use}")
    lines.append(f"gpu      {_gpu_text(gpu)}")
    lines += ["plug-ins of installed packages:" if facts["plugins"] else "no plug-ins are installed"]
    lines += [f"  {p['name']} ({p['owner']}): {p['problem'] or p['remark'] or 'ok'}" for p in facts["plugins"]]
    lines += [f"problem: {problem}" for problem in facts["problems"]] or ["models can be compiled and run for the CPU"]
    return "\n".join(lines)


def _packages_text(use: str, versions: dict[str, str | None]) -> str:
    text = ", ".join(f"{name} {version or '(not installed)'}" for name, version in versions.items())
    hint = "" if all(versions.values()) or use not in EXTRAS else f": pip install 'tilestitch[{EXTRAS[use]}]'"
    return f"  {use}: {text}{hint}"


def _first(names: tuple[str, ...]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


def _nvrtc() -> dict[str, Any]:
    """Return the compiler of CUDA text and its architectures; `problem` if something is missing."""
    from tilestitch.codegen.cuda.toolchain import nvrtc

    try:
        major, minor = nvrtc.version()
        headers = str(nvrtc.include_folder())
        known = sorted(nvrtc.architectures())
    except nvrtc.NvrtcMissingError as error:
        return {"version": None, "headers": None, "architectures": [], "problem": str(error)}
    return {"version": f"{major}.{minor}", "headers": headers, "architectures": known, "problem": None}


def _nvrtc_text(nvrtc: dict[str, Any]) -> str:
    if nvrtc["problem"]:
        return f"{nvrtc['problem']}; only needed to compile for GPUs"
    first, *_, last = nvrtc["architectures"]
    return f"{nvrtc['version']}, sm_{first} to sm_{last}, headers in {nvrtc['headers']}"


def _plugins() -> list[dict[str, str]]:
    """Return each plug-in that a package installs: `problem` says why it cannot be used; `remark` has further notes."""
    from tilestitch.passes.errors import PluginError
    from tilestitch.passes.pipeline_text import required_fields
    from tilestitch.passes.plugins.load import collect, entry_points, owner_of

    found = []
    for entry in sorted(entry_points(), key=lambda e: (e.name, e.value)):
        try:
            installed = collect([entry])
        except PluginError as error:
            problem, remark = str(error), ""
        else:
            problem = installed.broken.get(entry.name, "")
            missing = [f for identity in installed.available.values() for f in required_fields(identity.cls)]
            remark = f"takes part where it is named, with {', '.join(missing)}" if missing else ""
        found.append({"name": entry.name, "owner": owner_of(entry), "problem": problem, "remark": remark})
    return found


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
    """Return the `key: value` lines of a file below /proc; empty if there is none."""
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
    """Return the answer of the CUDA driver, called through its C interface, so that no package is needed."""
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
