"""Constants made of others, once for the same ones: the specialisations of a model have weights in common."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MADE: dict[Hashable, tuple[tuple[weakref.ref[Array], ...], weakref.ref[Array]]] = {}
"""By what was done and the identities of the operands, which are references too: another may get the identity of one
that is gone. Nothing is kept alive.
"""


def made_once(what: Hashable, operands: Sequence[Array], make: Callable[[], Array]) -> Array:
    """`make()`, read-only, or what it gave for the same arrays, which nothing writes, as long as that lives."""
    key = what, tuple(map(id, operands))
    known = _MADE.get(key)
    found = None if known is None else known[1]()
    if known is not None and found is not None and all(a() is b for a, b in zip(known[0], operands, strict=True)):
        return found
    made = np.asarray(make())
    made.flags.writeable = False
    _MADE[key] = tuple(map(weakref.ref, operands)), weakref.ref(made, lambda gone: _forget(key, gone))
    return made


def _forget(key: Hashable, gone: weakref.ref[Array]) -> None:
    known = _MADE.get(key)
    if known is not None and known[1] is gone:
        del _MADE[key]


__all__ = ["made_once"]
