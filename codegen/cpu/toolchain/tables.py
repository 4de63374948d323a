"""Lookups of byte vectors in tables of 256 entries, as LLVM text: TVM has no vectors of loads.

With AVX512-VBMI two instructions look up 64 bytes in half of the table each, and the top bit of each byte selects the
half. With AVX512-BW alone, the same is done with 32 words of two entries. Other CPUs load entries one by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import Enum
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import StringImm
from tvm.ir.expr import TensorLoad
from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.tables import ENTRIES, table_of
from tilestitch.codegen.cpu.target import CpuTarget

MOST_BYTES, MOST_WORDS = 64, 32
"""Most bytes, or words, that one instruction looks up."""
_VBMI, _BW = "llvm.x86.avx512.vpermi2var.qi.512", "llvm.x86.avx512.vpermi2var.hi.512"


class Unit(Enum):
    """Way of looking up."""

    BYTES = "vpermi2b"
    WORDS = "vpermi2w"
    LOADS = "loads"

    @staticmethod
    def of(target: CpuTarget) -> Unit:
        if target.machine != "x86_64" or not target.has("avx512bw"):
            return Unit.LOADS
        return Unit.BYTES if target.has("avx512vbmi") else Unit.WORDS


def tables(func: Any, unit: Unit) -> Any:
    """Return `func` with function calls in place of loads from table buffers, and the functions' text."""
    texts: dict[str, str] = {}

    def look_up(load: Any) -> Any:
        table = table_of(load)
        if table is None:
            return load
        (index,) = load.indices
        dtype = str(index.ty.dtype).replace("int32", "uint8")
        lanes = int(dtype.partition("x")[2] or 1)
        name = f"tilestitch_look_up_{hashlib.sha256(table).hexdigest()[:16]}_{lanes}"
        texts[name] = _text(name, table, lanes, unit)
        return T.call_pure_extern(dtype, name, _narrow(index, dtype))

    body = tvm_ffi.structural_map(func.body, [(TensorLoad, look_up)])
    if not texts:
        return func
    declared = f"declare {_vector(MOST_BYTES)} @{_VBMI}({', '.join([_vector(MOST_BYTES)] * 3)})\n"
    declared += f"declare {_vector(MOST_WORDS, 16)} @{_BW}({', '.join([_vector(MOST_WORDS, 16)] * 3)})\n"
    for name in sorted(texts):
        text = texts[name] if unit is Unit.LOADS else declared + texts[name]
        body = tirx.AttrStmt(T.int32(0), "pragma_import_llvm", StringImm(text), body)
    return func.with_body(body)


def _narrow(index: Any, dtype: str) -> Any:
    """Return the bytes that were widened to an index."""
    if isinstance(index, tirx.Cast) and str(index.value.ty.dtype) == dtype:
        return index.value
    return tirx.Cast(dtype, index)


def _vector(lanes: int, bits: int = 8) -> str:
    return f"<{lanes} x i{bits}>" if lanes > 1 else f"i{bits}"


def _text(name: str, table: bytes, lanes: int, unit: Unit) -> str:
    """Return the LLVM text of a function of `lanes` bytes."""
    if lanes == 1 or unit is Unit.LOADS:
        return _loads(name, table, lanes)
    most = MOST_BYTES if unit is Unit.BYTES else MOST_WORDS
    parts, lines, found = -(-lanes // most), list[str](), list[str]()
    for part in range(parts):
        places = range(part * most, min(lanes, (part + 1) * most))
        chosen = [*map(str, places), *["poison"] * (most - len(places))]
        lines.append(f"%x{part} = shufflevector {_vector(lanes)} %x, {_vector(lanes)} poison, {_mask(chosen)}")
        lines += (_bytes if unit is Unit.BYTES else _words)(table, part)
        found.append(f"%r{part}")
    while len(found) > 1:  # lanes are a power of two, and so are parts
        wide, pairs = most * parts // len(found), list(zip(found[::2], found[1::2], strict=True))
        joined = [f"{first}_{wide}" for first, _ in pairs]
        for out, (first, second) in zip(joined, pairs, strict=True):
            ends = _mask([str(i) for i in range(2 * wide)])
            lines.append(f"{out} = shufflevector {_vector(wide)} {first}, {_vector(wide)} {second}, {ends}")
        found = joined
    if lanes < most:
        ends = _mask([str(i) for i in range(lanes)])
        lines.append(f"%y = shufflevector {_vector(most)} {found[0]}, {_vector(most)} poison, {ends}")
        found = ["%y"]
    return _function(name, lanes, [*lines, f"ret {_vector(lanes)} {found[0]}"])


def _function(name: str, lanes: int, lines: Sequence[str]) -> str:
    head = f"define linkonce_odr hidden {_vector(lanes)} @{name}({_vector(lanes)} %x) alwaysinline {{"
    return "\n".join([head, *(f"  {line}" for line in lines), "}", ""])


def _mask(places: Sequence[str]) -> str:
    return f"<{len(places)} x i32> <{', '.join('i32 ' + place for place in places)}>"


def _constant(numbers: Sequence[int], bits: int) -> str:
    return f"{_vector(len(numbers), bits)} <{', '.join(f'i{bits} {number}' for number in numbers)}>"


def _bytes(table: bytes, part: int) -> list[str]:
    """Return instructions that compute r from x: 64 bytes."""
    vector, x = _vector(MOST_BYTES), f"%x{part}"
    quarters = [_constant(list(table[at : at + MOST_BYTES]), 8) for at in range(0, ENTRIES, MOST_BYTES)]
    return [
        f"%low{part} = call {vector} @{_VBMI}({quarters[0]}, {vector} {x}, {quarters[1]})",
        f"%high{part} = call {vector} @{_VBMI}({quarters[2]}, {vector} {x}, {quarters[3]})",
        f"%upper{part} = icmp slt {vector} {x}, zeroinitializer",
        f"%r{part} = select <{MOST_BYTES} x i1> %upper{part}, {vector} %high{part}, {vector} %low{part}",
    ]


def _words(table: bytes, part: int) -> list[str]:
    """Return instructions that compute r from x: 32 bytes, each in a word of two entries."""
    vector, narrow, x = _vector(MOST_WORDS, 16), _vector(MOST_WORDS), f"%x{part}"
    pairs = [table[at] | table[at + 1] << 8 for at in range(0, ENTRIES, 2)]
    quarters = [_constant(pairs[at : at + MOST_WORDS], 16) for at in range(0, len(pairs), MOST_WORDS)]
    one, three = (_constant([number] * MOST_WORDS, 16).partition("> ")[2] for number in (1, 3))
    return [
        f"%wide{part} = zext {narrow} {x} to {vector}",
        f"%place{part} = lshr {vector} %wide{part}, {one}",
        f"%low{part} = call {vector} @{_BW}({quarters[0]}, {vector} %place{part}, {quarters[1]})",
        f"%high{part} = call {vector} @{_BW}({quarters[2]}, {vector} %place{part}, {quarters[3]})",
        f"%upper{part} = icmp slt {narrow} {x}, zeroinitializer",
        f"%pair{part} = select <{MOST_WORDS} x i1> %upper{part}, {vector} %high{part}, {vector} %low{part}",
        f"%odd{part} = and {vector} %wide{part}, {one}",
        f"%shift{part} = shl {vector} %odd{part}, {three}",
        f"%entry{part} = lshr {vector} %pair{part}, %shift{part}",
        f"%r{part} = trunc {vector} %entry{part} to {narrow}",
    ]


def _loads(name: str, table: bytes, lanes: int) -> str:
    held = f"{name}_entries"
    memory = f"@{held} = private unnamed_addr constant [{ENTRIES} x i8] {_constant(list(table), 8).partition('> ')[2]}"
    memory = memory.replace("] <", "] [").replace(">", "]")
    lines, result = list[str](), "poison"
    for lane in range(lanes):
        x = "%x" if lanes == 1 else f"%x{lane}"
        if lanes > 1:
            lines.append(f"{x} = extractelement {_vector(lanes)} %x, i32 {lane}")
        lines.append(f"%i{lane} = zext i8 {x} to i64")
        lines.append(f"%p{lane} = getelementptr inbounds [{ENTRIES} x i8], ptr @{held}, i64 0, i64 %i{lane}")
        lines.append(f"%e{lane} = load i8, ptr %p{lane}")
        if lanes > 1:
            lines.append(f"%r{lane} = insertelement {_vector(lanes)} {result}, i8 %e{lane}, i32 {lane}")
        result = f"%r{lane}" if lanes > 1 else f"%e{lane}"
    return f"{memory}\n{_function(name, lanes, [*lines, f'ret {_vector(lanes)} {result}'])}"
