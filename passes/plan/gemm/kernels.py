"""Which GPU kernels can compute a GEMM."""

from tilestitch.compiler.ir.types import SMALL_FLOATS
from tilestitch.passes.plan.gemm.gemm import Gemm
from tilestitch.passes.plan.gemm.tiles import WgmmaTile
from tilestitch.passes.plan.gemm.tma import refusal, why_not_patches

MMA_SUMS = {
    ("float16", "float16"): "float32", ("bfloat16", "bfloat16"): "float32", ("float32", "float32"): "float32",
    ("int8", "int8"): "int32", ("int8", "uint8"): "int32", ("uint8", "int8"): "int32", ("uint8", "uint8"): "int32",
    **{(a, b): "float32" for a in SMALL_FLOATS for b in SMALL_FLOATS},
}  # fmt: skip
"""Accumulator dtypes of mma.sync, by the dtypes of the operands; float32 operands are rounded to TF32."""
TURING = 75
"""Least compute capability (times ten) with `mma.sync`: of float16 operands, in steps of 8."""
AMPERE = 80
ADA = 89
"""The oldest compute capability (times ten) whose tensor cores multiply 8-bit floats."""
WGMMA_ARCHITECTURE = "sm_90a"
BYTES = frozenset({"int8", "uint8"})
MOST_SUMS_TWICE = 96
"""Most accumulators per thread where each is held twice."""


def why_not_mma(gemm: Gemm, capability: int) -> str | None:
    """Return why mma.sync cannot compute a GEMM on GPUs of a compute capability (times ten); None if it can."""
    dtypes = (gemm.a.dtype, gemm.b.dtype)
    least = TURING if dtypes == ("float16", "float16") else AMPERE
    if capability < least:
        return f"the GPU has compute capability {capability / 10}, less than {least / 10}"
    if dtypes not in MMA_SUMS:
        return f"the operands are {dtypes[0]} and {dtypes[1]}"
    if MMA_SUMS[dtypes] != gemm.acc_dtype:
        return f"the sums are {gemm.acc_dtype}, not {MMA_SUMS[dtypes]}"
    if dtypes[0] in SMALL_FLOATS and capability < ADA:
        return f"the GPU has compute capability {capability / 10}, less than {ADA / 10}, and multiplies no {dtypes[0]}"
    if dtypes[0] == "float32" and not gemm.tf32:
        return "float32 must not be rounded to TF32"
    return None


def why_not_wgmma(gemm: Gemm, name: str, specific: str | None) -> str | None:
    """Return why wgmma cannot compute a GEMM for a target; None if it can. specific: the target's one architecture with
    a suffix.
    """
    if specific != WGMMA_ARCHITECTURE:
        return f"the target is {name}, not {WGMMA_ARCHITECTURE} alone"
    dtypes = (gemm.a.dtype, gemm.b.dtype)
    if dtypes[0] != dtypes[1] and not BYTES.issuperset(dtypes) and not SMALL_FLOATS.issuperset(dtypes):
        return f"the operands are {dtypes[0]} and {dtypes[1]}"
    wanted = "int32" if BYTES.issuperset(dtypes) else "float32"
    if gemm.acc_dtype != wanted:
        return f"the sums are {gemm.acc_dtype}, not {wanted}"
    if dtypes[0] in SMALL_FLOATS and not gemm.tf32:
        return f"wgmma keeps 13 bits of the fraction of sums of {dtypes[0]}, and these must be float32's"
    if not gemm.k:
        return "there is nothing to multiply"
    images = why_not_patches(gemm.a) if gemm.a.pictures is not None else refusal(gemm.a)
    return images or refusal(gemm.b)


def sums_twice(gemm: Gemm) -> bool:
    """Return whether wgmma's partial sums of each stage are added to float32 sums by ordinary arithmetic: for products
    of 8-bit floats it keeps only 13 bits of the fraction and truncates the rest (docs/cuda_hopper.md gives the source).
    """
    return gemm.a.dtype in SMALL_FLOATS


def why_not_wgmma_tile(gemm: Gemm, tile: WgmmaTile) -> str | None:
    """Return why no kernel computes such a GEMM in a tile; None if one does."""
    sums = tile.rows * tile.bn // 2
    if sums_twice(gemm) and sums > MOST_SUMS_TWICE:
        return f"a thread would hold {sums} sums of {gemm.a.dtype} twice; it may hold {MOST_SUMS_TWICE} so"
    return tile.why_not()
