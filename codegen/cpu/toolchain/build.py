"""From kernels as TIR to object code: equal kernels once, names that depend on nothing but what the kernel does."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import tvm
import tvm.s_tir.pipeline
from tvm.target import codegen as target_codegen
from tvm.tirx import transform as lowering

from tilestitch.codegen.cpu.abi import KernelLaunch
from tilestitch.codegen.cpu.target import CpuTarget
from tilestitch.codegen.cpu.toolchain.ctext import CText, compile_c
from tilestitch.codegen.cpu.toolchain.nearest import nearest
from tilestitch.codegen.cpu.toolchain.objects import object_bytes
from tilestitch.codegen.cpu.toolchain.rounding import rounding
from tilestitch.codegen.cpu.toolchain.tables import Unit, tables
from tilestitch.codegen.cpu.toolchain.wrapping import wrapping
from tilestitch.codegen.errors import KernelError
from tilestitch.codegen.variables import ramps, show, variables_to_memory

KERNELS_PER_MODULE = 4
"""Kernels of one LLVM module: so many that its fixed cost does not count, so few that modules can be shared out."""


@dataclass(frozen=True)
class KernelSource:
    """What was compiled, by the suffix of a file: TVM script (`tir.py`) and LLVM text (`ll`), or C text (`c`)."""

    symbol: str
    texts: Mapping[str, str]


@dataclass(frozen=True)
class CompiledKernels:
    """Relocatable objects, the symbol of each launch in the order of the launches, and `sources` if asked for."""

    objects: tuple[bytes, ...]
    symbols: tuple[str, ...]
    sources: tuple[KernelSource, ...] = ()


def compile_kernels(
    launches: Sequence[KernelLaunch],
    target: CpuTarget,
    digests: Sequence[str] = (),
    *,
    jobs: int = 1,
    keep_source: bool = False,
) -> CompiledKernels:
    """Compile the kernels of all launches, `jobs` LLVM modules at a time. `digests` of the launches' signatures end the
    symbols; kernels that go into no artifact need none.

    Raises KernelError, naming the kernel and its ONNX nodes, if TVM or LLVM refuses one.
    """
    ends = digests or [""] * len(launches)
    texts = {id(launch.func): _text(launch.func) for launch in launches}
    hashes = {key: _hash(text) for key, text in texts.items()}
    symbols = tuple(f"{launch.kind}_{hashes[id(launch.func)]}{end}" for launch, end in zip(launches, ends, strict=True))
    unique: dict[str, KernelLaunch] = {}
    for symbol, launch in zip(symbols, launches, strict=True):
        unique.setdefault(symbol, launch)
    dots, others = dict[str, KernelLaunch](), dict[str, KernelLaunch]()
    for symbol, launch in unique.items():
        (dots if calls_dots(texts[id(launch.func)]) else others)[symbol] = launch
    batches = [(batch, target) for batch in _batches(list(dots.items()))]
    batches += [(batch, target.without_dots) for batch in _batches(list(others.items()))]
    # Threads are done at the same time if what takes long is begun first.
    batches.sort(key=lambda batch: -sum(len(texts[id(launch.func)]) for _, launch in batch[0]))
    build = partial(_compile, keep_source=keep_source)
    if jobs > 1 and len(batches) > 1:
        with ThreadPoolExecutor(jobs) as pool:
            built = list(pool.map(lambda batch: build(*batch), batches))
    else:
        built = [build(*batch) for batch in batches]
    sources = tuple(source for _, batch_sources in built for source in batch_sources)
    return CompiledKernels(tuple(data for data, _ in built), symbols, sources)


def content_hash(func: Any) -> str:
    """Hex digits that are equal for kernels that do the same in the same way, on any machine and in any process."""
    return _hash(_text(func))


def _text(func: Any) -> str:
    """C text, or TIR as JSON."""
    return func.text if isinstance(func, CText) else str(tvm.ir.save_json(func))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def calls_dots(text: str) -> bool:
    """Whether a kernel, as JSON, calls `vpdpbusd`. Of others this may be said that happen to have its number."""
    return "call_llvm_pure_intrin" in text and any(f'"data":{number}}}' in text for number in _dot_numbers())


@cache
def _dot_numbers() -> tuple[int, ...]:
    """LLVM's numbers of the intrinsics."""
    names = (f"llvm.x86.avx512.vpdpbusd.{bits}" for bits in (128, 256, 512))
    return tuple(int(target_codegen.llvm_lookup_intrinsic_id(name)) for name in names)


_VARIABLES_TO_MEMORY = lowering.prim_func_pass(
    lambda func, module, context: variables_to_memory(func), opt_level=0, name="tilestitch.VariablesToMemory"
)
_WRAPPING = lowering.prim_func_pass(
    lambda func, module, context: wrapping(func), opt_level=0, name="tilestitch.Wrapping"
)
_ROUNDING = {
    beside_tiles: lowering.prim_func_pass(
        lambda func, module, context, beside_tiles=beside_tiles: rounding(func, beside_tiles),
        opt_level=0, name="tilestitch.Rounding",
    )
    for beside_tiles in (False, True)
}  # fmt: skip
_TABLES = {
    unit: lowering.prim_func_pass(
        lambda func, module, context, unit=unit: tables(func, unit), opt_level=0, name="tilestitch.Tables"
    )
    for unit in Unit
}
_NEAREST = lowering.prim_func_pass(lambda func, module, context: nearest(func), opt_level=0, name="tilestitch.Nearest")
_RAMPS = lowering.prim_func_pass(lambda func, module, context: ramps(func), opt_level=0, name="tilestitch.Ramps")
_SHOW = lowering.prim_func_pass(lambda func, module, context: show(func), opt_level=0, name="tilestitch.Show")


def lower(func: Any, symbol: str, target: CpuTarget) -> Any:
    """The IRModule that LLVM is given.

    TVM's simplifier is left out: it inlines variables, so that shared subexpressions multiply, and it takes x != x for
    false. Flattening simplifies every index, which takes seconds where sizes are open, and so comes before loops are
    unrolled.
    """
    tvm_target = target.tvm_target
    module = tvm.IRModule({symbol: func.with_attr("global_symbol", symbol)})
    passes = [
        lowering.BindTarget(tvm_target.with_host(tvm_target)),
        lowering.VectorizeLoop(True),
        _TABLES[Unit.of(target)],
        _ROUNDING[bool(target.half_dot)],
        _NEAREST,
        _VARIABLES_TO_MEMORY,
        lowering.FlattenBuffer(),
        lowering.UnrollLoop(),
        _RAMPS,
        lowering.LowerIntrin(),
        _WRAPPING,
        _SHOW,
    ]
    return tvm.ir.transform.Sequential(passes)(module)


def _batches(kernels: list[tuple[str, KernelLaunch]]) -> Iterator[list[tuple[str, KernelLaunch]]]:
    """Kernels in C text are compiled one by one."""
    yield from ([kernel] for kernel in kernels if isinstance(kernel[1].func, CText))
    tir = [kernel for kernel in kernels if not isinstance(kernel[1].func, CText)]
    for start in range(0, len(tir), KERNELS_PER_MODULE):
        yield tir[start : start + KERNELS_PER_MODULE]


def _compile(
    kernels: list[tuple[str, KernelLaunch]], target: CpuTarget, keep_source: bool
) -> tuple[bytes, list[KernelSource]]:
    symbol, launch = kernels[0]
    if isinstance(launch.func, CText):
        text = launch.func.named(symbol)
        data = compile_c(symbol, text, launch, target)
        return data, [KernelSource(symbol, {"c": text})] if keep_source else []
    merged = tvm.IRModule({})
    for symbol, launch in kernels:
        try:
            merged.update(lower(launch.func, symbol, target))
        except _TVM_ERRORS as error:
            raise _translated(error, symbol, launch) from error
    try:
        module = _codegen(merged, target)
    except _TVM_ERRORS:
        # One of them is to blame: find out which, alone.
        for symbol, launch in kernels:
            try:
                _codegen(lower(launch.func, symbol, target), target)
            except _TVM_ERRORS as error:
                raise _translated(error, symbol, launch) from error
        raise
    sources = []
    if keep_source:
        text = str(module.inspect_source("ll"))
        sources = [KernelSource(symbol, {"tir.py": launch.func.script(), "ll": text}) for symbol, launch in kernels]
    return object_bytes(module), sources


_TVM_ERRORS = (tvm.error.InternalError, ValueError, TypeError, RuntimeError, IndexError, AttributeError, KeyError)


def _codegen(module: Any, target: CpuTarget) -> Any:
    # `tvm.tirx.build` names both a function and the module it is defined in.
    return sys.modules["tvm.tirx.build"].codegen_build(module, target.tvm_target)


def _translated(error: Exception, symbol: str, launch: KernelLaunch) -> KernelError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("File ")]
    reason = lines[-1] if lines else type(error).__name__
    return KernelError.refused(symbol, reason, launch.owner, launch.origins)
