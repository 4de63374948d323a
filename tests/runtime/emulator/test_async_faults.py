"""A pipeline of tensor copies and wgmma, in every order; and planted faults in it. Each is found, in the right line."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.runtime.emulator.hopper import WGMMA, hopper, map_of, run_hopper
from tilestitch.runtime.emulator import EmulatorOptions, KernelFaultError

ORDERS = {
    "in_order": EmulatorOptions(),
    "reversed": EmulatorOptions(block_order="reversed", thread_order="reversed", resident_blocks=1),
    "random": EmulatorOptions(block_order="random", thread_order="random", seed=3),
    "adversarial": EmulatorOptions(block_order="adversarial", thread_order="random", seed=5),
    "unchecked": EmulatorOptions(checked=False),
}

MULTIPLY = """\
__device__ inline void multiply(float (&d)[4], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
}
"""
TRY_WAIT = """\
__device__ inline bool try_wait(uint64_t* bar, int parity) {
  unsigned done;
  asm volatile("{\\n.reg .pred p;\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\nselp.u32 %0, 1, 0, p;\\n}"
               : "=r"(done) : "r"(shared(bar)), "r"(parity) : "memory");
  return done;
}
"""
STEPS, STAGES = 5, 2

# One warpgroup multiplies, and a thread after it copies: C[64, 8] = A[64, K] B[8, K]^T, with K in steps of 64.
PIPELINE = f"""\
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ uint64_t full[{STAGES}];
  __shared__ uint64_t empty[{STAGES}];
  uint8_t *a = memory, *b = memory + {STAGES} * 8192, *out = memory + {STAGES} * 9216;
  int thread = threadIdx.x;
  if (thread == 0) {{
    for (int s = 0; s < {STAGES}; ++s) {{
      init(&full[s], 1);
      init(&empty[s], 1);
    }}
    fence_init();
  }}
  __syncthreads();
  if (thread == 128) {{
    for (int k = 0; k < {STEPS}; ++k) {{
      int s = k % {STAGES};
      await(&empty[s], (k / {STAGES} + 1) % 2);
      expect(&full[s], 9216);
      load_2d(a + s * 8192, &ma, &full[s], k * 64, blockIdx.x * 64);
      load_2d(b + s * 1024, &mb, &full[s], k * 64, 0);
    }}
  }}
  if (thread >= 128) return;
  float d[4] = {{0, 0, 0, 0}};
  for (int k = 0; k < {STEPS}; ++k) {{
    int s = k % {STAGES};
    await(&full[s], k / {STAGES} % 2);
    wgmma_fence();
    for (int i = 0; i < 4; ++i)
      multiply(d, matrix(a + s * 8192 + i * 32, 16, 1024, 1), matrix(b + s * 1024 + i * 32, 16, 1024, 1));
    wgmma_commit();
    wgmma_wait();
    if (thread == 0) arrive(&empty[s]);
  }}
  for (int i = 0; i < 4; ++i) {{
    int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 * 8;
    ((float*)out)[row * 8 + thread % 4 * 2 + i % 2] = d[i];
  }}
  fence_async();
  asm volatile("bar.sync 1, 128;" ::: "memory");
  if (thread == 0) {{
    store_2d(&mc, out, 0, blockIdx.x * 64);
    commit();
    wait_read();
  }}"""
SHARED_BYTES = STAGES * 9216 + 2048


def pipeline(*changes: tuple[str, str]) -> str:
    body = PIPELINE
    for old, new in changes:
        assert old in body, old
        body = body.replace(old, new)
    return hopper("map ma, map mb, map mc", body, WGMMA + MULTIPLY + TRY_WAIT, 160)


def run_pipeline(text: str, options: EmulatorOptions | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The result of two blocks, and what it should be."""
    generator = np.random.default_rng(1)
    a, b = (generator.integers(-4, 5, (rows, STEPS * 64)).astype(np.float16) for rows in (128, 8))
    c = np.zeros((128, 8), np.float32)
    maps = [
        (map_of(a, (64, 64), swizzle="128B"), a), (map_of(b, (64, 8), swizzle="128B"), b), (map_of(c, (8, 64)), c),
    ]  # fmt: skip
    run_hopper(text, maps, 160, options, grid=2, shared_bytes=SHARED_BYTES)
    return c, a.astype(np.float32) @ b.astype(np.float32).T


@pytest.mark.parametrize("options", ORDERS.values(), ids=ORDERS)
def test_a_pipeline_of_copies_and_wgmma(options: EmulatorOptions) -> None:
    np.testing.assert_array_equal(*run_pipeline(pipeline(), options))


WAIT = "    wgmma_wait();\n"
ARRIVE = "    if (thread == 0) arrive(&empty[s]);\n"
# What is changed, a part of the line where the fault is found, and what is said about it.
FAULTS: dict[str, tuple[list[tuple[str, str]], str, str]] = {
    "no wait for the copies": (
        [("    await(&full[s], k / 2 % 2);\n", "")],
        "multiply(", "shared memory that was never written|still writes; wait for its mbarrier first",
    ),
    "no loop around the wait for the copies": (
        [("    await(&full[s], k / 2 % 2);\n", "    try_wait(&full[s], k / 2 % 2);\n")],
        "multiply(", "races with a write by a bulk copy for the mbarrier at byte 0 of shared variable full",
    ),
    "no wait for the consumers": (
        [("      await(&empty[s], (k / 2 + 1) % 2);\n", "")],
        "expect(", "1 arrivals at the mbarrier at byte 0 of shared variable full, where 0 of 1 are missing",
    ),
    "arrival before wgmma is done": (
        [(WAIT + ARRIVE, ARRIVE + WAIT)],
        "load_2d(a", "write to byte .* of dynamic shared memory(, which wgmma .* still reads| races with a read by)",
    ),
    "accumulators touched in flight": (
        [(WAIT, "    if (k == 4) d[0] += 1.0f;\n" + WAIT)],
        "d[0] += 1.0f", "touches an accumulator of a wgmma in flight",
    ),
    "accumulators not waited for in the end": ([(WAIT, "    if (k < 4) wgmma_wait();\n")], "d[i]", "in flight"),
    "no wgmma.fence": ([("    wgmma_fence();\n", "")], "multiply(", "with no wgmma.fence"),
    "no wgmma.fence after touching accumulators": (
        [("    wgmma_fence();\n", "    if (k == 0) wgmma_fence();\n    if (k == 2) d[1] += 1.0f;\n")],
        "multiply(", "with no wgmma.fence since its registers were touched",
    ),
    "a descriptor that differs between threads": (
        [("matrix(b + s * 1024 + i * 32,", "matrix(b + s * 1024 + i * 32 + thread / 127 * 16,")],
        "multiply(", "differs from that of other threads of the warpgroup",
    ),
    "some warps do not multiply": (
        [("  if (thread >= 128) return;\n", "  if (thread >= 96) return;\n")], "", "96 of 128",
    ),
    "operands not aligned to the swizzle": (
        [("*b = memory + 2 * 8192", "*b = memory + 2 * 8192 + 128"), ("load_2d(b +", "load_2d(b - 128 +")],
        "multiply(", "with a swizzle of 128 bytes the matrix must be aligned to 1024",
    ),
    "a target not aligned to the swizzle": (
        [("*b = memory + 2 * 8192", "*b = memory + 2 * 8192 + 512")],
        "load_2d(b", "with a swizzle of 128 bytes it must be a multiple of 1024",
    ),
    "too few bytes expected": (
        [("expect(&full[s], 9216)", "expect(&full[s], 8192)")],
        "multiply(", "still writes; wait for its mbarrier",
    ),
    "bytes expected that no copy brings": (
        [("expect(&full[s], 9216)", "expect(&full[s], 9232)")],
        "", "phase 0 of the mbarrier at byte 0 of shared variable full: 1 of 1 arrivals, 16 bytes outstanding",
    ),
    "one copy more than bytes expected": (
        [("expect(&full[s], 9216)", "expect(&full[s], 1024)")],
        "", "8192 bytes more than expected",
    ),
    "an arrival missing": (
        [("init(&empty[s], 1)", "init(&empty[s], 2)")],
        "", r"waits for phase 0 of the mbarrier at byte 0 of shared variable empty: 1 of 2 arrivals",
    ),
    "barriers that the copy engine does not know": (
        [("    fence_init();\n", "")],
        "load_2d(a", "the copy engine may not see the mbarrier at byte 0 of shared variable full",
    ),
    "barriers that others do not know": (
        [("  __syncthreads();\n", "")],
        "await(", "no mbarrier|full races with a write",
    ),
    "ordinary writes that the copy engine does not see": (
        [("  fence_async();\n", "")],
        "store_2d", "wrote with no fence.proxy.async after",
    ),
    "a fence in one thread only": (
        [("  fence_async();\n", ""), ("    store_2d", "    fence_async();\n    store_2d")],
        "store_2d", r"thread \(1, 0, 0\) wrote with no fence.proxy.async after",
    ),
    "a store before the barrier": (
        [('  asm volatile("bar.sync 1, 128;" ::: "memory");\n', "")],
        "store_2d", "never written|is missing between them",
    ),
    "shared memory written while a store reads it": (
        [("    wait_read();\n", "    out[5] = 1;\n    wait_read();\n")],
        "out[5] = 1", r"which the bulk store of block .* thread \(0, 0, 0\) \(line \d+\) still reads",
    ),
    "a store that is not waited for": ([("    wait_read();\n", "")], "store_2d", "exits while the bulk store"),
    "a copy that is not waited for": (
        [("k < 5; ++k) {\n      int s", "k < 6; ++k) {\n      int s")],
        "", "the block ends while a bulk copy",
    ),
    "a barrier initialised twice": (
        [("    fence_init();\n", "    init(&full[0], 1);\n    fence_init();\n")],
        "init(&full[0], 1)", "is initialised already",
    ),
    "a barrier overwritten": (
        [("  if (thread == 128) {\n", "  if (thread == 128) {\n    full[0] = 0;\n")],
        "(&full[s]", "was overwritten by ordinary stores|races with a write",
    ),
    "a box larger than its target": (
        [("*b = memory + 2 * 8192", "*b = memory + 2 * 10240")],
        "load_2d(b", "out of bounds: write to 1024 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults(name: str) -> None:
    changes, line, match = FAULTS[name]
    with pytest.raises(KernelFaultError, match=match) as caught:
        run_pipeline(pipeline(*changes))
    assert line in caught.value.source, caught.value


@pytest.mark.parametrize("name", ["no wait for the copies", "arrival before wgmma is done"])
@pytest.mark.parametrize("order", ["reversed", "random", "adversarial"])
def test_races_show_in_every_order(name: str, order: str) -> None:
    changes, _, _ = FAULTS[name]
    with pytest.raises(KernelFaultError, match=r"still|races|never written"):
        run_pipeline(pipeline(*changes), ORDERS[order])


GLOBAL = """\
  __shared__ alignas(128) float tile[64];
  __shared__ uint64_t bar;
  x[threadIdx.x] = threadIdx.x;
  FENCE
  __syncthreads();
  if (threadIdx.x == 0) {
    init(&bar, 1);
    fence_init();
    expect(&bar, 256);
    load_1d(tile, &m, &bar, 0);
    LATE
    await(&bar, 0);
  }
  __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];"""


@pytest.mark.parametrize(
    ("fence", "late", "match"),
    [
        ("fence.proxy.async.global", "", None),
        ("fence.proxy.async", "", None),
        ("fence.proxy.async.shared::cta", "", "reads byte 0 of argument 0, which .* wrote with no fence.proxy.async"),
        ("fence.proxy.async", "x[5] = 1;", "write to byte 20 of argument 0 races with a read by a bulk copy"),
    ],
)
def test_global_memory_that_a_copy_reads(fence: str, late: str, match: str | None) -> None:
    body = GLOBAL.replace("FENCE", f'asm volatile("{fence};" ::: "memory");').replace("LATE", late)
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    arguments = [x, (map_of(x, (64,)), x), y]
    text = hopper("float* x, map m, float* y", body)
    if match is None:
        run_hopper(text, arguments, 64)
        np.testing.assert_array_equal(y, np.arange(63, -1, -1))
        return
    with pytest.raises(KernelFaultError, match=match):
        run_hopper(text, arguments, 64)


BETWEEN_BLOCKS = """\
  __shared__ alignas(128) float tile[64];
  __shared__ uint64_t bar;
  if (blockIdx.x == 0) {
    x[threadIdx.x] = threadIdx.x;
    FENCE
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], %1;" :: "l"(flag), "r"(1) : "memory");
    return;
  }
  uint32_t seen = 0;
  if (threadIdx.x == 0) {
    while (!seen) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    init(&bar, 1);
    fence_init();
    expect(&bar, 256);
    load_1d(tile, &m, &bar, 0);
    await(&bar, 0);
  }
  __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];"""


@pytest.mark.parametrize("resident", [1, 2])
@pytest.mark.parametrize("fence", ["fence.proxy.async.global", ""])
def test_a_copy_reads_what_another_block_wrote(fence: str, resident: int) -> None:
    """That the writer's block has ended shows its writes no more than a release does."""
    asm = f'asm volatile("{fence};" ::: "memory");' if fence else ""
    x, y, flag = np.zeros(64, np.float32), np.zeros(64, np.float32), np.zeros(1, np.uint32)
    arguments = [x, (map_of(x, (64,)), x), y, flag]
    text = hopper("float* x, map m, float* y, uint32_t* flag", BETWEEN_BLOCKS.replace("FENCE", asm))
    options = EmulatorOptions(resident_blocks=resident)
    if fence:
        run_hopper(text, arguments, 64, grid=2, options=options)
        np.testing.assert_array_equal(y, np.arange(63, -1, -1))
        return
    with pytest.raises(KernelFaultError, match=r"which .* wrote with no fence\.proxy\.async after"):
        run_hopper(text, arguments, 64, grid=2, options=options)


HAND_OVER = """\
  __shared__ alignas(128) float tile[64];
  if (blockIdx.x == 0) {
    tile[threadIdx.x] = threadIdx.x;
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      store_1d(&m, tile, 0);
      commit();
      WAIT
      asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(flag), "r"(1) : "memory");
      wait_read();
    }
  } else {
    uint32_t seen = 0;
    while (!seen) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    y[threadIdx.x] = x[threadIdx.x];
  }"""


@pytest.mark.parametrize("wait", ["wait_written();", "wait_read();"])
def test_another_block_reads_what_a_store_wrote(wait: str) -> None:
    """Only the whole wait says that the bytes are in global memory."""
    x, y, flag = np.zeros(64, np.float32), np.zeros(64, np.float32), np.zeros(1, np.uint32)
    text = hopper("const float* x, map m, float* y, uint32_t* flag", HAND_OVER.replace("WAIT", wait))
    arguments = [x, (map_of(x, (64,)), x), y, flag]
    if wait == "wait_written();":
        run_hopper(text, arguments, 64, grid=2)
        np.testing.assert_array_equal(y, np.arange(64))
        return
    with pytest.raises(KernelFaultError, match="read of byte 0 of argument 0 races with a write by the bulk store"):
        run_hopper(text, arguments, 64, grid=2)


def test_dynamic_shared_memory_is_aligned_as_declared() -> None:
    text = pipeline(("__align__(1024)", "__align__(128)"))
    with pytest.raises(KernelFaultError, match=r"byte 0 of dynamic shared memory; .* must be a multiple of 1024"):
        run_pipeline(text)


# A thread copies rows into a ring of two; all others read every row, and arrive.
RING = """\
  __shared__ alignas(128) float ring[2][32];
  __shared__ uint64_t full[2];
  __shared__ uint64_t empty[2];
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) {
      init(&full[s], 1);
      init(&empty[s], ARRIVALS);
    }
    fence_init();
  }
  __syncthreads();
  if (threadIdx.x >= 64) {
    if (threadIdx.x > 64) return;
    for (int i = 0; i < 6; ++i) {
      await(&empty[i % 2], (i / 2 + 1) % 2);
      expect(&full[i % 2], 128);
      load_2d(ring[i % 2], &m, &full[i % 2], 0, i);
    }
    return;
  }
  float sum = 0;
  for (int i = 0; i < 6; ++i) {
    await(&full[i % 2], i / 2 % 2);
    for (int j = 0; j < 32; ++j) sum += ring[i % 2][(j + threadIdx.x) % 32];
    ARRIVE
  }
  y[threadIdx.x] = sum;"""


def run_ring(arrivals: str, arrive: str, options: EmulatorOptions | None = None) -> None:
    x, y = np.arange(6 * 32, dtype=np.float32).reshape(6, 32), np.zeros(64, np.float32)
    text = hopper("map m, float* y", RING.replace("ARRIVALS", arrivals).replace("ARRIVE", arrive))
    run_hopper(text, [(map_of(x, (32, 1)), x), y], 96, options)
    np.testing.assert_array_equal(y, np.full(64, x.sum()))


@pytest.mark.parametrize("options", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize(
    ("arrivals", "arrive"),
    [("64", "arrive(&empty[i % 2]);"), ("2", "__syncwarp(); if (threadIdx.x % 32 == 3) arrive(&empty[i % 2]);")],
    ids=["each thread", "a lane for its warp"],
)
def test_a_ring_with_many_readers(arrivals: str, arrive: str, options: EmulatorOptions) -> None:
    run_ring(arrivals, arrive, options)


@pytest.mark.parametrize(
    ("arrivals", "arrive"),
    [
        ("63", "if (threadIdx.x != 17) arrive(&empty[i % 2]);"),
        ("2", "if (threadIdx.x % 32 == 3) arrive(&empty[i % 2]);"),
    ],
    ids=["one thread does not arrive", "a lane before its warp"],
)
def test_a_reader_that_no_thread_waits_for(arrivals: str, arrive: str) -> None:
    with pytest.raises(KernelFaultError, match=r"a bulk copy for the mbarrier .* races with a read by block") as caught:
        run_ring(arrivals, arrive)
    assert "load_2d" in caught.value.source


def test_messages_name_the_lines_of_the_kernel() -> None:
    """Not those of the functions that it calls."""
    text = pipeline((WAIT + ARRIVE, ARRIVE + WAIT))
    with pytest.raises(KernelFaultError) as caught:
        run_pipeline(text)
    lines = [text.splitlines()[int(number) - 1] for number in re.findall(r"line (\d+)", caught.value.problem)]
    assert any("load_2d(a" in line for line in lines) and any("multiply(d" in line for line in lines), caught.value
