"""From kernels as TIR to object code: equal kernels once, with names that depend only on the kernel's semantics."""

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import tvm
import tvm.s_tir.pipeline
from tvm.target import codegen as target_codegen
from tvm.tirx import transform as lowering

from tilestitch.codegen.cpu.abi import KernelLaunch
from tilestitch.codegen.cpu.contraction.registers import with_emptying
from tilestitch.codegen.cpu.target import CpuTarget
from tilestitch.codegen.cpu.toolchain.angles import angles
from tilestitch.codegen.cpu.toolchain.ctext import CText, compile_c
from tilestitch.codegen.cpu.toolchain.elf import object_bytes
from tilestitch.codegen.cpu.toolchain.intrinsics import gathers, nearest
from tilestitch.codegen.cpu.toolchain.rounding import rounding
from tilestitch.codegen.cpu.toolchain.tables import Unit, tables
from tilestitch.codegen.cpu.toolchain.wrapping import wrapping
from tilestitch.codegen.errors import KernelError
from tilestitch.codegen.kernel_cache import NO_CACHE, KernelCache, code_generator, key_of
from tilestitch.codegen.variables import hide_unsigned, hide_variables, ramps, show, show_variables, variables_to_memory


@dataclass(frozen=True)
class KernelSource:
    """The source of a kernel, by file suffix: TVM script (`tir.py`) and LLVM text (`ll`), or C text (`c`)."""

    symbol: str
    texts: Mapping[str, str]

    def renamed(self, symbol: str) -> "KernelSource":
        return KernelSource(symbol, {suffix: text.replace(self.symbol, symbol) for suffix, text in self.texts.items()})


@dataclass(frozen=True)
class CompiledKernels:
    """Relocatable objects, the symbol of each launch in order, and `sources` if requested. `aliases`: other symbols of
    kernels that the objects define under one of these.
    """

    objects: tuple[bytes, ...]
    symbols: tuple[str, ...]
    sources: tuple[KernelSource, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)


def compile_kernels(
    launches: Sequence[KernelLaunch],
    target: CpuTarget,
    digests: Sequence[str] = (),
    *,
    jobs: int = 1,
    keep_source: bool = False,
    cache: KernelCache = NO_CACHE,
) -> CompiledKernels:
    """Compile the kernels of all launches, `jobs` at a time; cached ones are not compiled again, unless their source is
    kept. `digests` of the launches' signatures end the symbols; kernels that go into no artifact need none. Equal
    kernels with other signatures are aliases.

    Raises KernelError, naming the kernel and its ONNX nodes, if TVM or LLVM refuses one.
    """
    ends = digests or [""] * len(launches)
    texts = {key: _text(func) for key, func in {id(launch.func): launch.func for launch in launches}.items()}
    hashes = {key: _hash(text) for key, text in texts.items()}
    symbols = tuple(f"{launch.kind}_{hashes[id(launch.func)]}{end}" for launch, end in zip(launches, ends, strict=True))
    first: dict[tuple[str, str], str] = {}
    unique: dict[str, _Kernel] = {}
    aliases: dict[str, str] = {}
    for symbol, launch in zip(symbols, launches):
        text = texts[id(launch.func)]
        name = first.setdefault((launch.kind, text), symbol)
        if name == symbol:
            unique.setdefault(symbol, _Kernel(symbol, launch, text, target))
        else:
            aliases[symbol] = name
    # Starting the longest compilations first balances the threads.
    kernels = sorted(unique.values(), key=lambda kernel: -len(kernel.text))
    build = partial(_compile, keep_source=True) if keep_source else partial(_compile_once, cache=cache)
    if jobs > 1 and len(kernels) > 1:
        with ThreadPoolExecutor(jobs) as pool:
            built = list(pool.map(build, kernels))
    else:
        built = [build(kernel) for kernel in kernels]
    sources = {kernel.symbol: KernelSource(kernel.symbol, texts) for kernel, (_, texts) in zip(kernels, built) if texts}
    sources |= {alias: sources[name].renamed(alias) for alias, name in aliases.items() if name in sources}
    return CompiledKernels(tuple(data for data, _ in built), symbols, tuple(sources.values()), aliases)


@dataclass(frozen=True)
class _Kernel:
    """A kernel to compile to an object of its own, independent of the rest of the model."""

    symbol: str
    launch: KernelLaunch
    text: str
    wanted: CpuTarget

    @property
    def target(self) -> CpuTarget:
        return self.wanted if calls_dots(self.text) else self.wanted.without_dots


def content_hash(func: Any) -> str:
    """Return hexadecimal digits that are equal for kernels that do the same in the same way, on any machine and in any
    process.
    """
    return _hash(_text(func))


def _text(func: Any) -> str:
    """Return C text, or TIR as JSON."""
    return func.text if isinstance(func, CText) else str(tvm.ir.save_json(func))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def calls_dots(text: str) -> bool:
    """Return whether a kernel, as JSON, calls `vpdpbusd`. May be true for others that contain its number."""
    return "call_llvm_pure_intrin" in text and any(f'"data":{number}}}' in text for number in _dot_numbers())


@cache
def _dot_numbers() -> tuple[int, ...]:
    """Return LLVM's numbers of the intrinsics."""
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
_NEAREST = {
    fenced: lowering.prim_func_pass(
        lambda func, module, context, fenced=fenced: nearest(func, fenced), opt_level=0, name="tilestitch.Nearest"
    )
    for fenced in (False, True)
}
_HIDE_VARIABLES = lowering.prim_func_pass(
    lambda func, module, context: hide_variables(func), opt_level=0, name="tilestitch.HideVariables"
)
_HIDE_UNSIGNED = lowering.prim_func_pass(
    lambda func, module, context: hide_unsigned(func), opt_level=0, name="tilestitch.HideUnsigned"
)
_SHOW_VARIABLES = lowering.prim_func_pass(
    lambda func, module, context: show_variables(func), opt_level=0, name="tilestitch.ShowVariables"
)
_RAMPS = lowering.prim_func_pass(lambda func, module, context: ramps(func), opt_level=0, name="tilestitch.Ramps")
_ANGLES = lowering.prim_func_pass(lambda func, module, context: angles(func), opt_level=0, name="tilestitch.Angles")
_GATHERS = lowering.prim_func_pass(lambda func, module, context: gathers(func), opt_level=0, name="tilestitch.Gathers")
_SHOW = lowering.prim_func_pass(lambda func, module, context: show(func), opt_level=0, name="tilestitch.Show")


def lower(func: Any, symbol: str, target: CpuTarget) -> Any:
    """Return the lowered IRModule for LLVM.

    TVM's simplifier is left out: it inlines variables, so that shared subexpressions multiply, and it folds x != x to
    false. Flattening simplifies every index, which takes seconds where sizes are open, and so comes before loops are
    unrolled.
    """
    tvm_target = target.tvm_target
    module = tvm.IRModule({symbol: with_emptying(func, target.isa).with_attr("global_symbol", symbol)})
    passes = [
        lowering.BindTarget(tvm_target.with_host(tvm_target)),
        lowering.VectorizeLoop(True),
        _TABLES[Unit.of(target)],
        _ROUNDING[target.has("avx512bf16")],
        _NEAREST[target.aligns_operands],
        _HIDE_VARIABLES,
        lowering.FlattenBuffer(),
        _SHOW_VARIABLES,
        _VARIABLES_TO_MEMORY,
        lowering.UnrollLoop(),
        _RAMPS,
        _GATHERS,
        _ANGLES,
        _HIDE_UNSIGNED,
        lowering.LowerIntrin(),
        _WRAPPING,
        _SHOW,
    ]
    return tvm.ir.transform.Sequential(passes)(module)


def _compile_once(kernel: _Kernel, cache: KernelCache) -> tuple[bytes, dict[str, str]]:
    """Compile a kernel, or take it from the cache. C text is compiled each time, as it depends on this machine's
    compiler.
    """
    if cache is NO_CACHE or isinstance(kernel.launch.func, CText):
        return _compile(kernel)
    key = key_of("cpu", code_generator(), str(kernel.target.tvm_target), kernel.symbol, kernel.text)
    known = cache.read(key)
    if known is not None:
        return known, {}
    built = _compile(kernel)
    cache.write(key, built[0])
    return built


def _compile(kernel: _Kernel, keep_source: bool = False) -> tuple[bytes, dict[str, str]]:
    symbol, launch, target = kernel.symbol, kernel.launch, kernel.target
    if isinstance(launch.func, CText):
        text = launch.func.named(symbol)
        return compile_c(symbol, text, launch, target), {"c": text} if keep_source else {}
    try:
        module = _codegen(lower(launch.func, symbol, target), target)
    except _TVM_ERRORS as error:
        raise _translated(error, symbol, launch) from error
    if not keep_source:
        return object_bytes(module), {}
    return object_bytes(module), {
        "tir.py": launch.func.script(), "ll": _without_addresses(str(module.inspect_source("ll")))
    }  # fmt: skip


def _without_addresses(text: str) -> str:
    """Return LLVM text with buffers in metadata numbered: TVM distinguishes them by their addresses in this process."""
    numbers: dict[str, int] = {}
    return re.sub(r'(?<=!")0x[0-9a-f]+(?=[".])', lambda found: str(numbers.setdefault(found[0], len(numbers))), text)


_TVM_ERRORS = (tvm.error.InternalError, ValueError, TypeError, RuntimeError, IndexError, AttributeError, KeyError)


def _codegen(module: Any, target: CpuTarget) -> Any:
    # `tvm.tirx.build` names both a function and the module it is defined in.
    return sys.modules["tvm.tirx.build"].codegen_build(module, target.tvm_target)


def _translated(error: Exception, symbol: str, launch: KernelLaunch) -> KernelError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("File ")]
    reason = lines[-1] if lines else type(error).__name__
    return KernelError.refused(symbol, reason, launch.owner, launch.origins)
