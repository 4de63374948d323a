"""The converters of ai.onnx, one module per operator family, merged into one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..context import Versioned
from . import (
    activations,
    arithmetic,
    attention,
    constants,
    control,
    convolution,
    found,
    host_ops,
    indexing,
    labels,
    learning,
    linear_attention,
    losses,
    matmul,
    microsoft,
    normalization,
    pooling,
    quantization,
    random,
    recurrent,
    reductions,
    resize,
    sampling,
    sequences,
    shaping,
    signal,
    strings,
    support_vectors,
    trees,
)

_FAMILIES = (
    activations,
    arithmetic,
    attention,
    constants,
    control,
    convolution,
    found,
    host_ops,
    indexing,
    linear_attention,
    losses,
    matmul,
    normalization,
    pooling,
    quantization,
    random,
    recurrent,
    reductions,
    resize,
    sampling,
    sequences,
    shaping,
    signal,
    strings,
)


def _merged(tables: Iterable[Mapping[str, Sequence[Versioned]]]) -> dict[str, Sequence[Versioned]]:
    merged: dict[str, Sequence[Versioned]] = {}
    for table in tables:
        twice = merged.keys() & table.keys()
        if twice:
            raise ValueError(
                f"operators {sorted(twice)} have two converters; remove one of each from its family's table"
            )
        merged.update(table)
    return merged


CONVERTERS: Mapping[str, Mapping[str, Sequence[Versioned]]] = {
    "": _merged(family.CONVERTERS for family in _FAMILIES),
    "ai.onnx.ml": _merged(family.CONVERTERS for family in (labels, learning, support_vectors, trees)),
    "com.microsoft": {name: operator.versions() for name, operator in microsoft.OPERATORS.items()},
}
"""Domain -> operator -> its converters, each with the opset version from which on it is correct."""
