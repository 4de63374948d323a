"""Key and value caches of 8-bit or 4-bit codes: a number is a code times a scale.

A token is quantised when it enters a cache, and attention is over what the cache holds, new tokens included. The scales
do not depend on the token. So those of the keys are applied to the queries, and those of the values to the result, and
attention reads the codes themselves.
"""

from dataclasses import dataclass

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.sizes import Size

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
