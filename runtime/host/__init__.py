"""numpy implementation of every operator.

`TABLE[name](operands, attributes)` returns the outputs. Names in snake_case are the primitives of the graph IR
(`tilestitch.compiler.ir.ops`); names in CamelCase are ONNX operators whose parameters arrive as run-time tensors, or
that work on strings, sequences and optionals: they take ONNX's operands (None for an absent one) and attributes.
`docs/host_steps.md` lists the rules.

A value is an ndarray, a list (a sequence), a dict (a map) or None (an absent optional); a present optional is the value
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilestitch.runtime.errors import HostError

from . import (
    blocks,
    casting,
    contraction,
    elementwise,
    folding,
    images,
    learning,
    movement,
    ngrams,
    pictures,
    random,
    reductions,
    regions,
    scatter,
    selection,
    sequences,
    shaping,
    signal,
    strings,
)
from .common import Attrs, HostFn

__all__ = ["ALIASING", "NON_DETERMINISTIC", "PREPARE", "TABLE", "HostError", "HostFn"]

_MODULES = (
    blocks, casting, contraction, elementwise, folding, images, learning, movement, ngrams, pictures,
    random, reductions, regions, scatter, selection, sequences, shaping, signal, strings,
)  # fmt: skip

TABLE: Mapping[str, HostFn] = {name: function for module in _MODULES for name, function in module.TABLE.items()}

PREPARE: Mapping[str, Callable[[Attrs], Attrs]] = {**learning.PREPARE, **movement.PREPARE, **ngrams.PREPARE}
"""Per-operator preparation of attributes: `TABLE[name](operands, PREPARE[name](attributes))` gives the same result, but
computes what depends on attributes alone only once.
"""

ALIASING: frozenset[str] = movement.ALIASING | shaping.ALIASING | sequences.ALIASING
"""Operators whose outputs may share memory with their operands; the outputs of all others are arrays of their own."""

NON_DETERMINISTIC: frozenset[str] = random.NON_DETERMINISTIC
"""Operators that may give another result each time: not to be folded, and equal ones not to be merged."""
