"""Exact range reduction of large angles, as LLVM text: a vector branches to it where one of its lanes is large.

M. Payne, R. Hanek: Radian reduction for trigonometric functions. SIGNUM Newsletter 18(1), 1983.
"""

import struct
from functools import cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm
from tvm.script.ir_builder import tirx as T
from tvm.target import codegen as target_codegen

LEAST = 2.0**24
"""Least angle that is reduced."""

_TWO_BY_PI = (0x517CC1B727220A94, 0xFE13ABE8FA9A6EE0, 0x6DB14ACC9E21C820, 0xFF28B1D5EF5DE2B0)
"""2/pi in 64-bit words, the first of which has weight 1."""
_QUARTERS = float.fromhex("0x1.921fb54442d18p-62")
"""pi/2 * 2**-62."""


def angles(func: Any) -> Any:
    """Return `func` where `llvm.canonicalize` of a float64, which marks the angles of `vecmath`, keeps its operand
    x where |x| < LEAST, and is otherwise an angle in [-pi, pi] with the same sine and cosine. x is a float32, or not
    finite.
    """
    texts: dict[str, str] = {}

    def brought_near(call: Any) -> Any:
        if not _is_angle(call) or not str(call.ty.dtype).startswith("float64"):
            return call
        dtype = str(call.ty.dtype)
        lanes = int(dtype.partition("x")[2] or 1)
        name = f"tilestitch_angle_{lanes}"
        texts[name] = _text(name, lanes)
        return T.call_pure_extern(dtype, name, call.args[-1])

    body = tvm_ffi.structural_map(func.body, [(Call, brought_near)])
    for name in sorted(texts):
        body = tirx.AttrStmt(T.int32(0), "pragma_import_llvm", StringImm(texts[name]), body)
    return func.with_body(body) if texts else func


def _is_angle(call: Any) -> bool:
    if getattr(call.op, "name", "") != "tirx.call_llvm_pure_intrin":
        return False
    return int(getattr(call.args[0], "value", -1)) == _number()


@cache
def _number() -> int:
    """Return LLVM's number of the intrinsic."""
    return int(target_codegen.llvm_lookup_intrinsic_id("llvm.canonicalize"))


def _text(name: str, lanes: int) -> str:
    """Return the LLVM text of a function of float64.

    A float32 x is m * 2**e, m of 24 bits. Bits of 2/pi that 2**e scales to 4 and more only add whole turns to m * 2**e
    * 2/pi: the 96 bits from there on give quarter turns as a fraction of 64 bits.
    """
    vector = (lambda kind: kind) if lanes == 1 else (lambda kind: f"<{lanes} x {kind}>")
    many = (lambda value: value.split()[1]) if lanes == 1 else (lambda value: f"splat ({value})")
    floats, longs, bools = vector("double"), vector("i64"), vector("i1")
    suffix = "" if lanes == 1 else f"v{lanes}"
    absolute, shift = f"@llvm.fabs.{suffix}f64", f"@llvm.fshl.{suffix}i64"
    any_of = f"@llvm.vector.reduce.or.{suffix}i1"

    def number(value: int) -> str:
        return many(f"i64 {value if value < 1 << 63 else value - (1 << 64)}")

    def real(value: float) -> str:
        return many(f"double 0x{struct.pack('>d', value).hex().upper()}")

    one, two, three, four = map(number, _TWO_BY_PI)
    some = "%some = freeze i1 %large" if lanes == 1 else f"%some = call i1 {any_of}({bools} %large)"
    return "\n".join([
        f"declare {floats} {absolute}({floats})",
        f"declare {longs} {shift}({longs}, {longs}, {longs})",
        *([] if lanes == 1 else [f"declare i1 {any_of}({bools})"]),
        "declare i1 @llvm.expect.i1(i1, i1)",
        f"define linkonce_odr hidden {floats} @{name}({floats} %x) alwaysinline {{",
        f"  %size = call {floats} {absolute}({floats} %x)",
        f"  %large = fcmp oge {floats} %size, {real(LEAST)}",
        f"  {some}",
        "  %rare = call i1 @llvm.expect.i1(i1 %some, i1 false)",
        "  br i1 %rare, label %far, label %near",
        "near:",
        f"  ret {floats} %x",
        "far:",
        f"  %bits = bitcast {floats} %size to {longs}",
        f"  %power = lshr {longs} %bits, {number(52)}",
        f"  %fraction = lshr {longs} %bits, {number(29)}",
        f"  %digits = and {longs} %fraction, {number((1 << 23) - 1)}",
        f"  %m = or {longs} %digits, {number(1 << 23)}",
        f"  %skipped = sub {longs} %power, {number(1023 + 23 + 1)}",
        f"  %by = and {longs} %skipped, {number(63)}",
        f"  %later = icmp uge {longs} %skipped, {number(64)}",
        f"  %a = select {bools} %later, {longs} {two}, {longs} {one}",
        f"  %b = select {bools} %later, {longs} {three}, {longs} {two}",
        f"  %c = select {bools} %later, {longs} {four}, {longs} {three}",
        f"  %first = call {longs} {shift}({longs} %a, {longs} %b, {longs} %by)",
        f"  %rest = call {longs} {shift}({longs} %b, {longs} %c, {longs} %by)",
        f"  %next = lshr {longs} %rest, {number(32)}",
        f"  %upper = mul {longs} %m, %first",
        f"  %lower = mul {longs} %m, %next",
        f"  %carried = lshr {longs} %lower, {number(32)}",
        f"  %turned = add {longs} %upper, %carried",
        f"  %quarters = sitofp {longs} %turned to {floats}",
        f"  %angle = fmul {floats} %quarters, {real(_QUARTERS)}",
        f"  %opposite = fneg {floats} %angle",
        f"  %negative = fcmp olt {floats} %x, {real(0.0)}",
        f"  %signed = select {bools} %negative, {floats} %opposite, {floats} %angle",
        f"  %finite = fcmp one {floats} %size, {real(float('inf'))}",
        f"  %known = and {bools} %large, %finite",
        f"  %near_0 = select {bools} %known, {floats} %signed, {floats} %x",
        f"  ret {floats} %near_0",
        "}", "",
    ])  # fmt: skip
