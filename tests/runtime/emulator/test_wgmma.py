"""wgmma: operands lie in shared memory as CUTLASS's canonical layouts say, so that they multiply as matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.emulator.hopper import WGMMA, hopper, run_hopper
from tilestitch.runtime.emulator import EmulatorOptions

MODES = {0: 0, 32: 3, 64: 2, 128: 1}
"""What a descriptor calls a swizzle of so many bytes."""


@dataclass(frozen=True)
class Layout:
    """Where the elements of a matrix of `rows` by K lie, K being 32 bytes; `leading` and `stride` in bytes."""

    swizzle: int
    row_major: bool  # K is contiguous
    leading: int
    stride: int

    def offsets(self, rows: int, item_bytes: int) -> np.ndarray:
        """Byte offsets of all elements, by cute's definition in units of T elements, which are 16 bytes."""
        t, units = 16 // item_bytes, max(1, self.swizzle // 16)
        r, k = np.indices((rows, 32 // item_bytes))
        if self.row_major:  # ((8, m), (T, 2)) : ((units * T, SBO), (1, T or LBO))
            chunk = self.leading if self.swizzle == 0 else 16
            plain = r % 8 * units * 16 + r // 8 * self.stride + k % t * item_bytes + k // t * chunk
        else:  # ((T, units, m), (8, k)) : ((1, T, LBO), (units * T, SBO)), and LBO and SBO swapped without a swizzle
            outer, deep = (self.leading, self.stride) if self.swizzle else (self.stride, self.leading)
            inner = r % t * item_bytes + r // t % units * 16
            plain = inner + r // (t * units) * outer + k % 8 * units * 16 + k // 8 * deep
        pattern = {0: 0, 32: 1, 64: 3, 128: 7}[self.swizzle]
        return plain ^ (((plain >> 7) & pattern) << 4)

    def image(self, matrix: np.ndarray) -> np.ndarray:
        """Shared memory that holds the matrix, and rubbish elsewhere."""
        offsets = self.offsets(matrix.shape[0], matrix.itemsize)
        image = np.full((int(offsets.max()) // 1024 + 1) * 1024, 0x5A, np.uint8).view(matrix.dtype)
        image[offsets // matrix.itemsize] = matrix
        return image.view(np.uint8)


def k_major(swizzle: int) -> Layout:
    return Layout(swizzle, True, 2048 if swizzle == 0 else 16, 128 if swizzle == 0 else 8 * swizzle)


def mn_major(swizzle: int, rows: int) -> Layout:
    if swizzle == 0:
        return Layout(0, False, 16 * rows, 128)
    return Layout(swizzle, False, 16 * swizzle, 8 * swizzle)


def wgmma_kernel(
    name: str, columns: int, a: Layout | None, b: Layout, sum_type: str, tail: str = "", accumulates: int = 1
) -> str:
    """D = A B^T + C; A from registers if it has no layout. `tail`: scales and transposes."""
    count = columns // 4 if sum_type == "f16" else columns // 2
    c_type, letter = ("float", "f") if sum_type == "f32" else ("uint32_t", "r")
    sums = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    a_places = f"%{count}" if a else "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
    b_place = count + (1 if a else 4)
    a_operands = '"l"(da)' if a else ", ".join(f'"r"(ra[{i}])' for i in range(4))
    descriptors = f"  uint64_t db = matrix(b, {b.leading}, {b.stride}, {MODES[b.swizzle]});\n"
    if a:
        descriptors += f"  uint64_t da = matrix(a, {a.leading}, {a.stride}, {MODES[a.swizzle]});\n"
    else:
        descriptors += """\
  uint32_t ra[4];
  for (int r = 0; r < 4; ++r) {
    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * (r % 2);
    ra[r] = ((const uint32_t*)a_image)[row * 8 + threadIdx.x % 4 + 4 * (r / 2)];
  }
"""
    body = f"""\
  extern __shared__ __align__(1024) uint8_t memory[];
  uint8_t *a = memory, *b = memory + 16384;
  for (int i = threadIdx.x; i < {"16384" if a else "0"}; i += 128) a[i] = a_image[i];
  for (int i = threadIdx.x; i < 32768; i += 128) b[i] = b_image[i];
  fence_async();
  __syncthreads();
{descriptors}  {c_type} d[{count}];
  for (int i = 0; i < {count}; ++i) d[i] = sums[threadIdx.x * {count} + i];
  wgmma_fence();
  asm volatile("{{.reg .pred go; setp.ne.b32 go, %{b_place + 1}, 0;\\n"
               "wgmma.mma_async.sync.aligned.{name} {{{sums}}}, {a_places}, %{b_place}, go{tail};\\n}}"
               : {outputs} : {a_operands}, "l"(db), "r"({accumulates}));
  wgmma_commit();
  wgmma_wait();
  for (int i = 0; i < {count}; ++i) sums[threadIdx.x * {count} + i] = d[i];"""
    return hopper(f"const uint8_t* a_image, const uint8_t* b_image, {c_type}* sums", body, WGMMA, 128)


def fragments(columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of sum `i` of each of 128 threads."""
    thread, i = np.indices((128, columns // 2))
    row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
    return row, 8 * (i // 4) + 2 * (thread % 4) + i % 2


def padded(image: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([image, np.full(size - image.size, 0x5A, np.uint8)])


def multiply(
    name: str, dtype: Any, columns: int, a: Layout | None, b: Layout, sum_dtype: Any = np.float32, tail: str = "",
    accumulates: int = 1, options: EmulatorOptions | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """A, B, C and the result, for small integers, which are exact in every format."""
    generator = np.random.default_rng(columns)
    k = 32 // np.dtype(dtype).itemsize
    low = 0 if np.dtype(dtype).kind == "u" else -3
    left, right = (generator.integers(low, 4, (rows, k)).astype(np.float32).astype(dtype) for rows in (64, columns))
    start = generator.integers(-9, 10, (64, columns)).astype(sum_dtype)
    row, column = fragments(columns)
    sums = np.ascontiguousarray(start[row, column])
    kind = {np.float32: "f32", np.float16: "f16", np.int32: "s32"}[sum_dtype]
    text = wgmma_kernel(f"m64n{columns}k{k}.{name}", columns, a, b, kind, tail, accumulates)
    a_image = padded(a.image(left), 16384) if a else left.view(np.uint8).reshape(-1)
    run_hopper(text, [a_image, padded(b.image(right), 32768), sums], options=options, shared_bytes=49152)
    result = np.zeros_like(start)
    result[row, column] = sums
    return left, right, start, result


def expected(left: np.ndarray, right: np.ndarray, start: np.ndarray) -> np.ndarray:
    return start.astype(np.float64) + left.astype(np.float64) @ right.astype(np.float64).T


SWIZZLES = [0, 32, 64, 128]


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize(("a_major", "b_major"), [("k", "k"), ("mn", "k"), ("k", "mn"), ("mn", "mn")])
def test_operands_of_16_bits_in_every_layout(swizzle: int, a_major: str, b_major: str) -> None:
    layouts = [k_major(swizzle) if major == "k" else mn_major(swizzle, 64) for major in (a_major, b_major)]
    tail = f", 1, 1, {int(a_major == 'mn')}, {int(b_major == 'mn')}"
    left, right, start, result = multiply("f32.f16.f16", np.float16, 64, layouts[0], layouts[1], tail=tail)
    np.testing.assert_array_equal(result, expected(left, right, start))


TYPES = {
    "f32.f16.f16": (np.float16, np.float32, ", 1, 1, 0, 0"),
    "f32.bf16.bf16": (ml_dtypes.bfloat16, np.float32, ", 1, 1, 0, 0"),
    "f16.f16.f16": (np.float16, np.float16, ", 1, 1, 0, 0"),
    "f32.tf32.tf32": (np.float32, np.float32, ", 1, 1"),
    "s32.s8.s8": (np.int8, np.int32, ""),
    "s32.u8.u8": (np.uint8, np.int32, ""),
    "f32.e4m3.e4m3": (ml_dtypes.float8_e4m3fn, np.float32, ", 1, 1"),
    "f32.e5m2.e5m2": (ml_dtypes.float8_e5m2, np.float32, ", 1, 1"),
    "f16.e4m3.e4m3": (ml_dtypes.float8_e4m3fn, np.float16, ", 1, 1"),
}


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_types_with_a_in_shared_memory_and_in_registers(name: str, registers: bool) -> None:
    dtype, sum_dtype, tail = TYPES[name]
    if registers and tail.endswith(", 0, 0"):
        tail = tail[:-3]  # there is nothing to transpose in registers
    a = None if registers else k_major(128)
    left, right, start, result = multiply(name, dtype, 24, a, k_major(128), sum_dtype, tail)
    np.testing.assert_array_equal(result, expected(left, right, start))


@pytest.mark.parametrize("columns", [8, 40, 256])
def test_widths(columns: int) -> None:
    left, right, start, result = multiply(
        "f32.bf16.bf16", ml_dtypes.bfloat16, columns, k_major(128), k_major(128), tail=", 1, 1, 0, 0"
    )
    np.testing.assert_array_equal(result, expected(left, right, start))


def test_scales() -> None:
    left, right, start, result = multiply(
        "f32.f16.f16", np.float16, 16, k_major(64), k_major(128), tail=", -1, 1, 0, 0"
    )
    np.testing.assert_array_equal(result, expected(-left, right, start))
    left, right, start, result = multiply(
        "f32.f16.f16", np.float16, 16, k_major(64), k_major(128), tail=", -1, -1, 0, 0", accumulates=0
    )
    np.testing.assert_array_equal(result, expected(left, right, np.zeros_like(start)))


@pytest.mark.parametrize("saturates", [False, True])
def test_integer_sums_wrap_or_saturate(saturates: bool) -> None:
    columns, (row, column) = 8, fragments(8)
    left, right = np.full((64, 32), 100, np.int8), np.full((columns, 32), 100, np.int8)
    start = np.full((64, columns), 2**31 - 5, np.int32)
    sums = np.ascontiguousarray(start[row, column])
    layout, word = k_major(128), ".satfinite" if saturates else ""
    text = wgmma_kernel(f"m64n8k32{word}.s32.s8.s8", columns, layout, layout, "s32")
    images = padded(layout.image(left), 16384), padded(layout.image(right), 32768)
    run_hopper(text, [*images, sums], shared_bytes=49152)
    assert (sums == (2**31 - 1 if saturates else -(2**31) - 5 + 32 * 100 * 100)).all()
