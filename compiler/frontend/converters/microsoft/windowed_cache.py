"""A cache that keeps only the last tokens: its capacity exceeds the window, and old tokens are dropped in batches.

Of T tokens so far the last L(T) are in the first rows of the cache, in order. With capacity C and window W, G = C - W +
1 tokens are dropped at once whenever there is no room for one more: L(T) = T - G * ceil((T - C) / G), or T as long as
all fit. The contents of the other rows are unspecified and may not be finite.
"""

from dataclasses import dataclass

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import Size, bounds_of

from ...builder import dtype_of
from ...context import Context

_NOWHERE = 1 << 30
"""Position of an empty row: after those of all queries."""


@dataclass(frozen=True)
class Window:
    """Rows that queries may see: cached ones, followed by the new ones.

    `sources`: int32 [B, C], the row in each row of the output cache. `kept`: bool [B, C], whether there is one.
    """

    room: Size
    held: Size
    """Number of cached rows; 0 if the cache is certainly empty."""
    positions: Value
    """Positions of the rows, int32 [B, N]."""
    filled: Value
    """Whether there is a token in the row, bool [B, N]."""
    sources: Value
    kept: Value

    def rows_of(self, ctx: Context, past: Value, new: Value) -> Value:
        """Return [B, heads, N, D], zeros where there is no token."""
        both = ctx.concat([past, new], 2) if self.held else new
        return ctx.select(ctx.expand_dims(self.filled, (1, 3)), both, ctx.constant(0, dtype_of(new)))

    def visible(self, ctx: Context, queries: Value, window: int) -> Value:
        """Return bool [B, 1, S, N]: positions up to the query's own, int32 [B or 1, S], and in its window."""
        queries, keys = ctx.expand_dims(queries, (1, 3)), ctx.expand_dims(self.positions, (1, 2))
        near = ctx.less(ctx.sub(queries, window), keys)
        return ctx.emit("logical_and", ctx.less_equal(keys, queries), near)

    def biases_of(self, ctx: Context, bias: Value, total: Size) -> Value:
        """Return a bias whose last axis is positions, reindexed by rows."""
        if ctx.dim(bias, 3) == 1:
            return bias
        batch, count = ctx.shape(self.positions)
        _, heads, rows, length = ctx.shape(bias)
        last = ctx.size(total - 1, "int32")
        places = ctx.expand_dims(ctx.clamp(self.positions, 0, last), (1, 2))
        places = ctx.broadcast_to(ctx.cast(places, "int64"), (batch, heads, rows, count))
        return ctx.emit("gather_elements", ctx.broadcast_to(bias, (batch, heads, rows, length)), places, axis=3)


def window_of(ctx: Context, batch: Size, rows: Size, start: int | Value, lengths: Value) -> Window:
    """Return the window. `start`: tokens before this step. `lengths`: int32 [B], tokens after it, of which the newest
    are the first rows.
    """
    window, room = ctx.attr("local_window_size", -1), ctx.dim(ctx.input(3), 2)
    if window <= 0 or not ctx.attr("causal", 1):
        raise ctx.fail(
            "sliding_window_cache is 1, which needs causal to be 1 and a local_window_size; correct the model"
        )
    if bounds_of(room)[1] < window:
        raise ctx.fail(f"the cache has room for {room} tokens, less than the window of {window}; correct the model")
    if ctx.attr("qk_output", 0):
        raise ctx.fail("qk_output is not supported with sliding_window_cache; leave output_qk out")
    before = _column(ctx, ctx.constant(start, "int32") if isinstance(start, int) else start)
    after = _column(ctx, lengths)
    held = 0 if start == 0 else room
    kept_before, kept_after = (_kept(ctx, length, room, window) for length in (before, after))
    row = ctx.expand_dims(ctx.iota(held + rows, "int32"), (0,))
    new = ctx.sub(row, ctx.size(held, "int32"))
    is_new = ctx.less_equal(0, new)
    is_filled = ctx.select(is_new, ctx.less(new, ctx.sub(after, before)), ctx.less(row, kept_before))
    old_position = ctx.add(ctx.sub(before, kept_before), row)
    position = ctx.select(is_new, ctx.add(before, new), old_position)
    position = ctx.select(is_filled, position, _NOWHERE)
    place = ctx.expand_dims(ctx.iota(room, "int32"), (0,))
    wanted = ctx.add(ctx.sub(after, kept_after), place)
    from_old = ctx.sub(wanted, ctx.sub(before, kept_before))
    from_new = ctx.add(ctx.sub(wanted, before), ctx.size(held, "int32"))
    source = ctx.select(ctx.less(wanted, before), from_old, from_new)
    last = ctx.size(held + rows - 1, "int32")
    source, kept = ctx.clamp(source, 0, last), ctx.less(place, kept_after)
    whole = (batch, held + rows)
    return Window(
        room, held, ctx.broadcast_to(position, whole), ctx.broadcast_to(is_filled, whole),
        ctx.broadcast_to(source, (batch, room)), ctx.broadcast_to(kept, (batch, room)),
    )  # fmt: skip


def _column(ctx: Context, counts: Value) -> Value:
    """Return int32 [B, 1] or [1, 1] of a vector or one number."""
    return ctx.reshape(ctx.cast(counts, "int32"), (-1 if ctx.rank(counts) else 1, 1))


def _kept(ctx: Context, length: Value, room: Size, window: int) -> Value:
    """Return L of so many tokens."""
    together = ctx.size(room - window + 1, "int32")
    beyond = ctx.maximum(ctx.sub(length, ctx.size(room, "int32")), 0)
    dropped = ctx.div(ctx.add(beyond, ctx.sub(together, 1)), together)
    return ctx.sub(length, ctx.mul(dropped, together))
