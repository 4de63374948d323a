"""Matmuls with transpositions, a scale, a bias or an activation, and distances."""

from collections.abc import Callable, Mapping

from tilestitch.compiler.ir import Value

from ...context import Context
from ..activations import tanh_gelu
from ..matmul import convert_gemm, matmul_any_rank
from .activations import activation
from .operator import Operator

FUSED = "alpha transA transB transBatchA transBatchB"
ACTIVATION = "activation activation_alpha activation_beta"


def fused_matmul(ctx: Context) -> Value:
    """Convert FusedMatMul: numpy.matmul of operands transposed first: a batch axis with the rows, then the last two
    axes.
    """
    a, b = (_swapped(ctx, ctx.input(i), letter) for i, letter in enumerate("AB"))
    y = matmul_any_rank(ctx, a, b)
    alpha = ctx.attr("alpha", 1.0)
    return y if alpha == 1.0 else ctx.mul(y, alpha)


def _swapped(ctx: Context, x: Value, letter: str) -> Value:
    rank = ctx.rank(x)
    if ctx.attr("transBatch" + letter, 0) and rank > 2:
        x = ctx.transpose(x, (*range(1, rank - 1), 0, rank - 1))
    return ctx.swap_axes(x, rank - 2, rank - 1) if ctx.attr("trans" + letter, 0) and rank > 1 else x


def with_activation(convert: Callable[[Context], Value]) -> Callable[[Context], Value]:
    """Return a converter that adds the activation named in the node's attributes to `convert`."""

    def converted(ctx: Context) -> Value:
        y, name = convert(ctx), ctx.attr("activation", "")
        if not name:
            return y
        alpha, beta = (ctx.attr(f"activation_{letter}", None) for letter in ("alpha", "beta"))
        return activation(ctx, name, alpha, beta)(y)

    return converted


def gemm_fast_gelu(ctx: Context) -> Value:
    y, bias = matmul_any_rank(ctx, ctx.input(0), ctx.input(1)), ctx.optional(2)
    return tanh_gelu(ctx, y if bias is None else ctx.add(y, bias))


def distances(ctx: Context) -> Value:
    a, b, metric = ctx.input(0), ctx.input(1), ctx.attr("metric", "sqeuclidean")
    of_a, of_b = (ctx.reduce("sum", ctx.mul(x, x), (1,), keep) for x, keep in ((a, True), (b, False)))
    far = ctx.maximum(ctx.sub(ctx.add(of_a, of_b), ctx.mul(ctx.matmul(a, b, trans_b=True), 2.0)), 0.0)
    if metric not in ("euclidean", "sqeuclidean"):
        raise ctx.fail(f"metric is {metric!r}, neither euclidean nor sqeuclidean; correct the node")
    return far if metric == "sqeuclidean" else ctx.emit("sqrt", far)


OPERATORS: Mapping[str, Operator] = {
    "FusedMatMul": Operator(fused_matmul, "A B", FUSED),
    "TransposeMatMul": Operator(fused_matmul, "A B", "alpha transA transB"),
    "FusedMatMulActivation": Operator(with_activation(fused_matmul), "A B", f"{FUSED} {ACTIVATION}"),
    "FusedGemm": Operator(with_activation(convert_gemm), "A B C?", f"alpha beta transA transB {ACTIVATION}"),
    "CDist": Operator(distances, "A B", "metric", "C"),
    "GemmFastGelu": Operator(gemm_fast_gelu, "X W bias?"),
}
