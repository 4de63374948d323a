"""Caches in memory that a run may write to: new rows are stored there, and all else stays."""

from fnmatch import fnmatchcase

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import Size

from ..context import Context


def is_donated(ctx: Context, cache: Value) -> bool:
    """Return whether a value is an input of the model that is donated."""
    module = ctx.scope.module
    is_input = module.main is not None and cache in module.main.inputs
    return is_input and any(fnmatchcase(cache.name, pattern) for pattern in module.donated)


def stored_rows(
    ctx: Context, cache: Value, new: Value, *places: Value, axis: int, room: Size, until: Size, clears: bool
) -> Value:
    """Return the cache, `room` rows along `axis`, with new rows at places int64 [batch or 1, rows], all below `until`.
    `clears`: there are zeros from the last row to `until`, or to a second one of `places`, int64 [1].
    """
    return ctx.emit("append", new, *places, cache=cache.name, axis=axis, capacity=room, until=until, clears=clears)
