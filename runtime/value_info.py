"""The inputs and outputs of a model as users see them: one description over all specialisations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .program import Cache, Program, ValueSpec
from .symbols import Symbol
from .types import OptionalType, SequenceType, Shape, TensorType, ValueType


@dataclass(frozen=True)
class ValueInfo:
    """An input or output of a model. A size that depends on symbols is an expression over them; one that differs
    between specialisations or is known only at run time is a name. `symbols`: the model's symbols with their ranges.
    """

    name: str
    type: ValueType
    symbols: tuple[Symbol, ...] = ()

    @property
    def dtype(self) -> str:
        """The data type's name; `sequence`, `optional` or `map` for other values than tensors."""
        return ValueSpec(self.name, self.type).dtype

    @property
    def shape(self) -> Shape | None:
        """The shape; None for other values than tensors and for unknown rank."""
        return self.type.shape if isinstance(self.type, TensorType) else None

    def __str__(self) -> str:
        """Format like `ids: int64[batch:1..64, seq:1..512]`: with the ranges of symbols that are a size by
        themselves.
        """
        return f"{self.name}: {_with_ranges(self.type, {symbol.name: str(symbol) for symbol in self.symbols})}"


def _with_ranges(type_: ValueType, ranges: Mapping[str, str]) -> ValueType:
    match type_:
        case TensorType(dtype, shape) if ranges and shape is not None:
            return TensorType(dtype, tuple(ranges.get(s, s) if isinstance(s, str) else s for s in shape))
        case SequenceType(element):
            return SequenceType(_with_ranges(element, ranges))
        case OptionalType(element):
            return OptionalType(_with_ranges(element, ranges))
    return type_


MOST_LISTED = 4
"""Most inputs or outputs that one line lists."""


def in_one_line(infos: Sequence[ValueInfo]) -> str:
    """Return the names and types in one line, of many only the first."""
    shown = ", ".join(map(str, infos[:MOST_LISTED]))
    return shown if len(infos) <= MOST_LISTED else f"{shown}, and {len(infos) - MOST_LISTED} more"


def infos(programs: Sequence[Program]) -> tuple[tuple[ValueInfo, ...], tuple[ValueInfo, ...]]:
    """Return the inputs and outputs of a model, each described once over all specialisations. Specialisations with
    fewer symbols than others are points in the ranges of these, and only widen them.
    """
    most = max(len(program.symbols) for program in programs)
    general = [program for program in programs if len(program.symbols) == most]
    first = general[0]
    inputs = [[p.values[p.inputs[i]].type for p in general] for i in range(len(first.inputs))]
    outputs = [[p.values[p.outputs[i]].type for p in general] for i in range(len(first.outputs))]
    taken = [merged_info(first.values[number].name, types) for number, types in zip(first.inputs, inputs)]
    made = [merged_info(name, types) for name, types in zip(first.result_names, outputs)]
    symbols = _widest(programs, taken)
    taken, made = _with_caches(taken, made, general)
    return tuple(replace(i, symbols=symbols) for i in taken), tuple(replace(o, symbols=symbols) for o in made)


def inputs_of(program: Program) -> tuple[ValueInfo, ...]:
    """Return the inputs of one specialisation."""
    taken = [ValueInfo(program.values[n].name, program.values[n].type) for n in program.inputs]
    return tuple(replace(info, symbols=program.symbols) for info in _with_caches(taken, [], [program])[0])


def _with_caches(
    taken: Sequence[ValueInfo], made: Sequence[ValueInfo], programs: Sequence[Program]
) -> tuple[list[ValueInfo], list[ValueInfo]]:
    """Return the inputs and outputs with the caches as users see them, in place of buffers and the inputs that tell
    their sizes.
    """
    caches = programs[0].caches
    inside = {cache.sizes for cache in caches}
    inputs = [info for info in taken if info.name not in inside]
    for number, cache in sorted(enumerate(caches), key=lambda pair: pair[1].position):
        types = [program.caches[number].type for program in programs]
        inputs.insert(cache.position, merged_info(cache.input, types))
    grown = {cache.output: cache for cache in caches}
    return inputs, [_grown(info, grown[info.name]) if info.name in grown else info for info in made]


def _grown(info: ValueInfo, cache: Cache) -> ValueInfo:
    shape = cache.type.shape or ()
    total = f"{shape[cache.axis]} + {cache.new}"
    return ValueInfo(info.name, TensorType(cache.type.dtype, (*shape[: cache.axis], total, *shape[cache.axis + 1 :])))


def _widest(programs: Sequence[Program], infos: Sequence[ValueInfo]) -> tuple[Symbol, ...]:
    """Return the symbols of all programs, each with a range that covers its ranges and its constant values in all of
    them.
    """
    found: dict[str, Symbol] = {}

    def widen(name: str, low: int, high: int) -> None:
        other = found.setdefault(name, Symbol(name, low, high))
        found[name] = Symbol(name, min(low, other.low), max(high, other.high))

    for symbol in (symbol for program in programs for symbol in program.symbols):
        widen(symbol.name, symbol.low, symbol.high)
    for program in programs:
        for info, number in zip(infos, program.inputs):
            type_ = program.values[number].type
            actual = type_.shape if isinstance(type_, TensorType) else None
            for name, size in zip(info.shape or (), actual or ()):
                if name in found and isinstance(size, int):
                    widen(str(name), size, size)
    return tuple(found.values())


def merged_info(name: str, types: Sequence[ValueType]) -> ValueInfo:
    """Merge the types of an input or output in all specialisations into one description."""
    tensors = [type_ for type_ in types if isinstance(type_, TensorType)]
    shapes = {type_.shape for type_ in tensors}
    if len(shapes) <= 1:
        return ValueInfo(name, types[0])
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return ValueInfo(name, TensorType(tensors[0].dtype, None))
    merged = tuple(sizes[0] if len(set(sizes)) == 1 else f"{name}_{axis}" for axis, sizes in enumerate(zip(*known)))
    return ValueInfo(name, TensorType(tensors[0].dtype, merged))


MOST_TOLD = 8
"""Most specialisations, or problems with them, that a message lists."""


def expected_inputs(programs: Sequence[Program]) -> str:
    """Return the specialisations' inputs, for messages."""
    lines = [f"({', '.join(map(str, inputs_of(program)))})" for program in programs]
    return some_of(lines, " or ")


def some_of(texts: Iterable[str], between: str) -> str:
    """Return the first few of different texts in one, and how many more there are."""
    found = list(dict.fromkeys(texts))
    more = [f"{len(found) - MOST_TOLD} more"] * (len(found) > MOST_TOLD)
    return between.join((*found[:MOST_TOLD], *more))
