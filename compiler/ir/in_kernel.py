"""Open sizes among a code generator's expressions: where a kernel is being emitted, arithmetic of a size and such an
expression gives one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from .errors import UndecidedError

Lower: TypeAlias = "Callable[[Any], Any]"
"""Function from a size (`polynomial.Integer`) to the code generator's expression for it."""
_LOWER: ContextVar[Lower | None] = ContextVar("lower", default=None)


@contextmanager
def lowering(lower: Lower) -> Iterator[None]:
    """Within the context, allow open sizes among a code generator's expressions: `lower` converts one."""
    token = _LOWER.set(lower)
    try:
        yield
    finally:
        _LOWER.reset(token)


def in_kernel(size: object) -> Any:
    """Return the code generator's expression for a size in the kernel being emitted. Raises UndecidedError outside of
    one.
    """
    lower = _LOWER.get()
    if lower is None:
        raise UndecidedError(str(size), f"the value of {size} is known only at run time")
    return lower(size)
