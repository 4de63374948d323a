"""The text of warpgroup matrix instructions: `wgmma` has up to 128 results a thread, so each is written when called."""

from __future__ import annotations

import re

_CALL = re.compile(r"\bts_sm90_wgmma_m64n(\d+)k16_(b?f16)_([kr])([kr])\(")
_KINDS = {"float16": "f16", "bfloat16": "bf16"}

COLUMNS = frozenset(range(8, 257, 8))
"""What n may be."""


def multiply(n: int, dtype: str, a_along: str, b_along: str) -> str:
    """The function ``d += a * b^T``, for a [64, 16] and b [n, 16] in shared memory.

    It takes the address of d, n / 2 float32 registers of each of the warpgroup's 128 threads, and both operands'
    `ts_sm90_matrix`. Register 4 j + 2 h + e of a thread is the result in row ``16 * warp + lane / 4 + 8 * h``, column
    ``8 * j + lane % 4 * 2 + e`` (PTX manual, "Register Fragments for wgmma.mma_async.m64nNk16").

    dtype: float16 or bfloat16. a_along, b_along: "k" or "row", what runs along memory.
    """
    assert n in COLUMNS, n
    return f"ts_sm90_wgmma_m64n{n}k16_{_KINDS[dtype]}_{a_along[0]}{b_along[0]}"


def instructions(text: str) -> str:
    """The definitions of all such functions that `text` calls."""
    return "".join(_definition(*found) for found in sorted(set(_CALL.findall(text))))


def _definition(n: str, kind: str, a_along: str, b_along: str) -> str:
    count = int(n) // 2
    places = ", ".join(f"%{i}" for i in range(count))
    results = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    transposed = f"{int(a_along == 'r')}, {int(b_along == 'r')}"
    return (
        f"static __device__ __forceinline__ void ts_sm90_wgmma_m64n{n}k16_{kind}_{a_along}{b_along}("
        "float *d, unsigned long long a, unsigned long long b) {\n"
        f'  asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} '
        f'{{{places}}}, %{count}, %{count + 1}, 1, 1, 1, {transposed};"\n'
        f'               : {results}\n               : "l"(a), "l"(b));\n'
        "}\n"
    )
