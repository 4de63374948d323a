"""The CPU as a target of the assembler: LLVM objects, linked into one library with the executor."""

import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tvm import tirx

from tilestitch.codegen.backend import Compiled, OwnedKernel, PlacedLaunch, Progress
from tilestitch.codegen.cpu.toolchain.build import KernelSource, compile_kernels
from tilestitch.codegen.cpu.toolchain.ctext import CText
from tilestitch.codegen.cpu.toolchain.elf import object_bytes
from tilestitch.codegen.cpu.toolchain.link import link
from tilestitch.codegen.kernel_cache import NO_CACHE, KernelCache
from tilestitch.codegen.own import buffers_of, function, pointer_kind
from tilestitch.codegen.program_types import runtime_size
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.ir.sizes import Size
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.launches.launch import Edge
from tilestitch.passes.plan.own_kernels import CKernel, CudaKernel, KernelTarget
from tilestitch.passes.plan.target import TargetInfo as PassTarget
from tilestitch.runtime import program as rt
from tilestitch.runtime.manifest import TargetInfo
from tilestitch.runtime.members import CPU_LIBRARY

from .abi import ARGUMENT_POINTER, KernelLaunch, PackedArg
from .group import lower_group
from .target import CpuTarget, features_of_tiles

_IR = Path(__file__).with_name("executor.ll")

EXECUTOR_EXPORTS = ("ts_init", "ts_resize", "ts_run", "ts_stop", "ts_team_bytes", "ts_worker")
"""The symbols that the runtime calls."""

_X86_PAUSE = 'asm sideeffect "pause", "~{dirflag},~{fpsr},~{flags}"()'
_AARCH64_PAUSE = 'asm sideeffect "yield", ""()'


@cache
def executor_object(triple: str) -> bytes:
    """Return a relocatable ELF object of the executor for an LLVM target triple of x86-64 or aarch64 Linux.

    Raises `ValueError` for another architecture.
    """
    architecture = triple.partition("-")[0]
    if architecture not in ("x86_64", "aarch64"):
        raise ValueError(f"no executor for the target {triple!r}: compile for x86_64 or aarch64 Linux")
    import tvm

    ir = _IR.read_text()
    if architecture == "aarch64":
        ir = ir.replace(_X86_PAUSE, _AARCH64_PAUSE)
    with tempfile.TemporaryDirectory(prefix="tilestitch-") as folder:
        source = Path(folder, "executor.ll")
        source.write_text(f'target triple = "{triple}"\n{ir}')
        return object_bytes(tvm.runtime.load_module(str(source)))


@dataclass(frozen=True)
class CpuBackend:
    """`threads`: for which tasks are sized. `cache`: of compiled kernels."""

    target: CpuTarget
    threads: int
    cache: KernelCache = NO_CACHE

    @property
    def concurrent(self) -> bool:
        return False

    @property
    def scalars_as_arguments(self) -> bool:
        return True  # machine code reads constants from memory as well

    def planned_for(self, threads: int) -> PassTarget:
        cpu = self.target
        return PassTarget(
            "cpu", threads, isa=cpu.isa.name, dot=cpu.dot, half_dot=cpu.half_dot, tile_dots=cpu.tile_dots,
            shares_ports=cpu.shares_ports,
        )  # fmt: skip

    def info(self, instructions: Collection[str]) -> TargetInfo:
        features = (*self.target.features, *features_of_tiles(instructions))
        return TargetInfo("cpu", self.target.mtriple, self.target.mcpu, features)

    @property
    def target_of_schedules(self) -> KernelTarget:
        return KernelTarget("cpu", (self.target.machine,), self.target.features, self.threads)

    def own_launch(self, owned: OwnedKernel) -> KernelLaunch:
        return own_launch(owned)

    def lower(
        self, graph: Graph, group: Group, packed: Mapping[str, PackedArg] | None = None
    ) -> tuple[KernelLaunch, ...]:
        return lower_group(graph, group, packed)

    def limited(self, launch: KernelLaunch) -> tuple[Size, ...]:
        return ()  # positions are 64-bit unless ranges show that they fit 32

    def compile(
        self, launches: Sequence[KernelLaunch], digests: Sequence[str], *, keep_source: bool, progress: Progress
    ) -> Compiled:
        """Compile the kernels. Raises LinkError for a missing symbol, besides KernelError."""
        progress("compile kernels", 0, len(launches))
        compiled = compile_kernels(
            launches, self.target, digests, jobs=len(os.sched_getaffinity(0)), keep_source=keep_source, cache=self.cache
        )
        if not launches:
            return Compiled((), {})
        progress("link", 0, 1)
        objects = [*compiled.objects, executor_object(self.target.mtriple)]
        library = link(objects, [*sorted(set(compiled.symbols)), *EXECUTOR_EXPORTS], compiled.aliases)
        return Compiled(compiled.symbols, {CPU_LIBRARY: library}, _source_members(compiled.sources))

    def describe(self, symbol: str, launch: KernelLaunch, compiled: Compiled) -> dict[str, Any]:
        tasks, scratch = runtime_size(launch.tasks), runtime_size(launch.scratch_bytes)
        return {"symbol": symbol, "tasks": tasks, "scratch_bytes": scratch}

    def placed(self, symbol: str, launch: KernelLaunch, args: tuple[rt.Arg, ...]) -> rt.Launch:
        return rt.Launch(
            symbol=symbol,
            tasks=runtime_size(launch.tasks),
            args=args,
            origins=launch.origins,
            scratch_bytes=runtime_size(launch.scratch_bytes),
            faults=launch.faults,
            packed=launch.packed,
        )

    def step(self, launches: Sequence[PlacedLaunch], edges: Sequence[Edge]) -> rt.NativeStep:
        """Return a step whose launches run in sequence, whatever the edges."""
        return rt.NativeStep(tuple(map(self._with_cases, launches)))

    def _with_cases(self, one: PlacedLaunch) -> rt.Launch:
        launch, cases = self.placed(one.symbol, one.launch, one.args), one.cases
        if cases is None:
            return launch
        others = tuple(self.placed(symbol, other, one.args) for symbol, other in cases.launches)
        return replace(launch, cases=rt.Cases(cases.size, cases.starts, others))


def _source_members(sources: Sequence[KernelSource]) -> dict[str, bytes]:
    return {f"kernels/{s.symbol}.{suffix}": text.encode() for s in sources for suffix, text in s.texts.items()}


def own_launch(owned: OwnedKernel) -> KernelLaunch:
    """Return the launch of a CKernel or a TirKernel. Raises KernelError, naming the plug-in, for TIR that does not
    fit.
    """
    kernel = owned.kernel
    assert not isinstance(kernel, CudaKernel)
    func: Any
    if isinstance(kernel, CKernel):
        func, scratch_bytes = CText(kernel.text, len(kernel.args), kernel.scratch_bytes > 0), kernel.scratch_bytes
    else:
        func, scratch_bytes = _tir(owned), 0
    return KernelLaunch(
        owned.symbol_kind, func, kernel.tasks, owned.args, owned.origins, scratch_bytes, owner=owned.owner
    )


def _tir(owned: OwnedKernel) -> Any:
    """Return the plug-in's function with the parameters of `abi`, with its body and its `task`."""
    args, scratch = (tirx.Var(name, "handle") for name in ("args", "scratch"))
    head: list[Any] = []
    for number, buffer in enumerate(buffers_of(owned, scalars=1)):
        kind = pointer_kind(buffer)
        pointer = tirx.Var(f"p{number}", kind)
        head.append(tirx.Bind(pointer, tirx.tvm_struct_get(args, number, ARGUMENT_POINTER, kind)))
        head.append(tirx.DeclBuffer(buffer, data=pointer))
    func = owned.kernel.func  # type: ignore[union-attr]
    return function([args, func.params[-1], scratch], head, func.body, {"calling_conv": 2})
