"""Constants derived from others, memoised so that the specialisations of a model share weights."""

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MADE: dict[Hashable, tuple[tuple[weakref.ref[Array], ...], weakref.ref[Array]]] = {}
"""Results by operation and identities of the operands. Weak references to the operands detect identities that are
reused; nothing is kept alive.
"""


def made_once(what: Hashable, operands: Sequence[Array], make: Callable[[], Array]) -> Array:
    """Return `make()`, read-only, or its earlier result for the same arrays, which must not be written to, if that is
    still alive.
    """
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
