"""From a kernel as TIR to CUDA text, without a GPU and without TVM's long preamble."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import tvm
import tvm.s_tir.pipeline
import tvm_ffi
from tvm.tirx import transform as lowering

from tilestitch.codegen.cuda.abi import EXCHANGED, SYMBOL
from tilestitch.codegen.cuda.gemm.sm90 import instructions
from tilestitch.codegen.cuda.target import CudaTarget
from tilestitch.codegen.variables import hide, ramps, show
from tilestitch.passes.plan.gemm.kernels import AMPERE

PRELUDE = """\
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <cstdint>
#endif
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
"""
"""Text before every kernel. The includes for half floats precede it if a kernel needs them."""

_END_OF_PREAMBLE = "#define ushort unsigned short\n#endif\n"
_OUR_INCLUDES = {"cuda_fp16.h": re.compile(r"\bhalf|__half"), "cuda_bf16.h": re.compile(r"bfloat16")}
_FUNCTIONS = {
    "grid.cuh": re.compile(r"\bts_grid_\w+\("),
    "tickets.cuh": re.compile(r"\bts_ticket_\w+\("),
    "tied.cuh": re.compile(r"\bts_tied_\w+\("),
    "sm90.cuh": re.compile(r"\bts_sm90_\w+\("),
    "floats.cuh": re.compile(r"\bts_float_\w+\("),
    "device.cuh": re.compile(r"\bts_(?!grid_|ticket_|tied_|sm90_|float_)\w+\("),
}
_KEPT_INCLUDES = ("mma.h", "cuda/barrier", "cooperative_groups.h", "cuda/pipeline", "cuda_fp8.h", "cuda.h")

_HIDE, _RAMPS, _SHOW = (
    lowering.prim_func_pass(
        lambda func, module, context, pass_=pass_: pass_(func), opt_level=0, name=f"tilestitch.{name}"
    )
    for name, pass_ in (("Hide", hide), ("Ramps", ramps), ("Show", show))
)


def kernel_text(func: Any, target: CudaTarget) -> str:
    """Return the complete CUDA text of a kernel, whose function is called `SYMBOL`.

    TVM's simplifier is left out: it inlines variables, so that shared subexpressions multiply, and it folds x != x to
    false.
    """
    body, includes = (func, []) if isinstance(func, str) else _generated(func, target)
    ours = [name for name, used in _OUR_INCLUDES.items() if used.search(body)]
    lines = [f"#include <{name}>\n" for name in dict.fromkeys([*ours, *includes])]
    files = [name for name, used in _FUNCTIONS.items() if used.search(body)]
    if target.newest < AMPERE and "device.cuh" in files:
        lines.append("#define TS_TURING\n")
    return "".join(lines) + PRELUDE + "".join(map(device_functions, files)) + instructions(body) + body


@cache
def device_functions(file: str) -> str:
    """Return a file of functions `ts_...` that kernels may call."""
    return Path(__file__).with_name(file).read_text(encoding="utf-8")


def _generated(func: Any, target: CudaTarget) -> tuple[str, list[str]]:
    config = target.tvm_target
    module = tvm.IRModule({SYMBOL: func.with_attr("global_symbol", SYMBOL)})
    passes = [
        lowering.BindTarget(config.with_host(tvm.target.Target("llvm"))),
        lowering.VectorizeLoop(True),
        lowering.UnrollLoop(),
        _HIDE,
        lowering.FlattenBuffer(),
        _RAMPS,
        lowering.LowerIntrin(),
        _SHOW,
    ]
    lowered = tvm.ir.transform.Sequential(passes)(module)
    with _text_only():
        # `tvm.tirx.build` names both a function and the module it is defined in.
        text = str(sys.modules["tvm.tirx.build"].codegen_build(lowered, config).inspect_source())
    preamble, _, body = text.partition(_END_OF_PREAMBLE)
    includes = [name for name in _KEPT_INCLUDES[:-1] if f"#include <{name}>" in preamble]
    return _without_declaration(_exchanging(body, func)), includes


def _exchanging(body: str, func: Any) -> str:
    """Remove `__restrict__` from pointers to memory that thread blocks exchange, which other threads change, too."""
    for name in func.attrs.get(EXCHANGED, ()):
        body = re.sub(rf"__restrict__ (?={name}\b)", "", body)
    return body


_COMPILE, _MODULE = "tvm_callback_cuda_compile", "ffi.Module.create.cuda"
_compile_lock = threading.Lock()


@contextmanager
def _text_only() -> Iterator[None]:
    """Prevent TVM, within the context, from compiling each text with NVRTC for the GPU that it finds, and from making
    modules of its CUDA runtime: these use the GPU when they are dropped, and then no forked process could.
    """
    with _compile_lock:
        known = {name: tvm_ffi.get_global_func(name, allow_missing=True) for name in (_COMPILE, _MODULE)}
        tvm_ffi.register_global_func(_COMPILE, lambda *_: b"", override=True)
        if known[_MODULE] is not None:  # where there are a driver and a CUDA runtime
            tvm_ffi.remove_global_func(_MODULE)
        try:
            yield
        finally:
            for name, function in known.items():
                if function is not None:
                    tvm_ffi.register_global_func(name, function, override=True)


def _without_declaration(body: str) -> str:
    """Remove TVM's declaration of each kernel before its definition."""
    return re.sub(r'^extern "C" __global__ [^{};]*;\n', "", body, flags=re.MULTILINE)
