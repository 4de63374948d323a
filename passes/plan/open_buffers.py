"""Whether a memory plan of open sizes is valid for all sizes: values may share memory either from their common first
byte and at disjoint times, or not at all.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from tilestitch.compiler.ir.proofs import is_at_most
from tilestitch.compiler.ir.sizes import Size, Symbol, at, divisor_of, over

from .buffers import ALIGNMENT, Buffer, BufferPlan
from .open_sizes import with_empty

SHORT, LONG = 3, 1 << 16
"""Sizes at which offsets are ordered, where ranges allow them."""


def why_not_apart(buffers: BufferPlan, symbols: Sequence[Symbol]) -> str | None:
    """Return why values may overlap, or exceed the arena, for some sizes of these symbols; None if they never do."""
    return next(_reasons(buffers, symbols), None)


def _reasons(buffers: BufferPlan, symbols: Sequence[Symbol]) -> Iterator[str]:
    empty, points = with_empty(symbols), _points(symbols)

    def typical(size: Size) -> list[int]:
        """Return a sort key under which no offset that always begins earlier comes later."""
        return [int(at(size, point)) for point in points]

    slots: dict[Size, list[Buffer]] = {}
    for buffer in buffers.buffers:
        slots.setdefault(buffer.offset_bytes, []).append(buffer)
    for odd in (o for o in (*slots, *(t.offset_bytes for t in buffers.temporaries)) if divisor_of(o) % ALIGNMENT):
        yield f"memory begins at {odd}, which is no multiple of {ALIGNMENT} at all sizes"
    for inside in slots.values():
        for a, b in combinations(inside, 2):
            if a.first <= b.last and b.first <= a.last and a.nbytes != 0 and b.nbytes != 0:
                yield f"buffers of {a.value} and {b.value} overlap in place and time"
    temporaries = min((t.offset_bytes for t in buffers.temporaries), key=typical, default=buffers.arena_bytes)
    starts = sorted(slots, key=typical)
    for start, end in pairwise([*starts, temporaries]):
        for b in slots[start]:
            if not is_at_most(start + over(b.nbytes, empty), end):
                yield (
                    f"the buffer of {b.value}, {b.nbytes} bytes at {start}, is not shown to end by {end} at all "
                    f"sizes, where {'the arena ends' if end is buffers.arena_bytes else 'other memory begins'}"
                )
    yield from _temporaries(buffers, temporaries)


def _points(symbols: Sequence[Symbol]) -> list[dict[str, int]]:
    """Return sample sizes of all symbols, large ones first."""
    return [
        {s.name: max(s.low, min(wanted + number, s.high)) for number, s in enumerate(symbols)}
        for wanted in (LONG, SHORT, 1)
    ]


def _temporaries(buffers: BufferPlan, first: Size) -> Iterator[str]:
    """Yield why temporaries do not lie after all values, or overlap within a group."""
    for t in buffers.temporaries:
        if not is_at_most(first, t.offset_bytes) or not is_at_most(t.end, buffers.arena_bytes):
            yield (
                f"temporary {t.name} of {t.group}: {t.nbytes} bytes at {t.offset_bytes} are not shown to fit between "
                f"the values and the end of the arena at {buffers.arena_bytes}"
            )
    for a, b in combinations(buffers.temporaries, 2):
        apart = is_at_most(a.end, b.offset_bytes) or is_at_most(b.end, a.offset_bytes)
        if a.group == b.group and (a.name == b.name or not apart):
            yield f"temporaries of {a.group} overlap, or have one name"
