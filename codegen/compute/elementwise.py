"""Element-wise primitives: operand expressions to a result expression.

Operands and results are in `compute_dtype` of their values. A function takes the node, its operands and `bind`, which
names an expression that is used more than once. Signed arithmetic goes through unsigned integers, so that it wraps, and
LLVM cannot assume that it does not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.compiler.ir.graph import Node
from tilestitch.compiler.ir.ops import Kind, kind_of
from tilestitch.compiler.ir.types import HALVES, dtype_kind, is_float

from . import vecmath
from .dtypes import (
    Bind,
    Expr,
    compute_dtype,
    dtype_of,
    from_storage,
    immediate,
    is_nan,
    literal,
    not_equal,
    revealed,
    round_half,
    storage_bits,
    storage_dtype,
    to_storage,
)
from .float8 import SMALL, clamped
from .tables import looked_up


@dataclass(frozen=True)
class Operation:
    """Arguments of a rule: the node, its operands as expressions, `bind`."""

    node: Node
    operands: Sequence[Expr]
    bind: Bind

    @property
    def dtype(self) -> str:
        """The dtype of the (first) operand in the graph."""
        return self.node.inputs[0].dtype

    @property
    def compute(self) -> str:
        return compute_dtype(self.dtype)

    def constant(self, number: float) -> Expr:
        return immediate(number, self.dtype)


Rule = Callable[[Operation], Expr]


# -- helpers -----------------------------------------------------------------------------------------------------


def _wrapping(dtype: str, function: Callable[..., Expr], *operands: Expr) -> Expr:
    """Return `function` of integers modulo 2**bits."""
    if dtype_kind(dtype) != "int":
        return function(*operands)
    return T.cast(function(*(_unsigned(o, f"u{dtype}") for o in operands)), dtype)


def _unsigned(x: Expr, dtype: str) -> Expr:
    """Return the bits of an integer as `dtype`. TVM refuses to convert a negative constant."""
    known = _constant_integer(x)
    return T.cast(x, dtype) if known is None else literal(known % (1 << storage_bits(dtype)), dtype)


def _arithmetic(function: Callable[[Expr, Expr], Expr]) -> Rule:
    return lambda op: _wrapping(op.compute, function, *op.operands)


def _exact(op: Operation) -> list[Expr]:
    """Return operands rounded to their dtype, for operators that are discontinuous."""
    return [op.bind(round_half(x, op.dtype)) for x in op.operands]


def _float_map(function: Callable[[Expr], Expr]) -> Rule:
    return lambda op: function(*op.operands)


def _jumping_map(function: Callable[[Expr], Expr]) -> Rule:
    return lambda op: function(*_exact(op))


def is_rounded(op: Operation) -> bool:
    """Return whether the compiler must not fuse this product with a sum."""
    return is_float(op.dtype) and bool(op.node.attrs.get("rounded"))


def product(a: Expr, b: Expr) -> Expr:
    """Return the product of two floats, rounded: otherwise LLVM contracts it with a following addition."""
    return _fenced(a * b)


def _fenced(x: Expr) -> Expr:
    return T.call_llvm_pure_intrin(dtype_of(x), "llvm.arithmetic.fence", x)


def _mul(op: Operation) -> Expr:
    return product(*op.operands) if is_rounded(op) else _arithmetic(lambda a, b: a * b)(op)


def _sub(op: Operation) -> Expr:
    x, y = op.operands
    # A product that is not rounded differs from its maximum, by large numbers where it is large.
    x = _fenced(x) if is_float(op.dtype) and subtracts_maximum(op.node) else x
    return _arithmetic(lambda a, b: a - b)(Operation(op.node, (x, y), op.bind))


# -- one operand -------------------------------------------------------------------------------------------------


def _negate_unsigned(u: Expr) -> Expr:
    # TVM treats 0 - u of unsigned numbers as an error.
    return T.bitwise_not(u) + tirx.IntImm(dtype_of(u), 1)


def _neg(op: Operation) -> Expr:
    (x,) = op.operands
    if is_float(op.dtype):
        return x * op.constant(-1.0)
    return _wrapping(op.compute, _negate_unsigned, x)


def _abs(op: Operation) -> Expr:
    (x,) = op.operands
    if is_float(op.dtype):
        return T.fabs(x)
    if dtype_kind(op.dtype) == "uint":
        return x
    return tirx.Select(x < op.constant(0), _neg(op), x)


def _sign(op: Operation) -> Expr:
    (x,) = _exact(op)
    zero, one = op.constant(0), op.constant(1)
    if dtype_kind(op.dtype) == "uint":
        return tirx.Select(x > zero, one, zero)
    return tirx.Select(x > zero, one, tirx.Select(x < zero, op.constant(-1), x))


def _libm(name: str) -> Callable[[Expr], Expr]:
    """Return a function that is an LLVM intrinsic, which calls libm for each lane."""
    return lambda x: T.call_llvm_pure_intrin(dtype_of(x), f"llvm.{name}", x)


def _transcendental(name: str) -> Rule:
    """Return the polynomial if there is one for the dtype, else LLVM's intrinsic."""
    single = _POLYNOMIALS_32.get(name)
    double = _POLYNOMIALS_64.get(name)

    def rule(op: Operation) -> Expr:
        (x,) = op.operands
        if op.compute == "float32" and single is not None:
            return single(x, op.bind)
        if op.compute == "float64" and double is not None:
            return double(x, op.bind)
        return _libm(name)(x)

    return rule


def _exp(op: Operation) -> Expr:
    exponent = op.node.inputs[0].producer
    if exponent is not None and op.dtype in ("float32", "float64") and _is_below_maximum(exponent):
        return vecmath.exp_of_negative(op.operands[0], op.bind)
    return _transcendental("exp")(op)


def _is_below_maximum(difference: Node) -> bool:
    """Return whether a difference is x - max(x), as in a softmax: no positive number."""
    if difference.op != "sub":
        return False
    x, maximum = difference.inputs
    peak = maximum.producer
    return peak is not None and peak.op == "reduce_max" and peak.attrs["keepdims"] and peak.inputs[0] is x


def subtracts_maximum(difference: Node) -> bool:
    """Return whether a difference is x - max(x), or for some elements another number, as in logarithms of sums, and x
    may be computed anew for it.
    """
    x, peak = difference.inputs
    if x.producer is None or kind_of(x.producer.op) not in (Kind.INJECTIVE, Kind.VIEW):
        return False
    choices = peak.producer.inputs if peak.producer is not None and peak.producer.op == "select" else [peak]
    makers = [choice.producer for choice in choices]
    return any(node is not None and node.op == "reduce_max" and node.inputs[0] is x for node in makers)


def _through_float64(function: Callable[[Expr, Bind], Expr]) -> Rule:
    """Return a formula in float64, also for float32 operands."""

    def rule(op: Operation) -> Expr:
        (x,) = op.operands
        return T.cast(function(op.bind(T.cast(x, "float64")), op.bind), op.compute)

    return rule


def _asinh(x: Expr, bind: Bind) -> Expr:
    one, magnitude = immediate(1.0, "float64"), bind(T.fabs(x))
    huge = magnitude > immediate(1e150, "float64")  # its square would overflow
    square = bind(magnitude * magnitude)
    near = vecmath.log1p(bind(magnitude + square / (one + T.sqrt(square + one))), bind)
    far = vecmath.log(magnitude, bind) + immediate(0.6931471805599453, "float64")
    return vecmath.copy_sign(bind(tirx.Select(huge, far, near)), x)


def _acosh(x: Expr, bind: Bind) -> Expr:
    one = immediate(1.0, "float64")
    huge = x > immediate(1e150, "float64")
    excess = bind(x - one)
    near = vecmath.log1p(bind(excess + T.sqrt(excess * (x + one))), bind)
    far = vecmath.log(x, bind) + immediate(0.6931471805599453, "float64")
    result = bind(tirx.Select(huge, far, near))
    return bind(tirx.Select(x < one, immediate(float("nan"), "float64"), result))


def _atanh(x: Expr, bind: Bind) -> Expr:
    magnitude = bind(T.fabs(x))
    twice = magnitude + magnitude
    result = vecmath.log1p(bind(twice / (immediate(1.0, "float64") - magnitude)), bind) * immediate(0.5, "float64")
    nan = immediate(float("nan"), "float64")
    result = bind(tirx.Select(magnitude > immediate(1.0, "float64"), nan, result))
    return vecmath.copy_sign(bind(result), x)


_TRANSCENDENTAL = ("log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "erf")
_POLYNOMIALS_32: Mapping[str, Callable[[Expr, Bind], Expr]] = {
    "exp": vecmath.exp, "log": vecmath.log, "tanh": vecmath.tanh, "erf": vecmath.erf,
    "sin": vecmath.sin, "cos": vecmath.cos, "tan": vecmath.tan, "asin": vecmath.asin, "acos": vecmath.acos,
    "atan": vecmath.atan, "sinh": vecmath.sinh, "cosh": vecmath.cosh,
}  # fmt: skip
_POLYNOMIALS_64: Mapping[str, Callable[[Expr, Bind], Expr]] = {
    "exp": vecmath.exp, "log": vecmath.log, "erf": vecmath.erf,
}  # fmt: skip


def _is_nan(op: Operation) -> Expr:
    return is_nan(*op.operands)


def _is_inf(op: Operation) -> Expr:
    (x,) = _exact(op)
    tests = [
        tirx.EQ(x, op.constant(s * float("inf")))
        for s, on in ((1, op.node.attrs["positive"]), (-1, op.node.attrs["negative"]))
        if on
    ]
    return tirx.Or(*tests) if len(tests) == 2 else tests[0] if tests else tirx.And(is_nan(x), tirx.EQ(x, x))


def _cast(op: Operation) -> Expr:
    x, to = op.bind(round_half(op.operands[0], op.dtype)), op.node.attrs["to"]
    if to in SMALL and to != op.dtype and op.node.attrs.get("saturate", True):
        return round_half(op.bind(clamped(op.bind(convert(x, op.dtype, "float32", op.bind)), to)), to)
    return convert(x, op.dtype, to, op.bind)


def convert(x: Expr, source: str, target: str, bind: Bind) -> Expr:
    """Return `x` of dtype `source` as dtype `target`, both in compute form. Out-of-range floats give some integer, no
    trap.
    """
    if source == target:
        return x
    to = compute_dtype(target)
    if target == "bool":
        return not_equal(x, immediate(0, source))
    if source == "bool":
        return tirx.Select(x, immediate(1, target), immediate(0, target))
    if is_float(source) and dtype_kind(target) in ("int", "uint"):
        # As C compilers and numpy do: through a wider signed integer, then modulo 2**bits.
        wide = {"int64": "int64", "uint64": "uint64", "uint32": "int64"}.get(target, "int32")
        integer = _to_uint64(x, bind) if wide == "uint64" else T.cast(x, wide)
        return integer if wide == to else T.cast(integer, to)
    if target in HALVES or target in SMALL:
        single = x if dtype_of(x) == "float32" else T.cast(x, "float32")
        return round_half(bind(single), target)
    return x if dtype_of(x) == to else T.cast(x, to)


def _to_uint64(x: Expr, bind: Bind) -> Expr:
    """Return a float as uint64. Negative numbers wrap; those from 2**63 on keep their value."""
    limit = immediate(float(1 << 63), "float64" if dtype_of(x) == "float64" else "float32")
    big = bind(T.cast(T.cast(x - limit, "int64"), "uint64"))
    top = immediate(1 << 63, "uint64")
    return tirx.Select(x < limit, T.cast(T.cast(x, "int64"), "uint64"), T.bitwise_xor(big, top))


def _bit_cast(op: Operation) -> Expr:
    target = op.node.attrs["to"]
    stored = to_storage(op.operands[0], op.dtype)
    source_bits, target_bits = dtype_of(stored), storage_dtype(target)
    bits = stored if source_bits == target_bits else T.reinterpret(target_bits, stored)
    return from_storage(op.bind(bits), target)


def _look_up(op: Operation) -> Expr:
    return looked_up(op.operands[0], op.dtype, op.node.attrs["table"], op.node.attrs["to"], op.bind)


# -- two operands ------------------------------------------------------------------------------------------------


def _constant_integer(x: Expr) -> int | None:
    constant = revealed(x)
    return int(constant.value) if isinstance(constant, tirx.IntImm) else None


def _integer_division(op: Operation, whole: Callable[[Expr, Expr], Expr], by_minus_one: Callable[[Expr], Expr]) -> Expr:
    """Return `whole(x, y)`, but 0 for y = 0 and `by_minus_one(x)` for y = -1, where the hardware would trap."""
    x, y = op.operands
    known = _constant_integer(y)
    if known is not None and known not in (0, -1):
        return whole(x, y)
    zero, one = op.constant(0), op.constant(1)
    is_zero = tirx.EQ(y, zero)
    if dtype_kind(op.dtype) == "uint":
        safe = op.bind(tirx.Select(is_zero, one, y))
        return tirx.Select(is_zero, zero, whole(x, safe))
    is_minus_one = tirx.EQ(y, op.constant(-1))
    safe = op.bind(tirx.Select(tirx.Or(is_zero, is_minus_one), one, y))
    result = op.bind(whole(x, safe))
    return tirx.Select(is_zero, zero, tirx.Select(is_minus_one, by_minus_one(x), result))


def _div(op: Operation) -> Expr:
    if is_float(op.dtype):
        x, y = op.operands
        return tirx.Div(x, y)
    return _integer_division(op, tirx.Div, lambda x: _wrapping(op.compute, _negate_unsigned, x))


def _fmod(op: Operation) -> Expr:
    if is_float(op.dtype):
        x, y = _exact(op)
        return vecmath.fmod(x, y, op.bind)
    return _integer_division(op, tirx.Mod, lambda x: op.constant(0))


def _mod(op: Operation) -> Expr:
    rest = op.bind(_fmod(op))
    if dtype_kind(op.dtype) == "uint":
        return rest
    y, zero = op.operands[1], op.constant(0)
    if is_float(op.dtype):
        y = op.bind(round_half(y, op.dtype))
        opposite = tirx.Or(tirx.And(rest < zero, y > zero), tirx.And(rest > zero, y < zero))
        # A remainder of zero has the divisor's sign.
        signed_zero = vecmath.copy_sign(zero, y)
        return tirx.Select(opposite, rest + y, tirx.Select(tirx.EQ(rest, zero), signed_zero, rest))
    opposite = tirx.Or(tirx.And(rest < zero, y > zero), tirx.And(rest > zero, y < zero))
    return tirx.Select(opposite, rest + y, rest)


def _pow(op: Operation) -> Expr:
    base, exponent = op.operands
    exponent_dtype = op.node.inputs[1].dtype
    constant = _constant_number(op.node.inputs[1].data)
    if constant is not None and constant in (0, 1, 2, 3, 4) and not (constant == 0 and not is_float(op.dtype)):
        return _small_power(op, int(constant))
    if is_float(op.dtype):
        if constant is not None and constant in (-1, 0.5, -0.5):
            return _root_or_inverse(op, constant)
        if op.compute == "float64":
            power = convert(exponent, exponent_dtype, "float64", op.bind)
            return T.call_llvm_pure_intrin("float64", "llvm.pow", base, power)
        return vecmath.power(base, op.bind(convert(exponent, exponent_dtype, "float32", op.bind)), op.bind)
    return _integer_power(op, base, exponent, exponent_dtype)


def _constant_number(data: object) -> float | None:
    return None if data is None or data.size != 1 else float(data.reshape(()))  # type: ignore[attr-defined]


def _small_power(op: Operation, exponent: int) -> Expr:
    x = op.operands[0]
    if exponent == 0:
        return op.constant(1)
    result = x
    for _ in range(exponent - 1):
        result = op.bind(_wrapping(op.compute, lambda a, b: a * b, result, x))
    return result


def _root_or_inverse(op: Operation, exponent: float) -> Expr:
    """Return x**-1, x**0.5 or x**-0.5. Unlike the square root, the power of -0.0 is 0.0 and that of -inf is inf."""
    x = op.operands[0]
    if exponent != -1:
        infinite = tirx.EQ(x, op.constant(float("-inf")))
        root = op.bind(T.fabs(op.bind(T.sqrt(x))))
        x = op.bind(tirx.Select(infinite, op.constant(float("inf")), root))
    return x if exponent == 0.5 else tirx.Div(op.constant(1.0), x)


def _integer_power(op: Operation, base: Expr, exponent: Expr, exponent_dtype: str) -> Expr:
    """Return an integer power by squaring, modulo 2**bits. Non-integer exponents go through float64, as in numpy."""
    bind = op.bind
    if is_float(exponent_dtype):
        wide = bind(T.cast(base, "float64"))
        result = T.call_llvm_pure_intrin("float64", "llvm.pow", wide, bind(T.cast(exponent, "float64")))
        return convert(bind(result), "float64", op.dtype, bind)
    unsigned = f"u{op.compute}" if dtype_kind(op.dtype) == "int" else op.compute
    zero, one = immediate(0, unsigned), immediate(1, unsigned)
    power = bind(T.cast(exponent, "int64"))
    factor = bind(_unsigned(base, unsigned))
    product: Expr = one
    for bit in range(min(storage_bits(exponent_dtype), 63)):
        on = tirx.NE(
            T.bitwise_and(T.shift_right(power, immediate(bit, "int64")), immediate(1, "int64")), immediate(0, "int64")
        )
        product = bind(product * tirx.Select(on, factor, one))
        factor = bind(factor * factor)
    if dtype_kind(exponent_dtype) == "int":
        product = tirx.Select(power < immediate(0, "int64"), _negative_power(base, power, op, zero, one), product)
    return T.cast(product, op.compute)


def _negative_power(base: Expr, power: Expr, op: Operation, zero: Expr, one: Expr) -> Expr:
    """Return 1 / base**|e| rounded towards zero: nonzero only for bases 1 and -1."""
    odd = tirx.NE(T.bitwise_and(power, immediate(1, "int64")), immediate(0, "int64"))
    minus_one = tirx.Select(odd, T.bitwise_not(zero), one) if dtype_kind(op.dtype) == "int" else zero
    is_minus_one = tirx.EQ(base, op.constant(-1)) if dtype_kind(op.dtype) == "int" else T.bool(False)
    return tirx.Select(tirx.EQ(base, op.constant(1)), one, tirx.Select(is_minus_one, minus_one, zero))


def extreme(a: Expr, b: Expr, dtype: str, largest: bool) -> Expr:
    """Return the maximum or minimum of two; NaN if either is NaN. Both are used several times: bind them first."""
    chosen = tirx.Select(a < b if largest else b < a, b, a)  # a if it is NaN
    if not is_float(dtype) or isinstance(revealed(b), tirx.FloatImm):
        return chosen
    if isinstance(revealed(a), tirx.FloatImm):
        return tirx.Select(b < a if largest else a < b, a, b)
    return tirx.Select(is_nan(b), b, chosen)


def between(x: Expr, low: int | Expr, high: int | Expr, bind: Bind) -> Expr:
    """Return a float32 that is not NaN clamped to int32 `low` to `high`."""

    def limit(number: int | Expr) -> Expr:
        return immediate(float(number), "float32") if isinstance(number, int) else bind(T.cast(number, "float32"))

    raised = bind(extreme(x, limit(low), "float32", largest=True))
    return extreme(raised, limit(high), "float32", largest=False)


def _compare(function: Callable[[Expr, Expr], Expr]) -> Rule:
    def rule(op: Operation) -> Expr:
        a, b = _exact(op)
        if op.dtype == "bool":
            a, b = T.cast(a, "uint8"), T.cast(b, "uint8")
        return function(a, b)

    return rule


def _logical_xor(op: Operation) -> Expr:
    a, b = (T.cast(x, "uint8") for x in op.operands)
    return tirx.NE(a, b)


def _shift(left: bool) -> Rule:
    def rule(op: Operation) -> Expr:
        x, y = op.operands
        bits = storage_bits(op.dtype)
        signed = dtype_kind(op.dtype) == "int"
        width = op.constant(bits)
        out = tirx.Not(y < width) if not signed else tirx.Or(y < op.constant(0), tirx.Not(y < width))
        safe = op.bind(tirx.Select(out, op.constant(0), y))
        shifted = _wrapping(op.compute, T.shift_left, x, safe) if left else T.shift_right(x, safe)
        # All bits are shifted out, and only copies of the sign bit come in from the left.
        zero = op.constant(0)
        rest = tirx.Select(x < zero, op.constant(-1), zero) if signed and not left else zero
        return tirx.Select(out, rest, shifted)

    return rule


def _select(op: Operation) -> Expr:
    condition, a, b = op.operands
    if op.node.inputs[1].dtype == "bool":
        return tirx.Or(tirx.And(condition, a), tirx.And(tirx.Not(condition), b))
    return tirx.Select(condition, a, b)


RULES: Mapping[str, Rule] = {
    "neg": _neg, "abs": _abs, "sign": _sign,
    "floor": _jumping_map(T.floor), "ceil": _jumping_map(T.ceil), "trunc": _jumping_map(T.trunc),
    "round": _jumping_map(_libm("roundeven")), "sqrt": _float_map(T.sqrt),
    **{name: _transcendental(name) for name in _TRANSCENDENTAL},
    "exp": _exp,
    "asinh": _through_float64(_asinh), "acosh": _through_float64(_acosh), "atanh": _through_float64(_atanh),
    "is_nan": _is_nan, "is_inf": _is_inf,
    "logical_not": lambda op: tirx.Not(*op.operands), "bitwise_not": lambda op: T.bitwise_not(*op.operands),
    "cast": _cast, "bit_cast": _bit_cast, "look_up": _look_up,
    "add": _arithmetic(lambda a, b: a + b), "sub": _sub,
    "mul": _mul,
    "div": _div, "mod": _mod, "fmod": _fmod, "pow": _pow,
    "maximum": lambda op: extreme(op.operands[0], op.operands[1], op.dtype, largest=True),
    "minimum": lambda op: extreme(op.operands[0], op.operands[1], op.dtype, largest=False),
    "equal": _compare(tirx.EQ), "less": _compare(tirx.LT), "less_equal": _compare(tirx.LE),
    "logical_and": lambda op: tirx.And(*op.operands), "logical_or": lambda op: tirx.Or(*op.operands),
    "logical_xor": _logical_xor,
    "bitwise_and": lambda op: T.bitwise_and(*op.operands), "bitwise_or": lambda op: T.bitwise_or(*op.operands),
    "bitwise_xor": lambda op: T.bitwise_xor(*op.operands),
    "shift_left": _shift(left=True), "shift_right": _shift(left=False), "select": _select,
}  # fmt: skip
"""The rule of every element-wise primitive."""
