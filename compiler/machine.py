"""Description of this machine in records of measured kernels."""

import platform
from importlib.metadata import version
from pathlib import Path

from tilestitch import __version__
from tilestitch.codegen.cpu.target import CpuTarget
from tilestitch.cost_model.records import Machine


def machine_of(target: CpuTarget, threads: int) -> Machine:
    """Return this machine, running kernels of a target with so many threads."""
    several = "s" if threads > 1 else ""
    system = f"{platform.system()} {platform.release()}"
    versions = f"tilestitch {__version__}, TVM {version('apache-tvm')}"
    return Machine(f"{_processor()} ({target.isa.name}, {threads} thread{several})", system, versions)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
