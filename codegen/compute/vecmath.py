"""Elementary functions as branch-free expressions that LLVM vectorises: polynomials, selects, and bit operations.

float32 results are within about 2 units in the last place (4 for erf, 3 for angles from 2**24 on), float64 ones within
3 (8 for erf). Infinities, NaN, signed zeros and denormals give the results of libm. `bind` binds a subexpression that
is used more than once. The polynomials are fits made for these intervals; tests/codegen/test_vecmath.py measures the
errors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .dtypes import Bind, Expr, dtype_of, immediate, not_equal


@dataclass(frozen=True)
class _Format:
    """A binary floating-point format. `round_magic` is 1.5 * 2**mantissa_bits: adding it rounds to an integer.

    `least_normal_log`: exponentials of smaller numbers are denormal, or nearly so.
    """

    name: str
    integer: str
    mantissa_bits: int
    bias: int
    exp_range: tuple[float, float]
    least_normal_log: float
    ln2_high: float
    ln2_low: float
    exp_coefficients: tuple[float, ...]

    @property
    def round_magic(self) -> float:
        return 1.5 * 2.0**self.mantissa_bits


_FLOAT32 = _Format(
    "float32", "int32", 23, 127, (-104.0, 89.0), -87.3, 0.693359375, -2.12194440e-4,
    (0.5000000100980203, 0.1666651288840113, 0.04166618728359715, 0.00836959841040421, 0.0013951717247989758),
)  # fmt: skip
_FLOAT64 = _Format(
    "float64", "int64", 52, 1023, (-746.0, 710.0), -708.3, float.fromhex("0x1.62e42fefa0000p-1"),
    float.fromhex("0x1.cf79abc9e3b3ap-40"),
    (0.49999999999999994, 0.16666666666666718, 0.04166666666667098, 0.008333333333296881, 0.001388888888733795,
     0.000198412699370546, 2.480158971695646e-05, 2.7557200697130577e-06, 2.7555590446680005e-07,
     2.5122294833916175e-08, 2.1358021933037954e-09),
)  # fmt: skip

_LOG32 = (
    0.3333333168404221, -0.2500082679054949, 0.20001235664514053, -0.16623143591850806, 0.14201373164839848,
    -0.13162016913797997, 0.12765400990731818, -0.07634320694494628,
)  # fmt: skip
"""(log(1+f) - f + f*f/2) / f**3 for 1+f in [sqrt(1/2), sqrt(2)]."""
_LOG64 = (
    0.666666666666674, 0.39999999999376484, 0.285714287516556, 0.2222219754909085, 0.18183621079268045,
    0.1531251387848758, 0.14812124225941958,
)  # fmt: skip
"""(2 artanh(s)/s - 2) / s**2 in s**2, where log(m) = 2 artanh((m-1)/(m+1))."""
_TANH = (-0.3333328392358792, 0.1333149124845069, -0.05374349525668377, 0.020650578989873023, -0.005717036547117036)
"""(tanh(x)/x - 1) / x**2 in x**2 for |x| < 0.625."""
_ERF = (
    1.1283791065216064, -0.37612536549568176, 0.11282685399055481, -0.026820171624422073, 0.005131273530423641,
    -0.0007562192040495574, 6.527396180899814e-05,
)  # fmt: skip
"""erf(x)/x in x**2 for |x| < 1.2."""
_ERFC = (
    0.00023603072622790933, -0.0018442635191604495, 0.006761760916560888, -0.015305550768971443, 0.023562949150800705,
    -0.02540488727390766, 0.018619438633322716, -0.007558944169431925, -0.0011955980444326997, 0.004078856203705072,
    -0.0022876339498907328, -2.2556907424586825e-05, 0.0004989232984371483, -0.0001385036885039881,
)  # fmt: skip
"""1 - erf(x) in (x - 2.6) / 1.41 for 1.19 < x < 4.01; 1 - erf(4) is below half a unit of float32."""
_ERF64 = (
    1.1283791670955126, -0.3761263890318377, 0.11283791670955844, -0.026866170645340748,
    0.005223977628401245, -0.0008548327260519563, 0.00012055344736548147, -1.4926029674454228e-05,
    1.6470297263048797e-06, -1.64847546844692e-07, 1.595574852886179e-08, -1.935115526387558e-09,
    3.433405767713756e-10, -4.437111466587649e-11,
)  # fmt: skip
"""erf(x)/x in x**2 for |x| < 1."""
_LOG_ERFC64 = (
    -1.8624374021481738, -0.6918589297494955, 0.22474934994252496, -0.09184616890889713,
    0.039925413840732886, -0.017501002473267947, 0.007533335507674814, -0.0031240185015189606,
    0.0012229212098702636, -0.0004381229234326412, 0.00013455593485323602, -2.8442141521210803e-05,
    -2.367468982646116e-06, 7.60747972138642e-06, -5.920096825945183e-06, 3.4433076653551515e-06,
    -1.722306928308327e-06, 7.649374864188532e-07, -2.5643325250886014e-07, 3.8565495926271884e-08,
    -1.0053017521414482e-08, 1.1212741341435483e-08, 1.3045841222048232e-08, -1.7933365159186918e-08,
    5.317978066462763e-09,
)  # fmt: skip
"""log(1 - erf(x)) + x*x in (x - 3.5) / 2.6 for 0.9 < x < 6.1; 1 - erf(6) is below half a unit of float64."""
_SIN = (
    -0.1666666666662796,
    0.008333333324610911,
    -0.00019841263456724703,
    2.755527902067222e-06,
    -2.4755889925021293e-08,
)
_COS = (
    0.04166666666659553,
    -0.0013888888877396594,
    2.48015805832455e-05,
    -2.7555496233663085e-07,
    2.0643158481720256e-09,
)
_ATAN = (
    -0.3333333328105349, 0.19999977774180522, -0.142841749395295, 0.1107174883573888, -0.08627212207709171,
    0.0505400948667565,
)  # fmt: skip
"""(atan(u)/u - 1) / u**2 in u**2 for |u| < tan(pi/8)."""
_SINH = (0.166666666468103, 0.008333339681645149, 0.000198381004409789, 2.8062904441358876e-06)
"""(sinh(x)/x - 1) / x**2 in x**2 for |x| < 1."""
_HALF_PI = tuple(map(float.fromhex, ("0x1.921fb54p+0", "0x1.10b4611p-30", "0x1.4c4c6628b80dcp-59")))
"""pi/2 in parts. Multiples of the first two, of 29 bits, are exact up to 2**24, also without fused multiply-adds."""


def _format(x: Expr) -> _Format:
    return _FLOAT64 if dtype_of(x) == "float64" else _FLOAT32


def _polynomial(coefficients: Sequence[float], x: Expr, bind: Bind) -> Expr:
    """Return the polynomial by Horner's scheme, lowest coefficient first."""
    dtype = dtype_of(x)
    result = immediate(coefficients[-1], dtype)
    for coefficient in reversed(coefficients[:-1]):
        result = bind(result * x + immediate(coefficient, dtype))
    return result


def _is_negative(x: Expr) -> Expr:
    """Return whether the sign bit is set (also of -0.0)."""
    fmt = _format(x)
    return T.reinterpret(fmt.integer, x) < immediate(0, fmt.integer)


def copy_sign(magnitude: Expr, sign: Expr) -> Expr:
    """Return `magnitude` >= 0 with the sign of `sign`."""
    fmt = _format(sign)
    top = immediate(-(1 << 31) if fmt is _FLOAT32 else -(1 << 63), fmt.integer)
    bits = T.bitwise_and(T.reinterpret(fmt.integer, sign), top)
    return T.reinterpret(fmt.name, T.bitwise_or(T.reinterpret(fmt.integer, magnitude), bits))


def exp(x: Expr, bind: Bind) -> Expr:
    """Return e**x for float32 and float64."""
    fmt = _format(x)
    low, high = (immediate(limit, fmt.name) for limit in fmt.exp_range)
    # Comparisons with NaN are false, so NaN passes through both selects.
    vanishes = bind(x < low)
    x = bind(tirx.Select(vanishes, low, x))
    x = bind(tirx.Select(x > high, high, x))
    # Half of the low bits, and the rest of them, are the biased exponents of two factors of 2**n. A single factor
    # overflows or underflows for results that do not.
    shifted, tail = _reduced_exp(x, fmt, 2 * fmt.bias, bind)
    value = bind(tail + immediate(1.0, fmt.name))
    # Exactly zero where the result rounds to zero: a product that underflows costs about 100 cycles.
    value = bind(tirx.Select(vanishes, immediate(0.0, fmt.name), value))
    exponents = bind(T.reinterpret(fmt.integer, shifted))
    half = bind(T.shift_right(exponents, immediate(1, fmt.integer)))
    return bind(value * _power_of_two(half, fmt) * _power_of_two(exponents - half, fmt))


def exp_of_negative(x: Expr, bind: Bind) -> Expr:
    """Return e**x for x <= 0, as in a softmax, in two thirds of the time: results below the least normal number are 0.

    NaN stays NaN.
    """
    fmt = _format(x)
    least = immediate(fmt.least_normal_log, fmt.name)
    vanishes = bind(x < least)
    shifted, tail = _reduced_exp(bind(tirx.Select(vanishes, least, x)), fmt, fmt.bias, bind)
    power = _power_of_two(T.reinterpret(fmt.integer, shifted), fmt)
    value = bind(tail + immediate(1.0, fmt.name))
    return bind(tirx.Select(vanishes, immediate(0.0, fmt.name), value * power))


def _reduced_exp(x: Expr, fmt: _Format, bias: int, bind: Bind) -> tuple[Expr, Expr]:
    """Return a number whose low bits are n + bias, and e**r - 1, where e**x is 2**n e**r and r is in
    [-log(2)/2, log(2)/2].
    """

    def c(number: float) -> Expr:
        return immediate(number, fmt.name)

    magic = c(fmt.round_magic + bias)
    shifted = bind(x * c(1.4426950408889634) + magic)
    n = bind(shifted - magic)
    r = bind(n * c(-fmt.ln2_high) + x)
    r = bind(n * c(-fmt.ln2_low) + r)
    return shifted, bind(_polynomial(fmt.exp_coefficients, r, bind) * (r * r) + r)


def _power_of_two(biased: Expr, fmt: _Format) -> Expr:
    return T.reinterpret(fmt.name, T.shift_left(biased, immediate(fmt.mantissa_bits, fmt.integer)))


def _split_mantissa(x: Expr, fmt: _Format, bind: Bind) -> tuple[Expr, Expr]:
    """Return (m, e) with x = m * 2**e and m in [sqrt(1/2), sqrt(2)), for positive finite x, denormals included."""
    tiny = x < immediate(2.0 ** (1 - fmt.bias), fmt.name)
    scaled = bind(tirx.Select(tiny, x * immediate(2.0 ** (fmt.mantissa_bits + 2), fmt.name), x))
    offset = 0x3F3504F3 if fmt is _FLOAT32 else 0x3FE6A09E667F3BCD
    bits = bind(T.reinterpret(fmt.integer, scaled))
    shift = immediate(fmt.mantissa_bits, fmt.integer)
    exponent = bind(T.shift_right(bits - immediate(offset, fmt.integer), shift))
    mantissa = bind(T.reinterpret(fmt.name, bits - T.shift_left(exponent, shift)))
    extra = tirx.Select(tiny, immediate(fmt.mantissa_bits + 2, fmt.integer), immediate(0, fmt.integer))
    return mantissa, bind(T.cast(exponent - extra, fmt.name))


def log(x: Expr, bind: Bind) -> Expr:
    """Return the natural logarithm for float32 and float64."""
    fmt = _format(x)
    mantissa, exponent = _split_mantissa(x, fmt, bind)
    f = bind(mantissa - immediate(1.0, fmt.name))
    high, low = immediate(fmt.ln2_high, fmt.name), immediate(fmt.ln2_low, fmt.name)
    if fmt is _FLOAT32:
        square = bind(f * f)
        tail = bind(_polynomial(_LOG32, f, bind) * (square * f) + exponent * low)
        result = bind(exponent * high + (f + (tail - square * immediate(0.5, fmt.name))))
    else:
        s = bind(f / (f + immediate(2.0, fmt.name)))
        square = bind(s * s)
        half_square = bind(f * f * immediate(0.5, fmt.name))
        tail = bind(s * (half_square + square * _polynomial(_LOG64, square, bind)) + exponent * low)
        result = bind(exponent * high - ((half_square - tail) - f))
    return _log_special(x, result, fmt, bind)


def _log_special(x: Expr, result: Expr, fmt: _Format, bind: Bind) -> Expr:
    infinity = immediate(float("inf"), fmt.name)
    zero = immediate(0.0, fmt.name)
    result = bind(tirx.Select(x < infinity, result, x))  # infinity and NaN
    result = bind(tirx.Select(x < zero, immediate(float("nan"), fmt.name), result))
    return bind(tirx.Select(tirx.EQ(x, zero), -infinity, result))


def log1p(x: Expr, bind: Bind) -> Expr:
    """Return log(1 + x) for float64, accurate near 0: the rounding error of 1 + x is divided out again."""
    one, infinity = immediate(1.0, "float64"), immediate(float("inf"), "float64")
    u = bind(one + x)
    accurate = bind(log(u, bind) * (x / (u - one)))
    return bind(tirx.Select(tirx.EQ(u, one), x, tirx.Select(u < infinity, accurate, u)))


def tanh(x: Expr, bind: Bind) -> Expr:
    """Return the hyperbolic tangent for float32."""
    magnitude = bind(T.fabs(x))
    square = bind(x * x)
    small = bind(_polynomial(_TANH, square, bind) * (square * magnitude) + magnitude)
    one, minus_two = immediate(1.0, "float32"), immediate(-2.0, "float32")
    # Past 9.1 the result rounds to 1; the exponential becomes 0, which gives 1 as well. NaN takes this path.
    decayed = bind(exp_of_negative(bind(magnitude * minus_two), bind))
    large = bind((one - decayed) / (one + decayed))
    return bind(copy_sign(bind(tirx.Select(magnitude < immediate(0.625, "float32"), small, large)), x))


def erf(x: Expr, bind: Bind) -> Expr:
    """Return the error function for float32 and float64."""
    return _erf32(x, bind) if dtype_of(x) == "float32" else _erf64(x, bind)


def _erf32(x: Expr, bind: Bind) -> Expr:
    one, limit = immediate(1.0, "float32"), immediate(4.0, "float32")
    magnitude = bind(T.fabs(x))
    small = bind(x * _polynomial(_ERF, bind(x * x), bind))
    clamped = bind(tirx.Select(magnitude > limit, limit, magnitude))
    centred = bind(clamped * immediate(1 / 1.41, "float32") + immediate(-2.6 / 1.41, "float32"))
    large = bind(one - _polynomial(_ERFC, centred, bind))
    return bind(tirx.Select(magnitude < immediate(1.2, "float32"), small, copy_sign(large, x)))


def _erf64(x: Expr, bind: Bind) -> Expr:
    one, limit = immediate(1.0, "float64"), immediate(6.1, "float64")
    magnitude = bind(T.fabs(x))
    clamped = bind(tirx.Select(magnitude > limit, limit, magnitude))
    small = bind(x * _polynomial(_ERF64, bind(x * x), bind))
    centred = bind((clamped - immediate(3.5, "float64")) * immediate(1 / 2.6, "float64"))
    exponent = _polynomial(_LOG_ERFC64, centred, bind)
    large = bind(one - exp(bind(exponent - bind(clamped * clamped)), bind))
    return bind(tirx.Select(magnitude < one, small, copy_sign(large, x)))


def sin(x: Expr, bind: Bind) -> Expr:
    """Return the sine of a float32, computed in float64."""
    sine, cosine, quadrant = _sin_cos(x, bind)
    return _quadrant_value(sine, cosine, quadrant, bind)


def cos(x: Expr, bind: Bind) -> Expr:
    """Return the cosine of a float32, computed in float64."""
    sine, cosine, quadrant = _sin_cos(x, bind)
    return _quadrant_value(sine, cosine, bind(quadrant + immediate(1, "int64")), bind)


def tan(x: Expr, bind: Bind) -> Expr:
    """Return the tangent of a float32, computed in float64."""
    sine, cosine, quadrant = _sin_cos(x, bind)
    odd = tirx.NE(T.bitwise_and(quadrant, immediate(1, "int64")), immediate(0, "int64"))
    return bind(T.cast(tirx.Select(odd, -cosine / sine, sine / cosine), "float32"))


def _sin_cos(x: Expr, bind: Bind) -> tuple[Expr, Expr, Expr]:
    """Return sine and cosine of x minus the nearest multiple of pi/2, and that multiple."""

    def c(number: float) -> Expr:
        return immediate(number, "float64")

    # Correct where |x| < 2**24. The call marks where others are first reduced (cpu/toolchain/angles.py).
    wide = bind(T.call_llvm_pure_intrin("float64", "llvm.canonicalize", T.cast(x, "float64")))
    magic = c(_FLOAT64.round_magic)
    shifted = bind(wide * c(0.6366197723675814) + magic)
    n = bind(shifted - magic)
    r = wide
    for part in _HALF_PI:
        r = bind(n * c(-part) + r)
    square = bind(r * r)
    sine = bind((_polynomial(_SIN, square, bind) * square + c(1.0)) * r)
    cosine = bind(_polynomial(_COS, square, bind) * (square * square) + (c(1.0) - c(0.5) * square))
    return sine, cosine, bind(T.reinterpret("int64", shifted))


def _quadrant_value(sine: Expr, cosine: Expr, quadrant: Expr, bind: Bind) -> Expr:
    one, two, zero = (immediate(i, "int64") for i in (1, 2, 0))
    value = bind(tirx.Select(tirx.EQ(T.bitwise_and(quadrant, one), zero), sine, cosine))
    flip = tirx.NE(T.bitwise_and(quadrant, two), zero)
    return bind(T.cast(tirx.Select(flip, -value, value), "float32"))


def atan(x: Expr, bind: Bind) -> Expr:
    """Return the arc tangent of a float32, computed in float64."""
    return bind(T.cast(_atan(bind(T.cast(x, "float64")), bind), "float32"))


def asin(x: Expr, bind: Bind) -> Expr:
    """Return the arc sine of a float32, computed in float64."""
    return bind(T.cast(_asin(bind(T.cast(x, "float64")), bind), "float32"))


def acos(x: Expr, bind: Bind) -> Expr:
    """Return the arc cosine of a float32, computed in float64."""
    half_pi = immediate(math.pi / 2, "float64")
    return bind(T.cast(half_pi - _asin(bind(T.cast(x, "float64")), bind), "float32"))


def _asin(x: Expr, bind: Bind) -> Expr:
    one = immediate(1.0, "float64")
    return _atan(bind(x / T.sqrt((one - x) * (one + x))), bind)


def _atan(x: Expr, bind: Bind) -> Expr:
    """Return the arc tangent: that of (x - 1) / (x + 1) is less by pi/4, that of -1 / x by pi/2."""
    zero, one, minus_one = (immediate(number, "float64") for number in (0.0, 1.0, -1.0))
    magnitude = bind(T.fabs(x))
    far = bind(magnitude > immediate(1 + math.sqrt(2), "float64"))
    near = bind(magnitude > immediate(math.sqrt(2) - 1, "float64"))
    above = tirx.Select(far, minus_one, tirx.Select(near, magnitude - one, magnitude))
    below = tirx.Select(far, magnitude, tirx.Select(near, magnitude + one, one))
    quarter, half = (immediate(math.pi / parts, "float64") for parts in (4, 2))
    start = bind(tirx.Select(far, half, tirx.Select(near, quarter, zero)))
    u = bind(above / below)
    square = bind(u * u)
    return copy_sign(bind(_polynomial(_ATAN, square, bind) * (square * u) + u + start), x)


def sinh(x: Expr, bind: Bind) -> Expr:
    """Return the hyperbolic sine of a float32, computed in float64."""
    wide, square, grown, decayed = _exponentials(x, bind)
    small = bind(_polynomial(_SINH, square, bind) * (square * wide) + wide)
    large = copy_sign(bind((grown - decayed) * immediate(0.5, "float64")), wide)
    return bind(T.cast(tirx.Select(square < immediate(1.0, "float64"), small, large), "float32"))


def cosh(x: Expr, bind: Bind) -> Expr:
    """Return the hyperbolic cosine of a float32, computed in float64."""
    _, _, grown, decayed = _exponentials(x, bind)
    return bind(T.cast((grown + decayed) * immediate(0.5, "float64"), "float32"))


def _exponentials(x: Expr, bind: Bind) -> tuple[Expr, Expr, Expr, Expr]:
    """Return x in float64, its square, e**|x| and e**-|x|."""
    wide = bind(T.cast(x, "float64"))
    grown = bind(exp(bind(T.fabs(wide)), bind))
    return wide, bind(wide * wide), grown, bind(immediate(1.0, "float64") / grown)


def power(x: Expr, y: Expr, bind: Bind) -> Expr:
    """Return x**y for float32, computed as exp(y * log|x|) in float64; special cases as in IEEE 754."""
    zero, one, infinity = (immediate(v, "float32") for v in (0.0, 1.0, float("inf")))
    exponent = bind(T.cast(y, "float64"))
    logarithm = log(bind(T.cast(T.fabs(x), "float64")), bind)
    value = bind(T.cast(exp(bind(exponent * logarithm), bind), "float32"))
    integral = tirx.EQ(T.floor(y), y)
    half = bind(y * immediate(0.5, "float32"))
    odd = tirx.And(integral, not_equal(T.floor(half), half))
    value = bind(tirx.Select(tirx.And(_is_negative(x), odd), -value, value))
    finite_negative = tirx.And(x < zero, x > -infinity)
    bad = tirx.And(finite_negative, tirx.And(tirx.Not(integral), T.fabs(y) < infinity))
    value = bind(tirx.Select(bad, immediate(float("nan"), "float32"), value))
    unit_base = tirx.Or(tirx.EQ(x, one), tirx.And(tirx.EQ(x, -one), tirx.EQ(T.fabs(y), infinity)))
    return bind(tirx.Select(tirx.Or(tirx.EQ(y, zero), unit_base), one, value))


def fmod(x: Expr, y: Expr, bind: Bind) -> Expr:
    """Return the exact remainder of a float32 or float64 division, with the sign of x."""
    dtype = dtype_of(x)
    zero, infinity = immediate(0.0, dtype), immediate(float("inf"), dtype)
    dividend, divisor = bind(T.fabs(x)), bind(T.fabs(y))
    result = _fmod32(dividend, divisor, bind) if dtype == "float32" else _fmod64(dividend, divisor, bind)
    whole = tirx.And(tirx.EQ(divisor, infinity), dividend < infinity)
    result = bind(tirx.Select(whole, dividend, result))
    defined = tirx.And(dividend < infinity, divisor > zero)  # false for NaN
    return bind(copy_sign(bind(tirx.Select(defined, result, immediate(float("nan"), dtype))), x))


def _fmod32(dividend: Expr, divisor: Expr, bind: Bind) -> Expr:
    """Return the remainder in float64, where quotients below 2**29 times a 24-bit divisor are exact. Ten steps with the
    divisor scaled by 2**(29 i) cover the largest quotient of two float32 numbers, which is below 2**278.
    """
    rest, wide = bind(T.cast(dividend, "float64")), bind(T.cast(divisor, "float64"))
    zero = immediate(0.0, "float64")
    for step in reversed(range(10)):
        scaled = bind(wide * immediate(2.0 ** (29 * step), "float64"))
        quotient = bind(T.trunc(rest / scaled))
        rest = bind(rest - quotient * scaled)
        rest = bind(tirx.Select(rest < zero, rest + scaled, rest))  # the quotient was rounded up
    return bind(T.cast(rest, "float32"))


def _fmod64(dividend: Expr, divisor: Expr, bind: Bind) -> Expr:
    """Return the remainder. Quotients below 2**50 are exact integers, and then so are the remainders that a fused
    multiply-add leaves.
    """
    rest = dividend
    zero = immediate(0.0, "float64")
    for step in reversed(range(42)):
        exponent = 50 * step
        scaled = divisor
        while exponent:
            part = min(exponent, 1000)
            scaled = bind(scaled * immediate(2.0**part, "float64"))
            exponent -= part
        quotient = bind(T.trunc(rest / scaled))
        left = bind(T.call_llvm_pure_intrin("float64", "llvm.fma", -quotient, scaled, rest))
        left = bind(tirx.Select(left < zero, left + scaled, left))
        rest = bind(tirx.Select(rest < scaled, rest, left))
    return rest
