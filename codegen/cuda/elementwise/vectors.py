"""Vectorised access to neighbouring elements: up to 16 bytes per thread in one access.

The lanes of a vector are computed one after the other by the same thread, unrolled. The first lane that reads an
aligned position loads the whole vector to registers; later lanes that read adjacent elements find them there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm_ffi import StructuralKey

from tilestitch.codegen.compute.dtypes import Expr, from_storage, immediate, storage_bits, storage_dtype, to_storage
from tilestitch.codegen.compute.evaluator import Evaluator, Source
from tilestitch.codegen.compute.indexing import ravel
from tilestitch.codegen.compute.sizes import loaded, may_be_empty
from tilestitch.compiler.ir.graph import Value
from tilestitch.compiler.ir.sizes import divisor_of
from tilestitch.compiler.ir.types import TensorType


def _word(dtype: str, lanes: int) -> tuple[str, int]:
    """Return the dtype, and its number, that move `lanes` elements in one access; 0 if there is none."""
    nbytes = lanes * storage_bits(dtype) // 8
    if storage_bits(dtype) >= 32:
        return storage_dtype(dtype), lanes if nbytes in (8, 16) else 0
    return ("uint32", nbytes // 4) if nbytes in (4, 8, 16) else ("", 0)


@dataclass(frozen=True)
class Window:
    """A kernel's view of a larger tensor than it computes with: one fixed position along some axes (`at`).

    `memory`: the flat buffer of the whole tensor, which is of type `whole`.
    """

    memory: Any
    whole: TensorType
    at: tuple[Expr | None, ...]

    def position(self, index: Sequence[Expr]) -> Expr:
        """Return the position in the whole tensor of the element at `index` of the view."""
        places = [i if place is None else place for i, place in zip(index, self.at, strict=True)]
        return ravel(places, self.whole.sizes)


def _window(buffer: Any, value: Value) -> Window:
    """Return a window on the flat buffer of a whole value, unless it is a window already."""
    type_ = value.tensor_type
    return buffer if isinstance(buffer, Window) else Window(buffer, type_, (None,) * len(type_.shape))


class VectorAccess:
    """Vector loads inside one straight piece of code; every loop or branch needs a new one."""

    def __init__(self, evaluator: Evaluator, lanes: int) -> None:
        self.evaluator, self.lanes = evaluator, lanes
        self.loaded: dict[object, tuple[Any, int]] = {}

    def source(self, buffer: Any, value: Value) -> Source:
        """Return a reader of the elements of `value` from its flat buffer, or through a window."""
        window = _window(buffer, value)
        buffer, type_ = window.memory, window.whole
        simplify = self.evaluator.simplify
        word, count = _word(type_.dtype, self.lanes)
        whole = self.lanes > 1 and count > 0 and divisor_of(type_.num_elements) % self.lanes == 0
        whole = whole and not may_be_empty(type_)  # a vector is read before it is known whether it exists

        def read(index: Sequence[Expr]) -> Expr:
            position = simplify(window.position(index))
            if not whole:
                return from_storage(loaded(buffer, position, type_), type_.dtype)
            key = _key(buffer, position)
            if key not in self.loaded and self._is_aligned(position):
                self._load(buffer, type_, position, word, count)
            if key not in self.loaded:
                return from_storage(loaded(buffer, position, type_), type_.dtype)
            local, lane = self.loaded[key]
            return from_storage(local[lane], type_.dtype)

        return read

    def _load(self, buffer: Any, type_: TensorType, position: Expr, word: str, count: int) -> None:
        local, words = _local(type_.dtype, self.lanes, word, count)
        start = self._word_index(position, count)
        T.buffer_store(words, _as_words(buffer, type_, word)[_run(start, count)], [_run(0, count)])
        for lane in range(self.lanes):
            self.loaded[_key(buffer, self.evaluator.simplify(position + lane))] = local, lane

    def _word_index(self, position: Expr, count: int) -> Expr:
        """Return the first word of the vector that begins at element `position`."""
        if count == self.lanes:
            return position
        return self.evaluator.simplify(tirx.floordiv(_expr(position), self.lanes)) * count

    def _is_aligned(self, position: Expr) -> bool:
        if isinstance(position, int):
            return position % self.lanes == 0
        found = self.evaluator.analyzer.modular_set(position)
        return int(found.coeff) % self.lanes == 0 and int(found.base) % self.lanes == 0

    def store(self, buffer: Any, value: Value, indices: Sequence[Sequence[Expr]], elements: Sequence[Expr]) -> None:
        """Store the lanes of one vector (in compute form) at their indices; in one access if they are contiguous."""
        window = _window(buffer, value)
        buffer, type_ = window.memory, window.whole
        simplify = self.evaluator.simplify
        positions = [simplify(window.position(index)) for index in indices]
        word, count = _word(type_.dtype, len(elements))
        neighbours = all(_is_number(simplify(p - positions[0]), k) for k, p in enumerate(positions))
        if not (count and neighbours and len(elements) == self.lanes and self._is_aligned(positions[0])):
            for position, element in zip(positions, elements, strict=True):
                T.buffer_store(buffer, to_storage(element, type_.dtype), [position])
            return
        local, words = _local(type_.dtype, self.lanes, word, count)
        for lane, element in enumerate(elements):
            T.buffer_store(local, to_storage(element, type_.dtype), [lane])
        start = self._word_index(positions[0], count)
        T.buffer_store(_as_words(buffer, type_, word), words[_run(0, count)], [_run(start, count)])


def filled_vector(
    evaluator: Evaluator,
    buffer: Any,
    value: Value,
    index: Sequence[Expr],
    lanes: int,
    there: Expr | None,
    fill: int = 0,
) -> list[Expr]:
    """Read `lanes` neighbours from `index` on, a multiple of them, in one access, if they are `there`.

    fill: the bits of an element that is not. Nothing but the access is conditional: several are under way at a time.
    """
    type_ = value.tensor_type
    word, count = _word(type_.dtype, lanes)
    words = T.alloc_buffer((count,), word, scope="local")
    position = evaluator.simplify(ravel(index, type_.sizes))
    start = position if count == lanes else evaluator.simplify(tirx.floordiv(_expr(position), lanes)) * count
    source = _as_words(buffer, type_, word)
    if there is None:
        T.buffer_store(words, source[_run(start, count)], [_run(0, count)])
    else:
        filled = _filled(fill, type_.dtype, word)
        T.buffer_store(words, filled if count == 1 else tirx.Broadcast(filled, count), [_run(0, count)])
        with T.If(there), T.Then():
            T.buffer_store(words, source[_run(start, count)], [_run(0, count)])
    return [from_storage(_part_of(words, lane, type_.dtype), type_.dtype) for lane in range(lanes)]


def _filled(fill: int, dtype: str, word: str) -> Expr:
    """Return a word of elements of these bits."""
    bits = storage_bits(dtype)
    if bits < 32:
        return tirx.const(sum(fill << at for at in range(0, 32, bits)), word)
    return immediate(np.array([fill], f"uint{bits}").view(word)[0].item(), word)


def _part_of(words: Any, lane: int, dtype: str) -> Expr:
    """Return an element of words in registers, extracted by shifts: this keeps the words whole, where the compiler
    would split them, and then choose between read and filled elements one by one.
    """
    stored, bits = storage_dtype(dtype), storage_bits(dtype)
    if bits >= 32:
        return words[lane]
    word, part = divmod(lane, 32 // bits)
    shifted = T.shift_right(words[word], tirx.const(part * bits, "uint32")) if part else words[word]
    narrow = T.cast(shifted, f"uint{bits}")
    return narrow if stored == f"uint{bits}" else T.reinterpret(stored, T.bind(narrow))


def _local(dtype: str, lanes: int, word: str, count: int) -> tuple[Any, Any]:
    """Return the registers for a vector: as elements, and as words."""
    words = T.alloc_buffer((count,), word, scope="local")
    stored = storage_dtype(dtype)
    return (words if stored == word else T.decl_buffer((lanes,), stored, data=words.data, scope="local")), words


def _as_words(buffer: Any, type_: TensorType, word: str) -> Any:
    stored = storage_dtype(type_.dtype)
    if stored == word:
        return buffer
    itemsize = storage_bits(type_.dtype) // 8
    offset = int(buffer.elem_offset) * itemsize // 4 if isinstance(buffer.elem_offset, tirx.IntImm) else 0
    words = type_.num_elements * itemsize // 4
    return T.decl_buffer((words,), word, data=buffer.data, scope=buffer.scope(), elem_offset=offset)


def _run(start: Expr, count: int) -> Expr:
    return start if count == 1 else tirx.Ramp(start, 1, count)


def _key(buffer: Any, position: Expr) -> object:
    return id(buffer), position if isinstance(position, int) else StructuralKey(position)


def _expr(position: Expr) -> Expr:
    return tirx.IntImm("int32", position) if isinstance(position, int) else position


def _is_number(expr: Expr, number: int) -> bool:
    return (expr if isinstance(expr, int) else getattr(expr, "value", None)) == number
