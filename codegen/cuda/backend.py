"""CUDA as a target of the assembler: cubins for each architecture, PTX for newer GPUs, and the widest accesses to
global memory that templates emit.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm, TensorLoad

from tilestitch.codegen.backend import Compiled, OwnedKernel, PlacedLaunch, Progress
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.cuda.group import lower_group
from tilestitch.codegen.cuda.target import CudaTarget
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions, compile_kernels
from tilestitch.codegen.cuda.toolchain.resources import KernelResources, kernel_resources
from tilestitch.codegen.launch import PackedArg
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

from .machine_code.lint import Widths

_COPIES = ("ts_load_16", "ts_cp_async_16", "ts_sm90_copy", "ts_sm90_share")
"""Functions of device code that load 16 bytes at a time, or make the copy engine do it."""


def asked(func: Any) -> Widths:
    """Return the widest accesses of a PrimFunc; nothing is known of a kernel that is given as text."""
    if isinstance(func, str):
        return Widths()
    loads, stores = [0], [0]

    def load(node: Any) -> None:
        loads.append(_bytes(node.source, node.indices))

    def store(node: Any) -> None:
        stores.append(_bytes(node.buffer, node.indices))

    def call(node: Any) -> None:
        function = node.args[0] if node.args else None
        if isinstance(function, StringImm) and function.value.startswith(_COPIES):
            loads.append(16)

    tvm_ffi.structural_walk(func.body, [(TensorLoad, load), (tirx.BufferStore, store), (Call, call)])
    return Widths(max(loads), max(stores))


def _bytes(buffer: Any, indices: Any) -> int:
    """Return the bytes of one access to global memory; 0 for other memory."""
    if buffer.scope() not in ("", "global"):
        return 0
    lanes = max((int(index.lanes) for index in indices if isinstance(index, tirx.Ramp)), default=1)
    dtype = tvm.DataType(str(buffer.dtype))
    return lanes * int(dtype.bits) * int(dtype.lanes) // 8


@dataclass(frozen=True)
class CudaBackend:
    """The CUDA backend. `options` configure the build of machine code."""

    target: CudaTarget
    options: BuildOptions

    @property
    def concurrent(self) -> bool:
        return True

    @property
    def scalars_as_arguments(self) -> bool:
        return False  # every thread would wait for them

    def planned_for(self, threads: int) -> PassTarget:
        return self.target.planned_for

    def info(self, instructions: Collection[str]) -> TargetInfo:
        return TargetInfo(
            "cuda",
            architectures=() if self.options.text_only else self.target.architectures,
            multiprocessors=self.target.multiprocessors if self.target.is_share else None,
        )

    @property
    def target_of_schedules(self) -> KernelTarget:
        device, least = self.target.device.name, self.target.multiprocessors
        return KernelTarget("cuda", self.target.architectures, device=device, multiprocessors=least)

    def own_launch(self, owned: OwnedKernel) -> CudaLaunch:
        return own_launch(owned)

    def lower(
        self, graph: Graph, group: Group, packed: Mapping[str, PackedArg] | None = None
    ) -> tuple[CudaLaunch, ...]:
        return lower_group(graph, group, self.target)

    def limited(self, launch: CudaLaunch) -> tuple[Size, ...]:
        return launch.limited

    def compile(
        self, launches: Sequence[CudaLaunch], digests: Sequence[str], *, keep_source: bool, progress: Progress
    ) -> Compiled:
        """Compile the kernels. Raises TargetError, besides KernelError, if no compiler supports the architectures."""
        kernels = compile_kernels(launches, self.target, self.options, progress, digests)
        keeps = keep_source or self.options.text_only
        sources = kernels.source_members() if keeps else {}
        return Compiled(kernels.symbols, kernels.members, sources, _resources(kernels.members))

    def describe(self, symbol: str, launch: CudaLaunch, compiled: Compiled) -> dict[str, Any]:
        """Describe a launch. `blocks_per_sm` is for the planned device, whatever the architecture. `widest_access`: the
        template's widest access to global memory.
        """
        device, needs = self.target.device, compiled.facts.get(symbol, {})
        return {
            "symbol": symbol, "grid": list(_grid(launch)), "block": list(launch.block),
            "shared_bytes": launch.shared_bytes, "static_shared_bytes": launch.static_shared_bytes,
            "cooperative": launch.cooperative, "device": device.name,
            "widest_access": asdict(asked(launch.func)),
            "machine_code": [
                {
                    "architecture": architecture, "registers": found.registers, "shared_bytes": found.shared_bytes,
                    "local_bytes": found.local_bytes,
                    "blocks_per_sm": found.blocks_per_sm(device, launch.threads, launch.shared_bytes),
                }
                for architecture, found in sorted(needs.items())
            ],
        }  # fmt: skip

    def placed(self, symbol: str, launch: CudaLaunch, args: tuple[rt.Arg, ...]) -> rt.DeviceLaunch:
        return rt.DeviceLaunch(
            symbol=symbol,
            grid=_grid(launch),
            block=launch.block,
            shared_bytes=launch.shared_bytes,
            args=args,
            origins=launch.origins,
            faults=launch.messages,
            cooperative=launch.cooperative,
            cluster=launch.cluster,
            elastic=launch.elastic,
        )

    def step(self, launches: Sequence[PlacedLaunch], edges: Sequence[Edge]) -> rt.DeviceStep:
        """Return one CUDA graph, whose branches are independent launches."""
        return rt.DeviceStep(
            tuple(map(self._with_cases, launches)),
            tuple(rt.Edge(edge.before, edge.after, edge.kind) for edge in edges),
        )

    def _with_cases(self, one: PlacedLaunch) -> rt.DeviceLaunch:
        def in_lane(symbol: str, launch: CudaLaunch) -> rt.DeviceLaunch:
            kernel = self.placed(symbol, launch, one.args)
            return replace(kernel, branch=one.lane.branch, priority=one.lane.priority)

        launch, cases = in_lane(one.symbol, one.launch), one.cases
        if cases is None:
            return launch
        others = tuple(in_lane(symbol, other) for symbol, other in cases.launches)
        return replace(launch, cases=rt.Cases(cases.size, cases.starts, others))


def _grid(launch: CudaLaunch) -> tuple[rt.Size, rt.Size, rt.Size]:
    x, y, z = launch.grid
    return runtime_size(x), runtime_size(y), runtime_size(z)


def _resources(members: Mapping[str, bytes]) -> dict[str, dict[str, KernelResources]]:
    """Return the resources of kernels, by symbol and architecture."""
    found: dict[str, dict[str, KernelResources]] = {}
    for name, data in members.items():
        if name.endswith(".cubin"):
            for symbol, resources in kernel_resources(data).items():
                found.setdefault(symbol, {})[name.split("/")[-2]] = resources
    return found


def own_launch(owned: OwnedKernel) -> CudaLaunch:
    """Return the launch of a CudaKernel or a TirKernel. Raises KernelError, naming the plug-in, for TIR that does not
    fit.
    """
    kernel = owned.kernel
    assert not isinstance(kernel, CKernel)
    func: Any
    if isinstance(kernel, CudaKernel):
        func, shared_bytes, cooperative = kernel.text, kernel.shared_bytes, kernel.cooperative
    else:
        func, shared_bytes, cooperative = _tir(owned), 0, False
    return CudaLaunch(
        owned.symbol_kind, func, kernel.grid, kernel.block, owned.args, owned.origins, shared_bytes,
        cooperative=cooperative, owner=owned.owner,
    )  # fmt: skip


def _tir(owned: OwnedKernel) -> Any:
    """Return the plug-in's function with a pointer in the place of each buffer."""
    buffers = buffers_of(owned, scalars=0)
    pointers = [tirx.Var(f"p{number}", pointer_kind(buffer)) for number, buffer in enumerate(buffers)]
    head = [tirx.DeclBuffer(buffer, data=pointer) for buffer, pointer in zip(buffers, pointers, strict=True)]
    func = owned.kernel.func  # type: ignore[union-attr]
    return function(pointers, head, func.body, {"calling_conv": 2, "tirx.is_global_func": True})
