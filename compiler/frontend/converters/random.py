"""Random tensors: host steps that are never folded or merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilestitch.compiler.frontend.builder import dtype_of
from tilestitch.compiler.frontend.context import Context, Versioned
from tilestitch.compiler.ir import AnyRankTensor, TensorType, Type, Value

from .host_types import present


def _generator(name: str, *attributes: str) -> Callable[[Context], Sequence[Value]]:
    """Return a converter of RandomNormal or RandomUniform: shape and dtype are attributes."""

    def convert(ctx: Context) -> Sequence[Value]:
        dtype, shape = ctx.dtype_attr("dtype", "float32"), ctx.attr("shape")
        attrs = present(ctx, "seed", *attributes)
        return ctx.host(name, (), [TensorType(dtype, shape)], shape=shape, dtype=dtype, **attrs)

    return convert


def _like(name: str, *attributes: str) -> Callable[[Context], Sequence[Value]]:
    """Return a converter of RandomNormalLike or RandomUniformLike: shape and (by default) dtype are the operand's."""

    def convert(ctx: Context) -> Sequence[Value]:
        x = ctx.input(0)
        dtype = ctx.dtype_attr("dtype", dtype_of(x))
        attrs = {"dtype": dtype, **present(ctx, "seed", *attributes)}
        if isinstance(x.type, TensorType) and x.type.is_static:
            return ctx.host(name, (), [TensorType(dtype, x.type.shape)], shape=x.type.shape, **attrs)
        return ctx.host(name, (x,), [_with_dtype(x.type, dtype)], **attrs)

    return convert


def _with_dtype(type_: Type, dtype: str) -> Type:
    return type_.with_dtype(dtype) if isinstance(type_, TensorType) else AnyRankTensor(dtype)


def bernoulli(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    dtype = ctx.dtype_attr("dtype", dtype_of(x))
    return ctx.host("Bernoulli", (x,), [_with_dtype(x.type, dtype)], dtype=dtype, **present(ctx, "seed"))


def multinomial(ctx: Context) -> Sequence[Value]:
    x = ctx.input(0)
    ctx.rank(x)
    dtype, count = ctx.dtype_attr("dtype", "int32"), ctx.attr("sample_size", 1)
    type_ = TensorType(dtype, (x.tensor_type.shape[0], count))
    return ctx.host("Multinomial", (x,), [type_], dtype=dtype, sample_size=count, **present(ctx, "seed"))


CONVERTERS: Mapping[str, Sequence[Versioned]] = {
    "RandomNormal": [(1, _generator("RandomNormal", "mean", "scale"))],
    "RandomUniform": [(1, _generator("RandomUniform", "low", "high"))],
    "RandomNormalLike": [(1, _like("RandomNormal", "mean", "scale"))],
    "RandomUniformLike": [(1, _like("RandomUniform", "low", "high"))],
    "Bernoulli": [(15, bernoulli)],
    "Multinomial": [(7, multinomial)],
}
