"""Translation of the CUDA text of kernels to one C++ translation unit for the host."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .errors import EmulatorUnsupportedError
from .ptx import translate_asm

_ATTRIBUTES = r"(?:(?:alignas|__align__)\s*\((?P<align>[^()]*)\)\s*)?"
_STATIC = re.compile(
    r"(?:static\s+)?__shared__\s+"
    + _ATTRIBUTES
    + r"(?P<type>[\w:<>, ]+?)\s+(?P<name>\w+)\s*(?P<sizes>(?:\[[^\]]+\])*)\s*;"
)
_DYNAMIC = re.compile(r"extern\s+__shared__\s+" + _ATTRIBUTES + r"(?P<type>[\w:<>, ]+?)\s+(?P<name>\w+)\s*\[\s*\]\s*;")
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\([^)]*\)\s*)?(?:void\s+)?(\w+)\s*\('
)
_MISSING_HEADERS = {"mma.h": "nvcuda::wmma", "nvshmem.h": "NVSHMEM"}
_OWN_HEADERS = re.compile(
    r"#\s*include\s*<(?:cuda\.h|cuda_(?:runtime|fp8|fp16|bf16)\.h|cooperative_groups\.h"
    r"|cuda/(?:barrier|pipeline|std/cstdint|std/type_traits))>"
)
"""CUDA's headers whose contents `emulator.h` has."""

_HEAD = """\
#include "emulator.h"
extern "C" {
extern char __ehdr_start __attribute__((visibility("hidden")));
extern char _end __attribute__((visibility("hidden")));
__attribute__((visibility("default"))) const char* emu_module_begin() { return &__ehdr_start; }
__attribute__((visibility("default"))) const char* emu_module_end() { return &_end; }
}
"""

_ENTRY = """\
extern "C" {{
__attribute__((visibility("default"))) EMU_UNCHECKED void emu_kernel_{kernel}(void** arguments) {{
  emu_call(emu_source_{number}::{kernel}, arguments);
}}
__attribute__((visibility("default"))) const char* emu_signature_{kernel}() {{
  return emu_signature(emu_source_{number}::{kernel});
}}
}}
"""


def translate(text: str) -> str:
    """Translate CUDA text to C++ that compiles against `emulator.h`, line by line.

    Raises EmulatorUnsupportedError for what the emulator does not support.
    """
    for header, what in _MISSING_HEADERS.items():
        if f"#include <{header}>" in text:
            raise EmulatorUnsupportedError(f"the emulator does not stand in for {what}")
    if re.search(r"[(,]\s*(?:const\s+)?CUtensorMap\s+\w+\s*[,)]", text):
        raise EmulatorUnsupportedError("a parameter of type CUtensorMap must be `const __grid_constant__ CUtensorMap`")
    text = translate_asm(_OWN_HEADERS.sub("", text))
    text = _DYNAMIC.sub(_dynamic, text)
    numbers = iter(range(text.count("__shared__")))

    def declare(match: re.Match[str]) -> str:
        shape, align = match["type"] + match["sizes"], match["align"] or "1"
        return f'auto& {match["name"]} = emu_shared<{shape}>({next(numbers)}, {align}, __LINE__, "{match["name"]}");'

    text = _STATIC.sub(declare, text)
    if "__shared__" in text:
        line = next(line.strip() for line in text.splitlines() if "__shared__" in line)
        raise EmulatorUnsupportedError(f"the emulator cannot read the shared variable {line!r}")
    return text


def _dynamic(match: re.Match[str]) -> str:
    kind, align = match["type"], match["align"] or "1"
    return f"{kind}* {match['name']} = static_cast<{kind}*>(emu_dynamic_shared({align}, alignof({kind}), __LINE__));"


def translation_unit(sources: Mapping[str, str]) -> str:
    """Return all kernels as one translation unit. Each source is in a namespace of its own, so that helper functions
    may repeat.
    """
    parts = [_HEAD]
    for number, (name, text) in enumerate(sources.items()):
        kernels = list(dict.fromkeys(_KERNEL.findall(text)))
        if not kernels:
            raise EmulatorUnsupportedError(f'the text of {name} has no `extern "C" __global__` function')
        parts.append(f"namespace emu_source_{number} {{ using emu_functions::max; using emu_functions::min;\n")
        parts.append(f'#line 1 "{name}.cu"\n{translate(text)}\n}}\n#line 1 "{name}.entry"\n')
        for kernel in kernels:
            parts.append(_ENTRY.format(number=number, kernel=kernel))
        parts.append("#undef uint\n#undef uchar\n#undef ushort\n")
    return "".join(parts)
