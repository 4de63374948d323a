"""Sorting by radix: keys are numbers without sign, sorted byte by byte from the lowest on, so that equal ones keep
their order. Each byte takes a pass over the keys, whose steps do not wait for one another as those of a merge do.
"""

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, immediate, is_nan, named, storage_bits
from tilestitch.compiler.ir.types import compute_dtype, dtype_kind, is_float

DIGITS = 256
"""Values of a byte, by which a pass sorts."""


def code(value: Expr, dtype: str, key_dtype: str, descending: bool) -> Expr:
    """Return the key of a value of `dtype`, given in compute form: keys have the order of the values, or the reverse.
    NaN is the largest number, and zeros are equal.
    """
    bits = storage_bits(compute_dtype(dtype))
    signed = key_dtype[1:]
    number = T.cast(value, signed)
    if is_float(dtype):
        most = immediate((1 << (bits - 1)) - 1, signed)
        raw = named(T.reinterpret(signed, value))
        ordered = T.bitwise_xor(raw, T.bitwise_and(T.shift_right(raw, immediate(bits - 1, signed)), most))
        is_zero = tirx.EQ(value, immediate(0, compute_dtype(dtype)))
        number = tirx.Select(is_nan(value), most, tirx.Select(is_zero, immediate(0, signed), ordered))
    every = (1 << bits) - 1
    sign = 0 if dtype_kind(dtype) == "uint" else 1 << (bits - 1)
    unsigned = T.bitwise_and(T.reinterpret(key_dtype, named(number)), immediate(every, key_dtype))
    return named(T.bitwise_xor(unsigned, immediate(sign ^ (every if descending else 0), key_dtype)))


def sort(keys: Any, positions: Any, count: Expr, half: Expr, dtype: str) -> None:
    """Sort the first `count` keys of values of `dtype`, with their positions. The workspace has as much room from
    `half` on.
    """
    key_dtype = str(keys.dtype)
    passes = _passes(dtype)
    ends = T.alloc_buffer((len(passes) * DIGITS,), "int32", scope="local")

    def place(number: int, key: Expr) -> Expr:
        """Return where the counter of a key's byte is."""
        byte = T.bitwise_and(T.shift_right(key, immediate(8 * passes[number], key_dtype)), immediate(255, key_dtype))
        return named(number * DIGITS + T.cast(byte, "int32"))

    with T.serial(0, len(passes) * DIGITS) as digit:
        T.buffer_store(ends, T.int32(0), [digit])
    with T.serial(0, count) as i:
        key = named(keys[i])
        for number in range(len(passes)):
            at = place(number, key)
            T.buffer_store(ends, ends[at] + 1, [at])
    for number in range(len(passes)):
        source, target = (half, 0) if number % 2 else (0, half)
        before = T.alloc_buffer((1,), "int32", scope="local")
        T.buffer_store(before, T.int32(0), [0])
        with T.serial(number * DIGITS, (number + 1) * DIGITS) as digit:
            many = named(ends[digit])
            T.buffer_store(ends, before[0], [digit])
            T.buffer_store(before, before[0] + many, [0])
        with T.serial(0, count) as i:
            key = named(keys[source + i])
            at = place(number, key)
            to = named(ends[at])
            T.buffer_store(ends, to + 1, [at])
            T.buffer_store(keys, key, [target + to])
            T.buffer_store(positions, positions[source + i], [target + to])


def _passes(dtype: str) -> range:
    """Return the bytes in which keys differ, an even number, so that the last pass ends where the first began. Halves
    are compared as float32, whose lower bits they leave at zero.
    """
    nbytes = storage_bits(compute_dtype(dtype)) // 8
    return range(2, 4) if dtype == "bfloat16" else range(max(2, nbytes))
