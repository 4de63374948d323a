"""ldmatrix and mma.sync: fragments lie as the PTX manual says, so that they multiply as matrices."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.emulator.kernels import kernel, run

MMA = """\
  int g = threadIdx.x / 4, t = threadIdx.x % 4;
  unsigned ra[NA], rb[NB];
  for (int r = 0; r < NA; ++r) ra[r] = a[(g + 8 * (r % 2)) * (NB * 4) + t + 4 * (r / 2)];
  for (int r = 0; r < NB; ++r) rb[r] = b[g * (NB * 4) + t + 4 * r];
  SUM r0 = c[g * 8 + 2 * t], r1 = c[g * 8 + 2 * t + 1], r2 = c[(g + 8) * 8 + 2 * t], r3 = c[(g + 8) * 8 + 2 * t + 1];
  asm volatile("NAME {%0, %1, %2, %3}, {A}, {B}, {%0, %1, %2, %3};"
               : "+K"(r0), "+K"(r1), "+K"(r2), "+K"(r3) : INPUTS);
  c[g * 8 + 2 * t] = r0;
  c[g * 8 + 2 * t + 1] = r1;
  c[(g + 8) * 8 + 2 * t] = r2;
  c[(g + 8) * 8 + 2 * t + 1] = r3;"""

CASES = {
    "m16n8k16.row.col.f32.f16.f16.f32": (16, np.float16, np.float32),
    "m16n8k16.row.col.f32.bf16.bf16.f32": (16, ml_dtypes.bfloat16, np.float32),
    "m16n8k8.row.col.f32.f16.f16.f32": (8, np.float16, np.float32),
    "m16n8k8.row.col.f32.tf32.tf32.f32": (8, np.float32, np.float32),
    "m16n8k4.row.col.f32.tf32.tf32.f32": (4, np.float32, np.float32),
    "m16n8k32.row.col.s32.s8.s8.s32": (32, np.int8, np.int32),
    "m16n8k32.row.col.f32.e4m3.e4m3.f32": (32, ml_dtypes.float8_e4m3fn, np.float32),
}


@pytest.mark.parametrize("name", CASES)
def test_mma_multiplies_matrices(name: str) -> None:
    k, dtype, sum_dtype = CASES[name]
    generator = np.random.default_rng(2)
    a = generator.integers(-6, 7, (16, k)).astype(np.float32).astype(dtype)  # exact in every format
    b = generator.integers(-6, 7, (8, k)).astype(np.float32).astype(dtype)
    c = generator.integers(-9, 10, (16, 8)).astype(sum_dtype)
    expected = c + (a.astype(np.float32) @ b.astype(np.float32).T).astype(sum_dtype)
    registers = k * a.itemsize // 16
    numbers = [f"%{4 + i}" for i in range(3 * registers)]
    inputs = [f'"r"(ra[{i}])' for i in range(2 * registers)] + [f'"r"(rb[{i}])' for i in range(registers)]
    body = MMA.replace("{A}", "{" + ", ".join(numbers[: 2 * registers]) + "}").replace("INPUTS", ", ".join(inputs))
    body = body.replace("{B}", "{" + ", ".join(numbers[2 * registers :]) + "}").replace(
        "NAME", f"mma.sync.aligned.{name}"
    )
    body = body.replace("SUM", "float" if sum_dtype is np.float32 else "int").replace("NA", str(2 * registers))
    body = body.replace("NB", str(registers)).replace("+K", "+f" if sum_dtype is np.float32 else "+r")
    ctype = "float" if sum_dtype is np.float32 else "int"
    run(kernel(f"unsigned* a, unsigned* b, {ctype}* c", body), [a.view(np.uint32), b.view(np.uint32), c])
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix_hands_out_four_matrices(trans: str) -> None:
    body = f"""\
  __shared__ alignas(16) unsigned short tile[256];
  for (int i = 0; i < 8; ++i) tile[i * 32 + threadIdx.x] = x[i * 32 + threadIdx.x];
  __syncthreads();
  unsigned r[4], row = (unsigned)__cvta_generic_to_shared(tile + threadIdx.x * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
  for (int i = 0; i < 4; ++i) y[i * 32 + threadIdx.x] = r[i];"""
    x, y = np.arange(256, dtype=np.uint16), np.zeros((4, 32), np.uint32)
    run(kernel("unsigned short* x, unsigned* y", body), [x, y])
    matrices = x.reshape(4, 8, 8)
    expected = matrices.transpose(0, 2, 1) if trans else matrices
    np.testing.assert_array_equal(y.view(np.uint16).reshape(4, 8, 8), expected)
