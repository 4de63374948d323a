"""What kernels compute on the emulated device, in both modes and in every order of blocks and threads."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.emulator.kernels import kernel, numbers, run
from tilestitch.runtime.emulator import EmulatorOptions

MODES = [EmulatorOptions(checked=True), EmulatorOptions(checked=False)]
ORDERS = [
    EmulatorOptions(),
    EmulatorOptions(block_order="reversed", thread_order="reversed", resident_blocks=1),
    EmulatorOptions(block_order="random", thread_order="random", seed=3, resident_blocks=2),
    EmulatorOptions(block_order="adversarial", thread_order="random", seed=5, resident_blocks=7),
]

SOFTMAX = kernel(
    "float* __restrict__ y, float* __restrict__ x",
    """\
  __shared__ alignas(64) float staging[8];
  __shared__ alignas(64) float total[1];
  float sum[1];
  sum[0] = 0.0f;
  for (int i = 0; i < 4; ++i) {
    if (((i * 256) + ((int)threadIdx.x)) < 1000) {
      sum[0] = (sum[0] + __expf(x[(((((int)blockIdx.x) * 1000) + (i * 256)) + ((int)threadIdx.x))]));
    }
  }
  uint mask[1];
  float t[1];
  mask[0] = __activemask();
  for (int step = 16; step > 0; step = step / 2) {
    t[0] = __shfl_down_sync(mask[0], sum[0], step, 32);
    sum[0] = (sum[0] + t[0]);
  }
  if ((((int)threadIdx.x) % 32) == 0) {
    staging[(((int)threadIdx.x) >> 5)] = sum[0];
  }
  __syncthreads();
  if (((int)threadIdx.x) == 0) {
    ((volatile float*)total)[0] = 0.0f;
    for (int i = 0; i < 8; ++i) total[0] = (total[0] + staging[i]);
  }
  __syncthreads();
  for (int i = 0; i < 4; ++i) {
    if (((i * 256) + ((int)threadIdx.x)) < 1000) {
      int at = (((((int)blockIdx.x) * 1000) + (i * 256)) + ((int)threadIdx.x));
      y[at] = (__expf(x[at]) / total[0]);
    }
  }""",
)

TRANSPOSE = kernel(
    "half* __restrict__ y, half* __restrict__ x",
    """\
  __shared__ half tile[32][33];
  for (int i = 0; i < 4; ++i)
    tile[threadIdx.y + i * 8][threadIdx.x] =
        x[(blockIdx.y * 32 + threadIdx.y + i * 8) * 96 + blockIdx.x * 32 + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 4; ++i)
    y[(blockIdx.x * 32 + threadIdx.y + i * 8) * 64 + blockIdx.y * 32 + threadIdx.x] =
        tile[threadIdx.x][threadIdx.y + i * 8];""",
)


@pytest.mark.parametrize("options", [*MODES, *ORDERS[1:]])
def test_softmax_of_rows_does_not_depend_on_the_order(options: EmulatorOptions) -> None:
    x = numbers(9, 1000)
    y = np.zeros_like(x)
    run(SOFTMAX, [y, x], 9, 256, options)
    expected = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, expected / expected.sum(-1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize("options", ORDERS)
def test_transpose_through_shared_memory(options: EmulatorOptions) -> None:
    x = numbers(64, 96, dtype=np.float16)
    y = np.zeros((96, 64), np.float16)
    run(TRANSPOSE, [y, x], (3, 2, 1), (32, 8, 1), options)
    np.testing.assert_array_equal(y, x.T)


@pytest.mark.parametrize("options", MODES)
def test_dynamic_shared_memory_of_several_types(options: EmulatorOptions) -> None:
    body = """\
  extern __shared__ __align__(64) unsigned char memory[];
  ((float*)memory)[threadIdx.x] = x[threadIdx.x];
  ((half*)(memory + 256))[threadIdx.x] = (half)x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = ((float*)memory)[63 - threadIdx.x] + (float)((half*)(memory + 256))[threadIdx.x];"""
    x, y = numbers(64), np.zeros(64, np.float32)
    run(kernel("float* y, float* x", body), [y, x], 1, 64, options, shared_bytes=384)
    np.testing.assert_array_equal(y, x[::-1] + x.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(("ctype", "dtype"), [("half", np.float16), ("nv_bfloat16", ml_dtypes.bfloat16)])
def test_half_floats_round_as_numpy_does(ctype: str, dtype: type) -> None:
    x, z = numbers(4096, dtype=dtype), (numbers(2, 4096)[1] * 100).astype(dtype)
    y = np.zeros((4, 4096), dtype)
    body = """\
  int i = blockIdx.x * 256 + threadIdx.x;
  y[i] = x[i] + z[i];
  y[i + 4096] = x[i] * z[i];
  y[i + 8192] = x[i] / z[i];
  y[i + 12288] = hexp(x[i]);"""
    run(kernel(f"{ctype}* y, {ctype}* x, {ctype}* z", body), [y, x, z], 16, 256)
    np.testing.assert_array_equal(y[0], x + z)
    np.testing.assert_array_equal(y[1], x * z)
    np.testing.assert_array_equal(y[2], x / z)
    expected = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y[3].astype(np.float64), expected, rtol=float(ml_dtypes.finfo(dtype).eps))


@pytest.mark.parametrize(("ctype", "dtype"), [("half", np.float16), ("nv_bfloat16", ml_dtypes.bfloat16)])
def test_every_half_float_converts_both_ways(ctype: str, dtype: type) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    x, wide, back = bits.view(dtype), np.zeros(65536, np.float32), np.zeros(65536, dtype)
    body = "  int i = blockIdx.x * 1024 + threadIdx.x; wide[i] = (float)x[i]; back[i] = (T)(wide[i]);".replace(
        "T", ctype
    )
    run(kernel(f"{ctype}* x, float* wide, {ctype}* back", body), [x, wide, back], 64, 1024)
    np.testing.assert_array_equal(wide, x.astype(np.float32))
    number = ~np.isnan(wide)
    np.testing.assert_array_equal(back.view(np.uint16)[number], bits[number])
    assert np.isnan(back[~number].astype(np.float32)).all()


@pytest.mark.parametrize(("ctype", "dtype"), [("half", np.float16), ("nv_bfloat16", ml_dtypes.bfloat16)])
def test_floats_narrow_to_nearest_even(ctype: str, dtype: type) -> None:
    patterns = np.random.default_rng(1).integers(0, 2**32, 1 << 14, dtype=np.uint32)
    edges = np.array([65519.9, 65520, 2**-25, 2**-24, 2**-14, 1 + 2**-11, 1 + 3 * 2**-11, 3.4e38], np.float32)
    x = np.concatenate([patterns.view(np.float32), edges, -edges, np.zeros(1008, np.float32)])
    x = np.where(np.isnan(x), 0, x).astype(np.float32)
    y = np.zeros(x.size, dtype)
    run(
        kernel(f"{ctype}* y, float* x", f"  int i = blockIdx.x * 1024 + threadIdx.x; y[i] = ({ctype})x[i];"),
        [y, x],
        17,
        1024,
    )
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, x.astype(dtype))


def test_vector_accesses() -> None:
    x, y = numbers(256), np.zeros(256, np.float32)
    body = """\
  float4 v = *(float4*)(x + threadIdx.x * 4);
  int4 index = make_int4(threadIdx.x * 4 + 3, threadIdx.x * 4 + 2, threadIdx.x * 4 + 1, threadIdx.x * 4);
  *(float4*)(y + threadIdx.x * 4) = make_float4(v.w, v.z, v.y, x[index.w]);"""
    run(kernel("float* y, float* x", body), [y, x], 1, 64)
    np.testing.assert_array_equal(y, x.reshape(64, 4)[:, ::-1].ravel())


SHUFFLES = {
    "__shfl_sync(0xffffffffu, v, 5)": lambda v: np.full(32, v[5]),
    "__shfl_sync(0xffffffffu, v, threadIdx.x + 1, 8)": lambda v: np.roll(v.reshape(4, 8), -1, 1).ravel(),
    "__shfl_xor_sync(0xffffffffu, v, 3)": lambda v: v[np.arange(32) ^ 3],
    "__shfl_up_sync(0xffffffffu, v, 2)": lambda v: v[
        np.maximum(np.arange(32) - 2, np.arange(32) * (np.arange(32) < 2))
    ],
    "__shfl_down_sync(0xffffffffu, v, 4, 16)": lambda v: v[[i if i % 16 > 11 else i + 4 for i in range(32)]],
    "__ballot_sync(0xffffffffu, v % 3 == 0) & 0x7fffffff": lambda v: np.full(
        32, sum(1 << i for i in range(31) if v[i] % 3 == 0)
    ),
    "__any_sync(0xffffffffu, v == 35)": lambda v: np.ones(32),
    "__all_sync(0xffffffffu, v == 35)": lambda v: np.zeros(32),
    "__reduce_add_sync(0xffffffffu, v)": lambda v: np.full(32, v.sum()),
    "__reduce_max_sync(0xffffffffu, -v)": lambda v: np.full(32, -v.min()),
    "__syncthreads_count(v < 12)": lambda v: np.full(32, (v < 12).sum()),
    "__syncthreads_or(v == 1)": lambda v: np.zeros(32),
    "__syncthreads_and(v >= 5)": lambda v: np.ones(32),
}


def test_shuffles_votes_and_reductions() -> None:
    v = (np.arange(32) * 5 % 32 + 5).astype(np.int32)
    y = np.zeros((len(SHUFFLES), 32), np.int32)
    lines = [f"  y[{row * 32} + threadIdx.x] = {call};" for row, call in enumerate(SHUFFLES)]
    run(kernel("int* y, int* x", "  int v = x[threadIdx.x];\n" + "\n".join(lines)), [y, v], 1, 32)
    for row, (call, expected) in zip(y, SHUFFLES.items(), strict=True):
        np.testing.assert_array_equal(row, expected(v), err_msg=call)


def test_active_mask_names_the_lanes_of_the_branch() -> None:
    y = np.zeros(64, np.uint32)
    body = """\
  if (threadIdx.x % 32 < 8) {
    y[threadIdx.x] = __activemask();
  } else {
    y[threadIdx.x] = __activemask();
  }"""
    run(kernel("unsigned* y", body), [y], 1, 64)
    np.testing.assert_array_equal(y.reshape(2, 32), np.repeat([0xFF, 0xFFFFFF00], [8, 24])[None].repeat(2, 0))


@pytest.mark.parametrize("options", ORDERS)
def test_atomics(options: EmulatorOptions) -> None:
    body = """\
  int i = blockIdx.x * 64 + threadIdx.x;
  atomicAdd(sum, 0.5f);
  atomicAdd(halves, __float2half(0.25f));
  atomicMax(most, i * 37 % 256);
  atomicMin(most + 1, i * 37 % 256);
  unsigned old, *word = (unsigned*)most + 2;
  do { old = *(volatile unsigned*)word; } while (atomicCAS(word, old, old + 2) != old);"""
    total, halves, most = np.zeros(1, np.float32), np.zeros(1, np.float16), np.array([-1, 999, 0], np.int32)
    run(kernel("float* sum, half* halves, int* most", body), [total, halves, most], 4, 64, options)
    assert (total[0], halves[0], *most) == (128, 64, 255, 0, 512)


@pytest.mark.parametrize("options", ORDERS)
def test_votes_of_some_warps_at_a_named_barrier(options: EmulatorOptions) -> None:
    body = """\
  if (threadIdx.x >= 64) return;
  for (int i = 0; i < 3; ++i) {
    int found;
    asm volatile("{\\n.reg .pred own;\\nsetp.ne.s32 own, %1, 0;\\nbar.red.popc.u32 %0, 1, %2, own;\\n}"
                 : "=r"(found) : "r"((int)threadIdx.x % (i + 2)), "r"(64) : "memory");
    y[i * 64 + threadIdx.x] = found;
  }"""
    y = np.zeros((3, 64), np.int32)
    run(kernel("int* y", body), [y], 1, 96, options)
    np.testing.assert_array_equal(y, np.repeat([[32], [42], [48]], 64, axis=1))


def test_warp_specialised_roles_with_named_barriers() -> None:
    body = """\
  __shared__ float slot[64];
  if (threadIdx.x < 64) {
    for (int i = 0; i < 3; ++i) {
      slot[threadIdx.x] = x[i * 64 + threadIdx.x];
      asm volatile("bar.sync 1, 128;" ::: "memory");
      asm volatile("bar.sync %0, %1;" :: "r"(2), "r"(128) : "memory");
    }
  } else {
    float sum = 0;
    for (int i = 0; i < 3; ++i) {
      asm volatile("bar.sync 1, 128;" ::: "memory");
      sum += slot[127 - threadIdx.x];
      asm volatile("bar.sync 2, 128;" ::: "memory");
    }
    y[threadIdx.x - 64] = sum;
  }"""
    x, y = numbers(3, 64), np.zeros(64, np.float32)
    run(kernel("float* y, float* x", body), [y, x], 1, 128)
    np.testing.assert_allclose(y, x.sum(0)[::-1], rtol=1e-5, atol=1e-6)


GRID_SYNC = kernel(
    "float* y, float* x",
    """\
  int i = blockIdx.x * 32 + threadIdx.x;
  y[i] = x[i] * 2;
  grid_sync();
  x[i] = y[255 - i];""",
    "inline __device__ void grid_sync() { namespace cg = cooperative_groups; cg::this_grid().sync(); }\n",
)


@pytest.mark.parametrize("options", ORDERS)
def test_grid_barrier(options: EmulatorOptions) -> None:
    x = numbers(256)
    given, y = x.copy(), np.zeros(256, np.float32)
    run(GRID_SYNC, [y, given], 8, 32, options, cooperative=True)
    np.testing.assert_array_equal(given, 2 * x[::-1])


TILE_SYNC = """\
  int i = blockIdx.x * 32 + threadIdx.x;
  y[i] = x[i] + 1;
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("red.RELEASE.gpu.global.add.s32 [%0], %1;" :: "l"(counter), "r"(1) : "memory");
    int seen;
    do {
      asm volatile("ld.ACQUIRE.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    } while (seen < 4);
  }
  __syncthreads();
  z[i] = y[127 - i];"""


def tile_sync(release: str = "release", acquire: str = "acquire") -> str:
    text = TILE_SYNC.replace("RELEASE", release).replace("ACQUIRE", acquire)
    return kernel("float* x, float* y, float* z, int* counter", text)


@pytest.mark.parametrize("options", ORDERS[:1] + ORDERS[3:])
def test_blocks_wait_for_one_another_by_release_and_acquire(options: EmulatorOptions) -> None:
    x, y, z, counter = numbers(128), np.zeros(128, np.float32), np.zeros(128, np.float32), np.zeros(1, np.int32)
    run(tile_sync(), [x, y, z, counter], 4, 32, options)
    np.testing.assert_array_equal(z, (x + 1)[::-1])


def test_fences_make_relaxed_atomics_synchronise() -> None:
    body = """\
  __shared__ int last;
  partial[blockIdx.x * 32 + threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(counter, 1) == 3;
    __threadfence();
  }
  __syncthreads();
  if (last) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += partial[i * 32 + threadIdx.x];
    y[threadIdx.x] = sum;
  }"""
    x, partial, y, counter = numbers(4, 32), np.zeros(128, np.float32), np.zeros(32, np.float32), np.zeros(1, np.int32)
    run(kernel("float* x, float* partial, float* y, int* counter", body), [x, partial, y, counter], 4, 32)
    np.testing.assert_allclose(y, x.sum(0), rtol=1e-5, atol=1e-6)


def test_unchecked_kernels_may_divide_by_zero_without_ending_the_process() -> None:
    from tilestitch.runtime.emulator import KernelFaultError

    y = np.zeros(32, np.int32)
    with pytest.raises(KernelFaultError, match=r"line 5: .*divides an integer by zero"):
        run(kernel("int* y", "  y[threadIdx.x] = 5 / y[threadIdx.x];"), [y], 1, 32, MODES[1])


def test_large_local_arrays() -> None:
    body = """\
  float big[60000];
  for (int i = 0; i < 60000; ++i) big[i] = x[(i + threadIdx.x) % 64];
  y[threadIdx.x] = big[59999 - (int)x[threadIdx.x]];"""
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    run(kernel("float* y, float* x", body), [y, x], 1, 64, MODES[1])
    np.testing.assert_array_equal(y, (59999 - x + np.arange(64)) % 64)
