"""Stitched groups: the kernels of several groups in one launch.

The parts of a stage occupy ranges of blocks side by side. Stages are separated by a grid barrier, in a cooperative
launch of no more blocks than are certainly resident together; a block then computes several blocks of a part in
sequence. Stages pass values in temporary memory.

Any kernel with an `abi.Emission` can be a part: its body is emitted again, with its block and thread indices computed
from those of the launch.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr
from tilestitch.codegen.cuda.abi import CudaLaunch, Emission, Parameter, Thread, declared_bytes, kernel_function, within
from tilestitch.codegen.cuda.rows.gridteam import counter_parameter, grid_barrier
from tilestitch.codegen.cuda.target import CudaTarget
from tilestitch.codegen.launch import CountersArg, KernelArg, TemporaryArg, TensorMapArg, ValueArg
from tilestitch.passes.plan.launches.cuda.stitched import blocks_per_sm


def lower_stitched(
    stages: Sequence[Sequence[CudaLaunch]], inner: Mapping[str, int], origins: tuple[str, ...],
    target: CudaTarget,
) -> CudaLaunch:  # fmt: skip
    """Return the launch of a stitched group: `stages` has the launches of each part of each stage, one each. `inner`:
    values internal to the parts, and their bytes.
    """
    own = [[private(apart(part, f"{i}.{j}"), inner) for j, part in enumerate(stage)] for i, stage in enumerate(stages)]
    return _Whole(own, target).launch(origins)


def private(launch: CudaLaunch, inner: Mapping[str, int], read: Collection[str] = ()) -> CudaLaunch:
    """Return the launch with temporary memory for the values `inner`, by name and bytes. It does not store those in
    `read`.
    """

    def argument(arg: KernelArg) -> KernelArg:
        if isinstance(arg, ValueArg) and arg.value in inner:
            return TemporaryArg(arg.value, inner[arg.value], arg.value in read)
        if isinstance(arg, TensorMapArg) and isinstance(arg.over, ValueArg) and arg.over.value in inner:
            return replace(arg, over=TemporaryArg(arg.over.value, inner[arg.over.value], arg.over.value in read))
        return arg

    return replace(launch, args=tuple(map(argument, launch.args)))


def apart(launch: CudaLaunch, part: str) -> CudaLaunch:
    """Return the launch with temporary memory and counters of its own."""

    def argument(arg: KernelArg) -> KernelArg:
        match arg:
            case TemporaryArg(name):
                return replace(arg, name=f"{name} of {part}")
            case CountersArg():
                return replace(arg, name=part)
        return arg

    return replace(launch, args=tuple(map(argument, launch.args)))


@dataclass(frozen=True)
class _Piece:
    """A part as one launch of its own; `emission`: how to emit it, by arguments."""

    launch: CudaLaunch
    emission: Emission

    @property
    def blocks(self) -> int:
        return self.launch.grid[0]


class _Whole:
    """One launch of all parts."""

    def __init__(self, stages: Sequence[Sequence[CudaLaunch]], target: CudaTarget) -> None:
        self.stages = [[_Piece(x, x.emission) for x in stage if x.emission is not None] for stage in stages]
        self.threads = max(piece.launch.threads for stage in self.stages for piece in stage)
        self.parameters: dict[KernelArg, Parameter] = {}
        for piece in (piece for stage in self.stages for piece in stage):
            for arg, parameter in zip(piece.launch.args, piece.emission.parameters, strict=True):
                self.parameters.setdefault(arg, replace(parameter, arg=arg))
        self.synchronises = len(stages) > 1
        blocks = max(sum(piece.blocks for piece in stage) for stage in self.stages)
        self.blocks_per_sm = blocks_per_sm(self.threads)
        most = target.multiprocessors * self.blocks_per_sm
        self.blocks = min(blocks, most) if self.synchronises else blocks

    def launch(self, origins: tuple[str, ...]) -> CudaLaunch:
        own = [counter_parameter()] if self.synchronises else []
        grid, block = (self.blocks, 1, 1), (self.threads, 1, 1)
        parameters = [*self.parameters.values(), *own]
        bound = self.blocks_per_sm if self.synchronises else None
        func = kernel_function(parameters, grid, block, self._body, bound)
        kind = "stages" if self.synchronises else "packed"
        return CudaLaunch(
            kind, func, grid, block, tuple(p.arg for p in parameters), origins,
            cooperative=self.synchronises, elastic=self.synchronises,
        )  # fmt: skip

    def _body(self, buffers: list[Any], thread: Thread) -> None:
        given = dict(zip(self.parameters, buffers, strict=False))
        block, lane = T.bind(thread.block[0]), thread.thread[0]
        if not self.synchronises:
            self._side_by_side(self.stages[0], 0, block, lane, given)
            return
        resident = T.bind(T.call_extern("int32", "ts_grid_blocks"))
        for number, stage in enumerate(self.stages):
            if number:
                grid_barrier(buffers[-1])
            total = sum(piece.blocks for piece in stage)
            before = declared_bytes()
            with T.serial(0, (total - block + resident - 1) // resident) as turn:
                self._side_by_side(stage, 0, T.bind(block + turn * resident), lane, given)
                if declared_bytes() > before:
                    # The next iteration writes the shared memory that slower threads may still read.
                    T.evaluate(T.tvm_storage_sync("shared"))

    def _side_by_side(
        self, pieces: Sequence[_Piece], first: int, block: Expr, lane: Expr, given: Mapping[KernelArg, Any]
    ) -> None:
        """Emit the part of this block; blocks are numbered from `first` on."""
        piece, *rest = pieces
        if not rest:
            self._piece(piece, block - first, lane, given)
            return
        with T.If(block < first + piece.blocks):
            with T.Then():
                self._piece(piece, block - first, lane, given)
            with T.Else():
                self._side_by_side(rest, first + piece.blocks, block, lane, given)

    def _piece(self, piece: _Piece, block: Expr, lane: Expr, given: Mapping[KernelArg, Any]) -> None:
        number = T.bind(block) if piece.blocks > 1 else 0
        emit_part(piece.launch, [given[arg] for arg in piece.launch.args], number, lane, self.threads)


def emit_part(launch: CudaLaunch, buffers: list[Any], block: Expr, lane: Expr, block_threads: int) -> None:
    """Emit block number `block` of a launch, by thread `lane` of a block of `block_threads` threads."""
    assert launch.emission is not None, launch.kind
    threads = launch.threads
    with within(threads, block_threads), only(lane, threads, block_threads):
        width, height, _ = launch.block
        across = T.bind(lane % width) if height > 1 else lane
        along = T.bind(lane // width) if height > 1 else 0
        launch.emission.body(buffers, Thread((block, 0, 0), (across, along, 0)))


@contextmanager
def only(lane: Expr, threads: int, all_threads: int) -> Iterator[None]:
    """Restrict code emitted within the context to the first `threads` threads, whole warps."""
    if threads == all_threads:
        yield
        return
    with T.If(lane < threads), T.Then():
        yield
