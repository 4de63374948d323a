"""The text of those Hopper instructions that have many forms: each is generated when a kernel calls it.

`wgmma` names up to 128 registers, and TMA copies name the indices of up to five dimensions. The others are in
`sm90.cuh`.
"""

import re

_GEMM = re.compile(r"\bts_sm90_wgmma_m64n(\d+)k(\d+)_(b?f16|[su]8|e4m3|e5m2)_(b?f16|[su]8|e4m3|e5m2)_([kr])([kr])\(")
_COPY = re.compile(r"\bts_sm90_(copy|share)_(\d)d\(")
_KINDS = {
    "float16": "f16", "bfloat16": "bf16", "int8": "s8", "uint8": "u8", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
}  # fmt: skip
STEP_BYTES = 32
"""Bytes along k of one `wgmma`."""

COLUMNS = frozenset(range(8, 257, 8))
"""Valid n of `wgmma`."""


def multiply(n: int, dtypes: tuple[str, str], along: tuple[str, str]) -> str:
    """Return the name of the function ``d += a * b^T``, for a [64, k] and b [n, k] in shared memory; k is 32 bytes.

    It takes the address of d, n / 2 float32 (int32 for integers) registers of each of the warpgroup's 128 threads, and
    both operands' `ts_sm90_matrix`. Register 4 j + 2 h + e of a thread is the result in row ``16 * warp + lane / 4 + 8
    * h``, column ``8 * j + lane % 4 * 2 + e`` (PTX manual, "Register Fragments for wgmma.mma_async.m64nNk16").

    dtypes: of the operands, both float16, both bfloat16, each int8 or uint8, or each a float of 8 bits. along: their
    contiguous dimension, "k" or "row"; bytes only along k.
    """
    assert n in COLUMNS, n
    kinds = [_KINDS[dtype] for dtype in dtypes]
    steps = STEP_BYTES // 2 if kinds[0].endswith("f16") else STEP_BYTES
    return f"ts_sm90_wgmma_m64n{n}k{steps}_{kinds[0]}_{kinds[1]}_{along[0][0]}{along[1][0]}"


def copy(rank: int, shared: bool) -> str:
    """Return the name of the function that copies the box of a tensor map to shared memory; elements outside are filled
    in.

    It takes the address in shared memory, the map, the barrier that counts the bytes, and the index where the box
    begins, innermost dimension first. If it is `shared`, all blocks of a cluster get the box, at the same address and
    counted by the same barrier, each in its own shared memory; the number of blocks comes before the index.
    """
    return f"ts_sm90_{'share' if shared else 'copy'}_{rank}d"


def instructions(text: str) -> str:
    """Return the definitions of all such functions that `text` calls."""
    copies = sorted(set(_COPY.findall(text)))
    gemms = sorted(set(_GEMM.findall(text)))
    return "".join(_copy(*found) for found in copies) + "".join(_gemm(*found) for found in gemms)


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


def _gemm(n: str, steps: str, a: str, b: str, a_along: str, b_along: str) -> str:
    count = int(n) // 2
    whole = a in ("s8", "u8")
    places = ", ".join(f"%{i}" for i in range(count))
    results = ", ".join(f'"+{"r" if whole else "f"}"(d[{i}])' for i in range(count))
    transposed = f", {int(a_along == 'r')}, {int(b_along == 'r')}" if a.endswith("f16") else ""
    scales = "1" if whole else f"1, 1, 1{transposed}"
    return (
        f"static __device__ __forceinline__ void ts_sm90_wgmma_m64n{n}k{steps}_{a}_{b}_{a_along}{b_along}("
        f"{'int' if whole else 'float'} *d, unsigned long long a, unsigned long long b) {{\n"
        f'  asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k{steps}.{"s32" if whole else "f32"}.{a}.{b} '
        f'{{{places}}}, %{count}, %{count + 1}, {scales};"\n'
        f'               : {results}\n               : "l"(a), "l"(b));\n'
        "}\n"
    )
