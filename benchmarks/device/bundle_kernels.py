"""Machine code of CUDA text that belongs to no artifact: the kernels of part A and of the emulated device's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

KERNELS = Path(__file__).parent / "kernels"
SOURCES = ("ceilings", "launch", "sync", "order")
ARCHITECTURE = "sm_90a"


def compile_cubin(source: str, architecture: str = ARCHITECTURE) -> bytes:
    """Machine code by NVRTC. Raises `RuntimeError` with the compiler's log."""
    from cuda.bindings import nvrtc

    def checked(result: tuple[Any, ...]) -> Any:
        status, *values = result
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"NVRTC: {status.name}")
        return values[0] if values else None

    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, None, None))
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17", b"-default-device"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(f"NVRTC: {status.name}\n{log.decode(errors='replace')}")
    image = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcGetCUBIN(program, image))
    return image


def bundle_kernels(folder: Path) -> None:
    """`kernels/SOURCE.cubin` of every file."""
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    for source in SOURCES:
        (folder / "kernels" / f"{source}.cubin").write_bytes(compile_cubin((KERNELS / f"{source}.cu").read_text()))
