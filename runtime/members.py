"""The names of an artifact's members."""

from __future__ import annotations

import re

MANIFEST, PLAN, PROGRAM, WEIGHTS = "manifest.json", "plan.json", "program.json", "weights.safetensors"
DEFLATED_WEIGHTS = "deflated.safetensors"
"""Weights that are inflated at load rather than mapped. Stored as byte planes: the first byte of every element, then
the second of every element, …, since the bytes of scales and biases deflate better so.
"""
CPU_LIBRARY = "kernels/cpu.so"
"""Member with the kernels of a CPU artifact."""

_KERNELS = re.compile(r"kernels/(cpu\.so|sm_\d+[af]?(/\d+)?\.cubin|compute_\d+[af]?(/\d+)?\.ptx)")
_RESERVED = (MANIFEST, PLAN, PROGRAM, WEIGHTS, DEFLATED_WEIGHTS)


def cubin_member(architecture: str, number: int | None = None) -> str:
    """Return the member name of a cubin for `architecture` (`sm_90a`): all of its machine code, or part `number` of
    several.
    """
    return f"kernels/{architecture}{'' if number is None else f'/{number}'}.cubin"


def ptx_member(architecture: str, number: int | None = None) -> str:
    """Return the member name of the PTX for `architecture` (`compute_90`): all of it, or part `number` of several."""
    return f"kernels/{architecture}{'' if number is None else f'/{number}'}.ptx"


def cuda_source_member(symbol: str) -> str:
    """Return the member name of one kernel's CUDA text, which `--keep-source` keeps and the emulated device runs."""
    return f"kernels/cuda/{symbol}.cu"


def has_machine_code(name: str) -> bool:
    """Return whether a member of this name has machine code or PTX of kernels."""
    return _KERNELS.fullmatch(name) is not None


def is_reserved(name: str) -> bool:
    """Return whether the format gives a member of this name a meaning, so that it cannot have other data."""
    return name in _RESERVED or has_machine_code(name)
