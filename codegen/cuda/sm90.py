"""The text of those instructions of Hopper GPUs that come in many forms: each is written when a kernel calls it.

`wgmma` names up to 128 registers, and copies by TMA name the indices of up to five dimensions. The others are in
`sm90.cuh`.
"""

from __future__ import annotations

import re

_PRODUCT = re.compile(r"\bts_sm90_wgmma_m64n(\d+)k16_(b?f16)_([kr])([kr])\(")
_COPY = re.compile(r"\bts_sm90_(copy|share)_(\d)d\(")
_KINDS = {"float16": "f16", "bfloat16": "bf16"}

COLUMNS = frozenset(range(8, 257, 8))
"""What n of `wgmma` may be."""


def multiply(n: int, dtype: str, a_along: str, b_along: str) -> str:
    """The name of the function ``d += a * b^T``, for a [64, 16] and b [n, 16] in shared memory.

    It takes the address of d, n / 2 float32 registers of each of the warpgroup's 128 threads, and both operands'
    `ts_sm90_matrix`. Register 4 j + 2 h + e of a thread is the result in row ``16 * warp + lane / 4 + 8 * h``, column
    ``8 * j + lane % 4 * 2 + e`` (PTX manual, "Register Fragments for wgmma.mma_async.m64nNk16").

    dtype: float16 or bfloat16. a_along, b_along: "k" or "row", what runs along memory.
    """
    assert n in COLUMNS, n
    return f"ts_sm90_wgmma_m64n{n}k16_{_KINDS[dtype]}_{a_along[0]}{b_along[0]}"


def copy(rank: int, shared: bool) -> str:
    """The name of the function that copies the box of a tensor map to shared memory; what is outside is filled in.

    It takes the address in shared memory, the map, the barrier that the bytes count for, and the index where the box
    begins, innermost dimension first. If it is `shared`, all blocks of a cluster get the box, at the same address and
    counted by the same barrier, each in its own shared memory; the number of blocks comes before the index.
    """
    return f"ts_sm90_{'share' if shared else 'copy'}_{rank}d"


def instructions(text: str) -> str:
    """The definitions of all such functions that `text` calls."""
    copies = sorted(set(_COPY.findall(text)))
    products = sorted(set(_PRODUCT.findall(text)))
    return "".join(_copy(*found) for found in copies) + "".join(_product(*found) for found in products)


def _copy(what: str, rank: str) -> str:
    count = int(rank)
    parameters = "".join(f", int i{axis}" for axis in range(count))
    first = 3 if what == "copy" else 4
    index = ", ".join(f"%{first + axis}" for axis in range(count))
    values = "".join(f', "r"(i{axis})' for axis in range(count))
    share = what == "share"
    return (
        f"static __device__ __forceinline__ void ts_sm90_{what}_{rank}d("
        f"void *shared, unsigned long long map, void *barrier{', int blocks' if share else ''}{parameters}) {{\n"
        f'  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes'
        f'{".multicast::cluster" if share else ""} [%0], [%1, {{{index}}}], [%2]{", %3" if share else ""};"\n'
        '               :\n               : "r"(ts_sm90_address(shared)), "l"(map), "r"(ts_sm90_address(barrier))'
        f"""{', "h"((unsigned short)((1 << blocks) - 1))' if share else ""}{values}\n"""
        '               : "memory");\n'
        "}\n"
    )


def _product(n: str, kind: str, a_along: str, b_along: str) -> str:
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
