"""Key and value caches of other kinds: of codes, and of the last tokens only.

Codes have 8 or 4 bits: a number is a code times a scale. A token is quantised when it enters a cache, and attention is
over what the cache holds, new tokens included. The scales do not depend on the token. So those of the keys are applied
to the queries, and those of the values to the result, and attention reads the codes themselves.

A cache that keeps only the last tokens has a capacity that exceeds the window, and old tokens are dropped in batches.
Of T tokens so far the last L(T) are in the first rows of the cache, in order. With capacity C and window W, G = C - W +
1 tokens are dropped at once whenever there is no room for one more: L(T) = T - G * ceil((T - C) / G), or T as long as
all fit. The contents of the other rows are unspecified and may not be finite.
"""

from dataclasses import dataclass

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import Size, bounds_of

from ...builder import dtype_of
from ...context import Context
from ..common import widened
from ..quantization import saturating_cast

ZERO_CODE = 8
"""The 4-bit code of zero: codes 0 to 15 are -8 to 7."""


@dataclass(frozen=True)
class CacheCodes:
    """How a cache stores its tokens: int8 codes, or two 4-bit codes a byte, the lower one first.

    `scale`: float32 [1, 1, 1, 1], or [1, kv_heads, 1, D]: one for each channel.
    """

    bits: int
    scale: Value

    def encoded(self, ctx: Context, x: Value) -> Value:
        """Quantise float [B, kv_heads, S, D]: int8 of this shape, or uint8 [B, kv_heads, S, D / 2]."""
        scaled = ctx.div(widened(ctx, x), self.scale)
        if self.bits == 8:
            return saturating_cast(ctx, scaled, None, "int8")
        codes = ctx.add(ctx.clamp(ctx.emit("round", scaled), -ZERO_CODE, ZERO_CODE - 1), ZERO_CODE)
        *front, depth = ctx.shape(x)
        pairs = ctx.reshape(ctx.cast(codes, "uint8"), (*front, depth // 2, 2))
        low, high = (ctx.reshape(half, (*front, depth // 2)) for half in ctx.split(pairs, len(front) + 1, [1, 1]))
        return ctx.emit("bitwise_or", low, ctx.emit("shift_left", high, ctx.like(4, high)))

    def numbers(self, ctx: Context, codes: Value, dtype: str) -> Value:
        """Return the stored numbers divided by their scale: whole numbers, exact in every float dtype.

        Pairs of 4-bit codes are taken apart: all even channels come first, then all odd ones, so that bytes that lie
        together become numbers that lie together.
        """
        if self.bits == 8:
            return ctx.cast(codes, dtype)
        halves = [
            ctx.emit("bitwise_and", codes, ctx.like(15, codes)),
            ctx.emit("shift_right", codes, ctx.like(4, codes)),
        ]
        return ctx.sub(ctx.cast(ctx.concat(halves, ctx.rank(codes) - 1), dtype), ZERO_CODE)

    def queries(self, ctx: Context, q: Value) -> Value:
        """Return what is multiplied with the `numbers` of keys in place of q [B, heads, S, D]."""
        scaled = self._scaled(ctx, q)
        return scaled if self.bits == 8 else _swapped(ctx, scaled, (ctx.dim(q, 3) // 2, 2))

    def sums(self, ctx: Context, y: Value) -> Value:
        """Return weighted sums of values [B, heads, S, D] from those of their `numbers`."""
        return self._scaled(ctx, y if self.bits == 8 else _swapped(ctx, y, (2, ctx.dim(y, 3) // 2)))

    def _scaled(self, ctx: Context, x: Value) -> Value:
        """Multiply x [B, heads, S, D] by the scales of each head's keys or values, which adjacent heads share."""
        _, kv_heads, _, depth = ctx.shape(self.scale)
        scale = ctx.cast(self.scale, dtype_of(x))
        sharing = ctx.dim(x, 1) // kv_heads
        if kv_heads > 1 and sharing > 1:
            spread = ctx.broadcast_to(ctx.expand_dims(scale, (2,)), (1, kv_heads, sharing, 1, depth))
            scale = ctx.reshape(spread, (1, kv_heads * sharing, 1, depth))
        return ctx.mul(x, scale)


def _swapped(ctx: Context, x: Value, sizes: tuple[Size, Size]) -> Value:
    """Return x with the last axis, of sizes[0] groups of sizes[1] channels, in the order of the channels first."""
    front = ctx.shape(x)[:-1]
    pairs = ctx.reshape(x, (*front, *sizes))
    return ctx.reshape(ctx.swap_axes(pairs, len(front), len(front) + 1), ctx.shape(x))


def codes_of(ctx: Context, kind: str, scale_index: int, new: Value) -> CacheCodes | None:
    """Return how the cache of `new` keys or values [B, kv_heads, S, D] is stored by attribute `kind`; None for as they
    are.
    """
    granularity, bits, scale = ctx.attr(kind, "NONE"), ctx.attr("kv_cache_bit_width", 0), ctx.optional(scale_index)
    if granularity == "NONE":
        if bits:
            raise ctx.fail(f"kv_cache_bit_width is {bits}, but {kind} is NONE; set both, or leave both out")
        return None
    _, heads, _, depth = ctx.shape(new)
    shapes = {"PER_TENSOR": (1, 1, 1, 1), "PER_CHANNEL": (1, heads, 1, depth)}
    if granularity not in shapes:
        raise ctx.fail(f"{kind} is {granularity!r}, none of 'NONE', 'PER_TENSOR' and 'PER_CHANNEL'; correct the model")
    if bits not in (4, 8):
        raise ctx.fail(f"kv_cache_bit_width is {bits}; caches with {kind} {granularity} have 4 or 8; correct the model")
    if bits == 4 and depth % 2:
        raise ctx.fail(f"heads of {depth} elements cannot be stored as pairs of 4-bit codes; use kv_cache_bit_width 8")
    if scale is None:
        raise ctx.fail(f"{kind} is {granularity}, which needs {kind[0]}_scale; correct the model")
    count = 1 if granularity == "PER_TENSOR" else heads * depth
    if scale.tensor_type.num_elements != count:
        raise ctx.fail(
            f"{kind[0]}_scale of type {scale.type} does not have the {count} elements of {granularity}; correct it"
        )
    return CacheCodes(bits, ctx.reshape(scale, shapes[granularity]))


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
