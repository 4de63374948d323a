"""The operator table: each primitive once, with its kind, its type rule and its meaning.

Its numeric semantics is the numpy function of the same name in `tilestitch.runtime.host`, which the runtime also
executes for host steps; `reference` looks it up. Attribute conventions: shapes, axes and pads are tuples of ints, axes
are normalised (0 <= axis < rank), dtypes are strings. Element-wise operators broadcast as numpy does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from . import type_rules as rule
from .errors import IRError, TypeRuleError
from .types import Type

InferFn = Callable[[Sequence[Type], Mapping[str, Any]], list[Type]]


class Kind(str, Enum):
    """Kind of operator, as far as code generation and fusion distinguish."""

    VIEW = "view"  # every output element is one input element; only indices change
    INJECTIVE = "injective"  # an output element needs a bounded number of input elements
    REDUCTION = "reduction"  # reduces whole axes
    CONTRACTION = "contraction"  # multiplies and sums over axes: matmuls, convolutions
    OPAQUE = "opaque"  # has a kernel template of its own (sort, scan, scatter, pooling)
    HOST = "host"  # executed by numpy between kernels
    CONTROL = "control"  # if, loop, scan: executed by the runtime over nested programs


@dataclass(frozen=True)
class OpSpec:
    """One primitive. `attrs` maps attribute names to whether they are required; `expensive` marks many-cycle maths."""

    name: str
    kind: Kind
    infer: InferFn
    arity: tuple[int, int]
    attrs: Mapping[str, bool]
    doc: str
    expensive: bool = False


def _spec(
    name: str,
    kind: Kind,
    infer: InferFn,
    arity: int | tuple[int, int],
    doc: str,
    *,
    expensive: bool = False,
    **attrs: bool,
) -> OpSpec:
    return OpSpec(name, kind, infer, (arity, arity) if isinstance(arity, int) else arity, attrs, doc, expensive)


_REQUIRED, _OPTIONAL = True, False
_MANY = 1 << 30


def _unary(names: str, infer: InferFn, doc: str, *, expensive: bool = False, **attrs: bool) -> list[OpSpec]:
    return [_spec(n, Kind.INJECTIVE, infer, 1, f"{n}: {doc}", expensive=expensive, **attrs) for n in names.split()]


def _binary(names: str, infer: InferFn, doc: str, *, expensive: bool = False, **attrs: bool) -> list[OpSpec]:
    return [_spec(n, Kind.INJECTIVE, infer, 2, f"{n}: {doc}", expensive=expensive, **attrs) for n in names.split()]


_SPECS: list[OpSpec] = [
    # element-wise, one operand
    *_unary("neg abs sign", rule.same_numeric, "arithmetic"),
    *_unary("floor ceil round trunc", rule.same_float, "to an integral value; round is half-to-even"),
    *_unary("sqrt", rule.same_float, "square root"),
    *_unary(
        "exp log sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf",
        rule.same_float,
        "transcendental function",
        expensive=True,
    ),
    *_unary("is_nan", rule.float_to_bool, "test"),
    *_unary("is_inf", rule.float_to_bool, "test; attrs say which signs count", positive=_REQUIRED, negative=_REQUIRED),
    *_unary("logical_not", rule.same_bool, "on bool"),
    *_unary("bitwise_not", rule.same_integer, "on integers"),
    *_unary(
        "cast",
        rule.cast,
        "ONNX Cast to dtype `to`; `saturate` and `round_mode` matter for 8-bit floats",
        to=_REQUIRED,
        saturate=_OPTIONAL,
        round_mode=_OPTIONAL,
    ),
    *_unary("bit_cast", rule.bit_cast, "reinterpret the bits as dtype `to` of the same width", to=_REQUIRED),
    *_unary(
        "look_up",
        rule.look_up,
        "the entry of `table`, 256 numbers of dtype `to`, at the bits of an 8-bit integer, as an unsigned number",
        table=_REQUIRED,
        to=_REQUIRED,
    ),
    # element-wise, two and three operands (numpy broadcasting)
    *_binary("add sub", rule.same_pair, "arithmetic, integers wrap"),
    *_binary(
        "mul",
        rule.same_pair,
        "arithmetic, integers wrap; a `rounded` product of floats is one before it is added to",
        rounded=_OPTIONAL,
    ),
    *_binary("div", rule.same_pair, "true division of floats; integers divide towards zero, x/0 is 0"),
    *_binary("mod", rule.same_pair, "remainder with the sign of the divisor (numpy.mod); x mod 0 of integers is 0"),
    *_binary("fmod", rule.same_pair, "remainder with the sign of the dividend (numpy.fmod)"),
    *_binary("pow", rule.power, "base and exponent may differ in dtype; the result has the base's", expensive=True),
    *_binary("maximum minimum", rule.same_pair, "NaN if either is NaN"),
    *_binary("equal less less_equal", rule.compare, "comparison to bool"),
    *_binary("logical_and logical_or logical_xor", rule.same_bool_pair, "on bool"),
    *_binary("bitwise_and bitwise_or bitwise_xor", rule.same_integer_pair, "on integers"),
    *_binary(
        "shift_left shift_right",
        rule.same_integer_pair,
        "right shift of signed is arithmetic; a shift outside 0..width-1 leaves copies of the sign (right) or 0",
    ),
    _spec("select", Kind.INJECTIVE, rule.select, 3, "select(cond, a, b): a where cond else b"),
    # views
    _spec(
        "reshape",
        Kind.VIEW,
        rule.reshape,
        1,
        "row-major reinterpretation; one -1 allowed if sizes are symbolic",
        shape=_REQUIRED,
    ),
    _spec("transpose", Kind.VIEW, rule.transpose, 1, "output axis i is input axis perm[i]", perm=_REQUIRED),
    _spec("broadcast_to", Kind.VIEW, rule.broadcast_to, 1, "numpy.broadcast_to", shape=_REQUIRED),
    _spec(
        "slice",
        Kind.VIEW,
        rule.slice_,
        1,
        "out[i] = x[starts + i*steps], sizes many a dimension; steps may be negative",
        starts=_REQUIRED,
        steps=_REQUIRED,
        sizes=_REQUIRED,
    ),
    # injective data movement
    _spec("concat", Kind.INJECTIVE, rule.concat, (1, _MANY), "along `axis`", axis=_REQUIRED),
    _spec(
        "pad",
        Kind.INJECTIVE,
        rule.pad,
        (1, 2),
        "mode constant (second operand: scalar value, default 0), edge, reflect, wrap; pads >= 0",
        before=_REQUIRED,
        after=_REQUIRED,
        mode=_REQUIRED,
    ),
    _spec(
        "iota",
        Kind.INJECTIVE,
        rule.iota,
        0,
        "index along `axis` in a tensor of `shape`",
        shape=_REQUIRED,
        axis=_REQUIRED,
        dtype=_REQUIRED,
    ),
    _spec(
        "sizes",
        Kind.INJECTIVE,
        rule.sizes,
        0,
        "sizes, in row-major order: integers, and expressions over symbols",
        values=_REQUIRED,
        shape=_REQUIRED,
        dtype=_REQUIRED,
    ),
    _spec(
        "gather",
        Kind.INJECTIVE,
        rule.gather,
        2,
        "numpy.take(x, indices, axis); negative indices count from the end; out of range is an error",
        axis=_REQUIRED,
    ),
    _spec("gather_elements", Kind.INJECTIVE, rule.gather_elements, 2, "ONNX GatherElements", axis=_REQUIRED),
    _spec("gather_nd", Kind.INJECTIVE, rule.gather_nd, 2, "ONNX GatherND", batch_dims=_REQUIRED),
    # reductions
    *[
        _spec(
            n,
            Kind.REDUCTION,
            rule.reduce,
            1,
            f"{n} over `axes` (all given explicitly); half floats accumulate in float32",
            axes=_REQUIRED,
            keepdims=_REQUIRED,
        )
        for n in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
    ],
    _spec(
        "reduce_and",
        Kind.REDUCTION,
        rule.reduce_bits,
        1,
        "the bits that all integers over `axes` have; all bits over none",
        axes=_REQUIRED,
        keepdims=_REQUIRED,
    ),
    *[
        _spec(
            n,
            Kind.REDUCTION,
            rule.arg_reduce,
            1,
            "index of the extreme element along `axis`, int64; `select_last` settles ties",
            axis=_REQUIRED,
            keepdims=_REQUIRED,
            select_last=_REQUIRED,
        )
        for n in ("arg_max", "arg_min")
    ],
    # contractions
    _spec(
        "matmul",
        Kind.CONTRACTION,
        rule.matmul,
        2,
        "numpy.matmul of operands of rank >= 2 with batch broadcasting; trans_* swap the last two axes of an operand; "
        "`out_dtype` widens (int8 -> int32, float16 -> float32); `precision` tf32 lets kernels round float32 operands",
        trans_a=_OPTIONAL,
        trans_b=_OPTIONAL,
        out_dtype=_OPTIONAL,
        precision=_OPTIONAL,
    ),
    _spec(
        "block_matmul",
        Kind.CONTRACTION,
        rule.block_matmul,
        (2, 3),
        "x[.., K] times the transpose of weights in blocks that share a scale, uint8[N, blocks, bytes of one], or x[B, "
        "M, K] times those that indices[B], as of a gather, choose of uint8[E, N, blocks, bytes]: each "
        "has `block` codes, 4 bits each (low halves of bytes first) or 8, a scale, and perhaps a zero point; `rounds`: "
        "x is rounded to 8 bits before, each block of a row by a scale of its own, the largest magnitude over 127; "
        "`out_dtype` and `precision` as for matmul",
        codes=_REQUIRED,
        block=_REQUIRED,
        scales=_REQUIRED,
        zeros=_REQUIRED,
        depth=_REQUIRED,
        rounds=_OPTIONAL,
        out_dtype=_OPTIONAL,
        precision=_OPTIONAL,
    ),
    _spec(
        "conv",
        Kind.CONTRACTION,
        rule.conv,
        2,
        "cross-correlation. layout NCX: x[N,C,spatial..], w[O,C/g,k..]; layout NXC: x[N,spatial..,C], w[k..,C/g,O]; "
        "zero padding before/after; `out_dtype` and `precision` as for matmul",
        strides=_REQUIRED,
        before=_REQUIRED,
        after=_REQUIRED,
        dilations=_REQUIRED,
        groups=_REQUIRED,
        layout=_REQUIRED,
        out_dtype=_OPTIONAL,
        precision=_OPTIONAL,
    ),
    _spec(
        "conv_transpose",
        Kind.CONTRACTION,
        rule.conv_transpose,
        2,
        "gradient of conv with respect to x. NCX: w[C,O/g,k..]; NXC: w[k..,C,O/g]; "
        "output size = (in-1)*stride + (k-1)*dilation + 1 - before - after + output_padding",
        strides=_REQUIRED,
        before=_REQUIRED,
        after=_REQUIRED,
        dilations=_REQUIRED,
        groups=_REQUIRED,
        output_padding=_REQUIRED,
        layout=_REQUIRED,
        out_dtype=_OPTIONAL,
        precision=_OPTIONAL,
    ),
    # opaque: each has a template of its own
    _spec(
        "window_reduce",
        Kind.OPAQUE,
        rule.window_reduce,
        1,
        "sliding-window `reducer` (sum, max) over the spatial axes; padding counts as the reducer's identity",
        reducer=_REQUIRED,
        kernel=_REQUIRED,
        strides=_REQUIRED,
        before=_REQUIRED,
        after=_REQUIRED,
        dilations=_REQUIRED,
        layout=_REQUIRED,
    ),
    _spec(
        "cumulative",
        Kind.OPAQUE,
        rule.same_numeric,
        1,
        "running `reducer` (sum, prod) along `axis`",
        axis=_REQUIRED,
        reducer=_REQUIRED,
        exclusive=_REQUIRED,
        reverse=_REQUIRED,
    ),
    _spec(
        "top_k",
        Kind.OPAQUE,
        rule.top_k,
        1,
        "values and int64 indices of the k extreme elements along `axis`, sorted; equal elements: lower index first",
        k=_REQUIRED,
        axis=_REQUIRED,
        largest=_REQUIRED,
    ),
    _spec(
        "order_rows",
        Kind.OPAQUE,
        rule.order_rows,
        1,
        "int64 [N]: the numbers of the rows of x [N, M] as dictionaries order them, by the first element that differs; "
        "NaN is above all numbers, and of equal rows the first comes first",
    ),
    _spec(
        "scatter_elements",
        Kind.OPAQUE,
        rule.scatter_elements,
        3,
        "ONNX ScatterElements; reduction none, add, mul, max, min",
        axis=_REQUIRED,
        reduction=_REQUIRED,
    ),
    _spec(
        "scatter_nd",
        Kind.OPAQUE,
        rule.scatter_nd,
        3,
        "ONNX ScatterND; reduction none, add, mul, max, min",
        reduction=_REQUIRED,
    ),
    _spec(
        "suppress",
        Kind.OPAQUE,
        rule.suppress,
        5,
        "ONNX NonMaxSuppression of all classes: boxes [B, N, 4], scores [B, C, N], at most so many of each, overlap, "
        "least score. int64 numbers [B, C, N] of the boxes that are kept, best first, and how many they are [B, C]; "
        "what stands after these is undefined. `centers`: boxes are centres and sizes",
        centers=_REQUIRED,
    ),
    _spec(
        "tally",
        Kind.OPAQUE,
        rule.tally,
        1,
        "how many of each `block` elements of a mask are true, in row-major order; the last ones may be fewer",
        block=_REQUIRED,
    ),
    _spec(
        "compact",
        Kind.OPAQUE,
        rule.compact,
        2,
        "int64 [rank, count]: where a mask is true, in row-major order, a row for each axis. ends: how many are true "
        "in each `block` elements and all before them; the last of these is `count`",
        block=_REQUIRED,
        count=_REQUIRED,
    ),
    _spec(
        "roi_align",
        Kind.OPAQUE,
        rule.roi_align,
        3,
        "ONNX RoiAlign of x [B, C, H, W] (layout NCX) or [B, H, W, C] (NXC), regions [R, 4] and the image of each [R]; "
        "the result is [R, C, bins..]; `ratio` samples a bin along each axis, 0: as many as it has elements; `offset` "
        "is subtracted from scaled corners",
        mode=_REQUIRED,
        size=_REQUIRED,
        ratio=_REQUIRED,
        scale=_REQUIRED,
        offset=_REQUIRED,
        layout=_REQUIRED,
    ),
    _spec(
        "append",
        Kind.OPAQUE,
        rule.append,
        (1, 3),
        "x along `axis` from place `at` on, or at places (int64 [batch or 1, rows]) in `until`, of `capacity`; what "
        "stands elsewhere was there before the run, in the memory that the result is written to: that of `cache`. "
        "`clears`: from the last row's place to `until`, or to the third operand (int64 [1]), there are zeros",
        cache=_REQUIRED,
        axis=_REQUIRED,
        at=_OPTIONAL,
        capacity=_REQUIRED,
        until=_OPTIONAL,
        clears=_OPTIONAL,
    ),
    # control: operands are loop state first, then captured outer values; nested graphs take them all as inputs
    _spec(
        "if",
        Kind.CONTROL,
        rule.stated,
        (1, _MANY),
        "if(cond, captures..): both branch graphs take all captures",
        then_graph=_REQUIRED,
        else_graph=_REQUIRED,
    ),
    _spec(
        "call",
        Kind.CONTROL,
        rule.stated,
        (0, _MANY),
        "call(operands..): what body(operands..) gives, whose symbols are found in their shapes",
        body=_REQUIRED,
    ),
    _spec(
        "loop",
        Kind.CONTROL,
        rule.stated,
        (2, _MANY),
        "ONNX Loop: loop(max_trip, cond, carried.., captures..); absent max_trip/cond are host.none; "
        "body(iteration, cond, carried.., captures..) -> cond, carried.., scan outputs..",
        body=_REQUIRED,
        num_carried=_REQUIRED,
    ),
    _spec(
        "scan",
        Kind.CONTROL,
        rule.stated,
        (1, _MANY),
        "ONNX Scan: scan(state.., scanned.., captures..); body(state.., elements.., captures..) -> state.., elements..",
        body=_REQUIRED,
        num_state=_REQUIRED,
        num_scanned=_REQUIRED,
        input_axes=_REQUIRED,
        input_reverse=_REQUIRED,
        output_axes=_REQUIRED,
        output_reverse=_REQUIRED,
    ),
    _spec(
        "sequence_map",
        Kind.CONTROL,
        rule.stated,
        (1, _MANY),
        "ONNX SequenceMap: sequence_map(sequence, others.., captures..)",
        body=_REQUIRED,
        num_inputs=_REQUIRED,
    ),
]

OPS: Mapping[str, OpSpec] = {spec.name: spec for spec in _SPECS}

HOST_PREFIX = "host."
"""Operators named `host.X` run as the numpy function `X` of `tilestitch.runtime.host`; their output types are
stated.
"""


def op_spec(op: str) -> OpSpec:
    """Return the specification of an operator; IRError for an unknown name."""
    if op in OPS:
        return OPS[op]
    if op.startswith(HOST_PREFIX):
        return OpSpec(op, Kind.HOST, rule.stated, (0, _MANY), {}, "numpy function executed between kernels")
    raise IRError(f"unknown operator {op!r}; known: {', '.join(OPS)} and host.*")


DATA_MOVEMENT = frozenset({"concat", "pad", "iota", "sizes", "gather", "gather_elements", "gather_nd"})
"""Injective operators whose result has the operands' elements at other positions."""


def kind_of(op: str) -> Kind:
    return OPS[op].kind if op in OPS else op_spec(op).kind


def is_elementwise(op: str) -> bool:
    """Return whether an output element depends only on the operands' elements at the same (broadcast) index."""
    return kind_of(op) is Kind.INJECTIVE and op not in DATA_MOVEMENT


def infer_types(
    op: str, inputs: Sequence[Type], attrs: Mapping[str, Any], stated: Sequence[Type] | None = None
) -> list[Type]:
    """Return the output types of `op`. Host and control operators need `stated`; for others it must be None.

    Raises TypeRuleError if operands or attributes do not fit, with the operator and the operand types.
    """
    spec = op_spec(op)
    where = f"{op}({', '.join(map(str, inputs))})"
    if not spec.arity[0] <= len(inputs) <= spec.arity[1]:
        raise TypeRuleError(f"{where}: takes {spec.arity[0]} to {spec.arity[1]} operands, got {len(inputs)}")
    _check_attrs(spec, attrs, where)
    if spec.kind in (Kind.HOST, Kind.CONTROL):
        if stated is None:
            raise TypeRuleError(f"{where}: output types of host and control operators must be stated")
        return list(stated)
    if stated is not None:
        raise TypeRuleError(f"{where}: its type rule gives the output types; do not state them")
    try:
        return spec.infer(inputs, attrs)
    except TypeRuleError as error:
        raise TypeRuleError(f"{where}: {error}") from None
    except IRError as error:
        raise TypeRuleError(f"{where}: {error}") from error


def _check_attrs(spec: OpSpec, attrs: Mapping[str, Any], where: str) -> None:
    if spec.kind is Kind.HOST:
        return
    missing = [a for a, required in spec.attrs.items() if required and a not in attrs]
    unknown = [a for a in attrs if a not in spec.attrs]
    if missing or unknown:
        raise TypeRuleError(
            f"{where}: attributes missing: {missing}, unknown: {unknown}; it takes {sorted(spec.attrs)}"
        )


def reference(op: str) -> Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]]:
    """Return the numpy function that defines `op`: takes operand arrays and attributes, returns the outputs."""
    from tilestitch.runtime.host import TABLE

    return TABLE[op.removeprefix(HOST_PREFIX)]
