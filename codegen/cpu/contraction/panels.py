"""The right operand of a contraction as panels ``[K, columns]``: packed at compile time, or by each task.

A panel holds as many columns as a register tile is wide, so one reduction step reads consecutive memory. Panels of half
floats that several register tiles read are converted once, into the workspace of the task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import dtype_of, from_storage, widen
from tilestitch.codegen.compute.sizes import integer
from tilestitch.codegen.cpu.contraction import microkernel as mk
from tilestitch.codegen.cpu.contraction.microkernel import Expr
from tilestitch.codegen.cpu.contraction.transpose import transpose_tile
from tilestitch.compiler.ir.sizes import Size, is_open, largest
from tilestitch.compiler.ir.types import compute_dtype, storage_bytes
from tilestitch.passes.plan.cpu.packing import BlockPacking, Packing
from tilestitch.passes.plan.cpu.tiling import LINE_BYTES, RegisterTile

PIECE_BYTES = 1 << 18
"""Blocks are packed by so many bytes at a time, whose intermediate arrays then stay in the cache."""


def pack(matrix: npt.NDArray[Any], packing: Packing) -> npt.NDArray[Any]:
    """Pack [groups, k, n] (or [k, n] when there is one group) into ``packing.shape``; the dtype is kept.

    Raises ValueError when the matrix does not have the shape of the packing.
    """
    if isinstance(packing, BlockPacking):
        return pack_blocks(matrix, packing)
    wanted = (packing.groups, packing.k, packing.n)
    if matrix.shape != wanted and (packing.groups != 1 or matrix.shape != wanted[1:]):
        raise ValueError(f"matrix of shape {matrix.shape} does not fit the packing of {wanted}; plan the kernel again")
    together, columns, (groups, panels, steps, _) = packing.neighbours, packing.columns, packing.shape
    matrix = matrix.reshape(wanted)
    if packing.k < steps * together:
        matrix = np.pad(matrix, ((0, 0), (0, steps * together - packing.k), (0, 0)))
    packed = np.zeros((groups, panels, steps, columns, together), matrix.dtype)
    # Each element is copied once, all panels together: splits of axes are views.
    whole = packing.n // columns
    inner = matrix[..., : whole * columns].reshape(groups, steps, together, whole, columns)
    packed[:, :whole] = inner.transpose(0, 3, 1, 4, 2)
    if whole < panels:
        left = packing.n - whole * columns
        rest = matrix[..., whole * columns :].reshape(groups, steps, together, left)
        packed[:, whole, :, :left] = rest.transpose(0, 1, 3, 2)
    return packed.reshape(packing.shape)


def pack_blocks(weights: npt.NDArray[np.uint8], packing: BlockPacking) -> npt.NDArray[np.uint8]:
    """Pack [groups, columns, blocks, bytes of a block] into `packing.shape`; without groups when there is one."""
    wanted = (packing.n, packing.form.blocks, packing.form.block_bytes)
    if weights.shape != (packing.groups, *wanted) and (packing.groups != 1 or weights.shape != wanted):
        raise ValueError(f"weights of shape {weights.shape} do not fit the packing of {wanted}; plan the kernel again")
    packed = np.zeros(packing.shape, np.uint8)
    for matrix, into in zip(weights.reshape(-1, *wanted), packed[:, :, 0], strict=True):
        _pack_matrix(matrix, packing, into)
    return packed


def _pack_matrix(weights: npt.NDArray[np.uint8], packing: BlockPacking, packed: npt.NDArray[np.uint8]) -> None:
    """Pack [columns, blocks, bytes of a block] into [panels, bytes of a panel]."""
    columns, inner = packing.columns, weights.shape[1:]
    together = max(1, PIECE_BYTES // packing.shape[-1])
    for first in range(0, packing.panels, together):
        rows = weights[first * columns : (first + together) * columns]
        missing = -len(rows) % columns
        if missing:
            rows = np.concatenate([rows, np.zeros((missing, *inner), np.uint8)])
        _pack_panels(rows.reshape(-1, columns, *inner), packing, packed[first : first + together])


def _pack_panels(rows: npt.NDArray[np.uint8], packing: BlockPacking, packed: npt.NDArray[np.uint8]) -> None:
    """Pack [panels, columns, blocks, bytes of a block] into [panels, bytes of a panel]."""
    form, panels, columns = packing.form, len(rows), packing.columns
    codes, scales, zeros = np.split(rows, (form.code_bytes, form.code_bytes + form.scale_bytes), -1)
    sign = np.uint8((0x88 if form.bits == 4 else 0x80) if form.integers else 0)  # from two's complement to an offset
    words = (codes ^ sign).view("<u4")
    if packing.halved:
        words = _spread(words & 0xFFFF) | _spread(words >> 16) << 4
    parts = [words.transpose(0, 2, 3, 1), scales.transpose(0, 2, 1, 3)]
    if form.zeros:
        points = (zeros[..., 0] ^ sign).transpose(0, 2, 1)
        if form.bits == 4:
            vectors = -(-columns // packing.lanes)
            even = np.zeros((panels, form.blocks, vectors + vectors % 2, packing.lanes), np.uint8)
            even[:, :, :vectors] = points.reshape(panels, form.blocks, vectors, packing.lanes)
            points = (even[:, :, 0::2] & 15) | (even[:, :, 1::2] << np.uint8(4))
        parts.append(points)
    flat = [np.ascontiguousarray(part).reshape(panels, -1).view(np.uint8) for part in parts]
    joined = np.concatenate(flat, 1)
    packed[:, : joined.shape[1]] = joined


def _spread(halves: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the four nibbles of the low half of each word as the low nibbles of its bytes."""
    halves = (halves | halves << 8) & 0x00FF00FF
    return (halves | halves << 4) & 0x0F0F0F0F


@dataclass(frozen=True)
class PackedOperand:
    """A constant right operand: a TIR buffer of ``Packing.shape`` and ``storage_dtype(Packing.dtype)``.

    ``group`` maps a batch element to its group.
    """

    buffer: Any
    group: Callable[[Expr], Expr] = lambda batch: 0


@dataclass(frozen=True)
class LoadedOperand:
    """A right operand known at run time: ``load(batch, k, n)`` gives an element in its compute dtype.

    ``contiguous`` is the contiguous index ("n" or "k").
    """

    load: Callable[[Expr, Expr, Expr], Expr]
    contiguous: str = "n"


Operand = PackedOperand | LoadedOperand


@dataclass(frozen=True)
class Panels:
    """Access to the panels of one operand inside a task.

    ``workspace`` holds one panel [k, columns] in the compute dtype, if the task packs or widens it. ``neighbours``:
    adjacent elements of a column that form one of the ``k`` steps.
    """

    operand: Operand
    k: Size
    tile: RegisterTile
    dtype: str
    acc_dtype: str
    workspace: Any = None
    neighbours: int = 1

    def prepare(self, batch: Expr, panel: Expr, width: Expr, steps: tuple[Expr, Expr] | None = None) -> None:
        """Bring one panel, of which ``width`` columns exist, into the workspace, if there is one.

        ``steps``: the first needed one and an end; default: all.
        """
        if self.workspace is None:
            return
        first, last = steps or (0, self.k)
        if isinstance(self.operand, PackedOperand):
            with mk.serial(first, last) as k:
                mk.for_each_column(
                    self.tile.columns, self.tile.lanes,
                    lambda column: T.buffer_store(self.workspace, self._packed(batch, panel, k, column), [k, column]),
                )  # fmt: skip
            return
        _copy_panel(
            self.operand, batch, panel, width, (first, last), self.tile, compute_dtype(self.dtype),
            lambda k, column, value: T.buffer_store(self.workspace, value, [k, column]),
        )  # fmt: skip

    def at(self, batch: Expr, panel: Expr, k: Expr, column: Expr) -> Expr:
        """Return one element, widened to the dtype of the sum."""
        value = self._packed(batch, panel, k, column) if self.workspace is None else self.workspace[k, column]
        return widen(value, self.dtype, self.acc_dtype)

    def neighbours_at(self, batch: Expr, panel: Expr, k: Expr, column: Expr, lanes: int) -> Expr:
        """Return the vector of all elements of a step of ``lanes`` columns, as they are stored."""
        where = T.ramp(column * self.neighbours, T.int64(1), lanes * self.neighbours)
        if self.workspace is not None:
            return self.workspace[k, where]
        assert isinstance(self.operand, PackedOperand)
        return self.operand.buffer[self.operand.group(batch), panel, k, where]

    def _packed(self, batch: Expr, panel: Expr, k: Expr, column: Expr) -> Expr:
        """Return one element of a constant operand, in its compute dtype."""
        assert isinstance(self.operand, PackedOperand)
        return from_storage(self.operand.buffer[self.operand.group(batch), panel, k, column], self.dtype)

    def piece_of(self, tiles: Expr) -> Expr:
        """Return the elements of a step that each of `tiles` tiles prefetches, so that together they prefetch all of
        it.
        """
        row = self.tile.columns * self.neighbours
        return -(-row // tiles) if mk.is_number(tiles) else (row + tiles - 1) // tiles

    def prefetch_next(self, batch: Expr, panel: Expr, index: Expr, piece: Expr, k: Expr) -> None:
        """Prefetch a ``piece`` of each step of the panel after ``panel``; this is tile ``index``.

        The hardware cannot foresee a stream that starts only after this one; otherwise the first tile of every panel
        waits for memory.
        """
        self.prefetch_piece(batch, panel + 1, 0, index, piece, self.k, k)

    def prefetch_piece(
        self, batch: Expr, panel: Expr, first: Expr, index: Expr, piece: Expr, steps: Expr, k: Expr
    ) -> None:
        """Prefetch a ``piece`` of each of ``steps`` steps of ``panel`` from step ``first`` on; this is step ``k`` of
        tile ``index``.
        """
        assert isinstance(self.operand, PackedOperand)
        row, line = self.tile.columns * self.neighbours, LINE_BYTES // storage_bytes(self.dtype)
        offset = first * row + index * (piece * steps) + k * piece
        for start in range(0, piece if mk.is_number(piece) else row, line):
            place = start if mk.is_number(piece) else T.min(T.int64(start), piece - 1)
            where = [self.operand.group(batch), panel, 0, offset + place]
            mk.prefetch(T.address_of(self.operand.buffer[where]))

    def prefetch_ahead(self, batch: Expr, panel: Expr, k: Expr, bytes_ahead: int) -> None:
        """Prefetch what a reduction step ``bytes_ahead`` later reads.

        For panels that are read once: the hardware alone follows a single stream too slowly.
        """
        assert isinstance(self.operand, PackedOperand)
        element, row = storage_bytes(self.dtype), self.tile.columns * self.neighbours
        ahead, line = bytes_ahead // element, LINE_BYTES // element
        group = self.operand.group(batch)
        for start in range(0, row, line):
            mk.prefetch(T.address_of(self.operand.buffer[group, panel, 0, k * row + (ahead + start)]))


Store = Callable[[Expr, Expr, Expr], None]
"""``store(k, column, value)`` puts an element, or a vector of columns, into a panel."""


def _copy_panel(
    operand: LoadedOperand, batch: Expr, panel: Expr, width: Expr, steps: tuple[Expr, Expr], tile: RegisterTile,
    dtype: str, store: Store,
) -> None:  # fmt: skip
    """Store some reduction steps of a panel as ``dtype``; missing columns are zero."""
    columns, lanes, first = tile.columns, tile.lanes, panel * tile.columns

    def load(k: Expr, column: Expr) -> Expr:
        value = operand.load(batch, k, first + column)
        return value if dtype_of(value) == dtype else T.cast(value, dtype)

    if not mk.is_number(width) or width < columns:
        zero = mk.constant(0, dtype)
        with mk.serial(*steps) as k:
            mk.for_each_column(columns, lanes, lambda column: store(k, column, zero))
    if operand.contiguous == "n":
        with mk.serial(*steps) as k:
            mk.for_each_column(width, lanes, lambda column: store(k, column, load(k, column)))
        return
    _copy_transposed(load, width, steps, lanes, dtype, store)


def _copy_transposed(
    load: Callable[[Expr, Expr], Expr], width: Expr, steps: tuple[Expr, Expr], lanes: int, dtype: str, store: Store
) -> None:
    """Copy by square tiles, and the remaining steps and columns one by one."""
    begin, end = steps
    tiles, inside = (end - begin) // lanes, width // lanes * lanes
    with mk.serial(0, tiles) as number, mk.serial(0, width // lanes) as group:
        step, column = T.bind(begin + number * lanes), T.bind(group * lanes)
        transpose_tile(
            lanes, dtype, lambda i, lane: load(step + lane, column + i),
            lambda i, vector: store(step + i, T.ramp(column, T.int64(1), lanes), vector),
        )  # fmt: skip
    after = begin + tiles * lanes
    with mk.serial(begin, after) as k, mk.serial(inside, width) as column:
        store(k, column, load(k, column))
    with mk.serial(after, end) as k, mk.serial(0, width) as column:
        store(k, column, load(k, column))


def pack_at_run_time(
    operand: LoadedOperand, n: Size, tile: RegisterTile, panels: tuple[Expr, Expr], steps: tuple[Expr, Expr],
    buffer: Any, dtype: str,
) -> None:  # fmt: skip
    """Pack some steps of some panels of batch element 0 into ``buffer`` [1, panels, k, columns], widened to ``dtype``.

    Several GEMMs of a task then read it as a ``PackedOperand``.
    """

    def copy(panel: Expr, width: Expr) -> None:
        _copy_panel(
            operand, 0, panel, width, steps, tile, dtype,
            lambda k, column, value: T.buffer_store(buffer, value, [0, panel, k, column]),
        )  # fmt: skip

    for_each_panel(n, tile.columns, *panels, copy)


def workspace(scratch: Expr, byte_offset: Size, k: Size, columns: int, dtype: str) -> Any:
    """Return the workspace buffer of one packed panel."""
    return mk.scratch_buffer(scratch, byte_offset, (largest(1, k), columns), compute_dtype(dtype), "panel")


def for_each_panel(n: Size, columns: int, first: Expr, last: Expr, body: Callable[[Expr, Expr], None]) -> None:
    """Emit ``body(panel, width)`` for panels ``[first, last)``: one body for whole panels, one for the partial one.

    The width of the latter is a number where ``n`` is one.
    """
    if is_open(n):
        _for_each_open_panel(n, columns, first, last, body)
        return
    full, tail = divmod(n, columns)
    if full:
        with mk.serial(first, T.min(last, full)) as panel:
            body(panel, columns)
    if tail:
        with T.If(last > full), T.Then():
            body(full, tail)


def _for_each_open_panel(n: Size, columns: int, first: Expr, last: Expr, body: Callable[[Expr, Expr], None]) -> None:
    full = T.bind(integer(n // columns, "int64"))
    with mk.serial(first, T.min(last, full)) as panel:
        body(panel, columns)
    with T.If(last > full), T.Then():
        body(full, T.bind(integer(n, "int64") - full * columns))
