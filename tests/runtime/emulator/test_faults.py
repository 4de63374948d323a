"""Planted faults: each is found, in the right kernel, line, block and thread. Without the fault the kernel passes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.runtime.emulator.kernels import kernel, numbers, run
from tests.runtime.emulator.test_execution import tile_sync
from tilestitch.runtime.emulator import EmulatorOptions, KernelFaultError

FIRST = 5  # the line of a body's first line in the kernel's text


def fault(*arguments: object, match: str, line: int | None = None, **more: object) -> KernelFaultError:
    """Run, and expect a fault whose problem matches, in line number `line` of the body."""
    with pytest.raises(KernelFaultError, match=match) as caught:
        run(*arguments, **more)  # type: ignore[arg-type]
    if line is not None:
        assert caught.value.line == FIRST - 1 + line, caught.value
    return caught.value


def floats(size: int = 64) -> np.ndarray:
    return np.zeros(size, np.float32)


REVERSE = """\
  __shared__ float t[64];
  t[threadIdx.x] = x[threadIdx.x];
  BARRIER
  y[threadIdx.x] = t[63 - threadIdx.x];"""


@pytest.mark.parametrize("order", ["in_order", "reversed", "random"])
def test_missing_syncthreads(order: str) -> None:
    options = EmulatorOptions(thread_order=order)
    run(
        kernel("float* y, float* x", REVERSE.replace("BARRIER", "__syncthreads();")),
        [floats(), floats()],
        1,
        64,
        options,
    )
    error = fault(
        kernel("float* y, float* x", REVERSE.replace("BARRIER", "")), [floats(), floats()], 1, 64, options,
        match="shared memory that was never written|__syncthreads.. is missing",
    )  # fmt: skip
    assert error.line == FIRST + 3


def test_missing_syncthreads_before_shared_memory_is_written_again() -> None:
    body = """\
  __shared__ float t[64];
  for (int i = 0; i < 2; ++i) {
    t[threadIdx.x] = x[threadIdx.x] + i;
    __syncthreads();
    y[threadIdx.x] += t[63 - threadIdx.x];
    END
  }"""
    run(kernel("float* y, float* x", body.replace("END", "__syncthreads();")), [floats(), floats()], 1, 64)
    text = kernel("float* y, float* x", body.replace("END", ""))
    fault(text, [floats(), floats()], 1, 64, match=r"of byte 252 of shared variable t races with a write", line=5)
    late = EmulatorOptions(thread_order="reversed")
    error = fault(text, [floats(), floats()], 1, 64, late, match="__syncthreads.. is missing between them")
    assert error.line in (FIRST + 2, FIRST + 4)


def test_syncwarp_orders_the_lanes_of_a_warp_only() -> None:
    body = REVERSE.replace("BARRIER", "__syncwarp();")
    same_warp = body.replace("63 - threadIdx.x", "threadIdx.x ^ 31")
    run(kernel("float* y, float* x", same_warp), [floats(), floats()], 1, 64)
    fault(kernel("float* y, float* x", body), [floats(), floats()], 1, 64, match="never written|races", line=4)


def test_shuffles_do_not_order_memory() -> None:
    body = REVERSE.replace("BARRIER", "x[0] = __shfl_sync(0xffffffffu, 0.0f, 0);").replace("63 -", "31 -")
    body = body.replace("x[0] = ", "float unused = ")
    fault(kernel("float* y, float* x", body), [floats(), floats()], 1, 32, match="missing between them", line=4)


@pytest.mark.parametrize("guard", ["i < 100", "i <= 100"])
def test_wrong_bound_of_a_read_and_a_write(guard: str) -> None:
    read = f"  int i = blockIdx.x * 64 + threadIdx.x;\n  if ({guard}) y[i] = 1.0f;\n  if (i < 100) y[i] = x[i];"
    write = f"  int i = blockIdx.x * 64 + threadIdx.x;\n  if ({guard}) y[i % 100] = x[i];"
    for text, problem in (
        (read, "write to 4 bytes at byte 400 of argument 0"),
        (write, "read of 4 bytes at byte 400 of argument 1"),
    ):
        arrays = [floats(100), floats(100)]
        if guard == "i < 100":
            run(kernel("float* y, float* x", text), arrays, 2, 64)
        else:
            fault(
                kernel("float* y, float* x", text), arrays, 2, 64, line=2,
                match=rf"block \(1, 0, 0\), thread \(36, 0, 0\): out of bounds: {problem}, which has 400",
            )  # fmt: skip


def test_a_wild_index_does_not_reach_another_argument() -> None:
    text = kernel("float* y, float* x", "  y[threadIdx.x - 2000000000] = x[0];")
    fault(text, [floats(), floats()], match="out of bounds.* of argument 0")


def test_bounds_of_shared_memory() -> None:
    body = "  __shared__ float a[64];\n  __shared__ float b[64];\n  a[threadIdx.x] = 0;\n  b[threadIdx.x + SHIFT] = 0;"
    run(kernel("float* y", body.replace("SHIFT", "0")), [floats()], 1, 64)
    fault(kernel("float* y", body.replace("SHIFT", "1")), [floats()], 1, 64, line=4,
          match=r"thread \(63, 0, 0\): out of bounds: write to 4 bytes")  # fmt: skip
    dynamic = "  extern __shared__ float a[];\n  a[threadIdx.x] = 0;"
    run(kernel("float* y", dynamic), [floats()], 1, 64, shared_bytes=256)
    fault(kernel("float* y", dynamic), [floats()], 1, 64, shared_bytes=252, match="dynamic shared memory", line=2)


def test_shared_memory_that_was_never_written() -> None:
    text = kernel("float* y", "  __shared__ float t[64];\n  y[threadIdx.x] = t[threadIdx.x];")
    fault(
        text,
        [floats()],
        2,
        64,
        match=r"block \(0, 0, 0\), thread \(0, 0, 0\): read of shared memory that was never written",
        line=2,
    )


def test_write_to_constants_and_misaligned_accesses() -> None:
    constant = floats()
    constant.flags.writeable = False
    fault(kernel("float* x", "  x[threadIdx.x] = 1.0f;"), [constant], match="argument 0, which is constant", line=1)
    text = kernel("float* x", "  *(float4*)(x + threadIdx.x * 4 + 1) = *(float4*)(x + threadIdx.x * 4);")
    fault(text, [floats(132)], match="not aligned", line=1)


@pytest.mark.parametrize("arriving", ["if (threadIdx.x >= 32) return;\n", "if (threadIdx.x < 32)\n"])
def test_divergent_barrier(arriving: str) -> None:
    fault(kernel("float* x", f"  {arriving}  __syncthreads();"), [floats()], 1, 64, line=2, match="has exited")


def test_threads_at_different_barriers() -> None:
    body = "  if (threadIdx.x < 32)\n    __syncthreads();\n  else\n    __syncthreads();"
    error = fault(kernel("float* x", body), [floats()], 1, 64, match="divergent barrier")
    assert f"line {FIRST + 1}" in str(error) and f"line {FIRST + 3}" in str(error)


def test_lane_outside_of_its_mask() -> None:
    text = kernel("int* x", "  x[threadIdx.x] = __shfl_sync(0xffffu, (int)threadIdx.x, 0);")
    fault(text, [np.zeros(32, np.int32)], match="leaves out the thread's own lane 16", line=1)


def test_a_shuffle_that_not_all_lanes_reach() -> None:
    body = "  if (threadIdx.x < 8)\n    x[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 0);\n  __syncthreads();"
    error = fault(kernel("float* x", body), [floats()], match="deadlock")
    assert re.search(rf"\(0, 0, 0\) and 7 more: waits at __shfl_sync \(line {FIRST + 1}\)", error.problem)
    assert re.search(rf"\(8, 0, 0\) and 23 more: waits at __syncthreads \(line {FIRST + 2}\)", error.problem)


def tile_arrays() -> list[np.ndarray]:
    return [numbers(128), floats(128), floats(128), np.zeros(1, np.int32)]


@pytest.mark.parametrize(("release", "acquire"), [("relaxed", "acquire"), ("release", "relaxed")])
def test_missing_release_or_acquire(release: str, acquire: str) -> None:
    error = fault(
        tile_sync(release, acquire), tile_arrays(), 4, 32, match="argument 1 races with a write by block .* release"
    )
    assert error.source == "z[i] = y[127 - i];"


def test_missing_barrier_before_a_release() -> None:
    text = tile_sync().replace("  __syncthreads();\n  if (threadIdx.x == 0) {", "  if (threadIdx.x == 0) {")
    fault(text, tile_arrays(), 4, 32, match="argument 1 races with a write by block")


def test_deadlock_when_too_few_blocks_are_resident() -> None:
    run(tile_sync(), tile_arrays(), 4, 32, EmulatorOptions(resident_blocks=4))
    error = fault(
        tile_sync(), tile_arrays(), 4, 32, EmulatorOptions(resident_blocks=3), match="deadlock: no thread can go on"
    )
    assert "3 of 4 blocks are resident" in error.problem
    assert "reads the value 3 again and again (ld.acquire" in error.problem


def test_deadlock_of_named_barriers() -> None:
    body = (
        '  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");\n  else asm volatile("bar.sync 2, 64;");'
    )
    error = fault(kernel("float* x", body), [floats()], 1, 64, match="deadlock")
    assert "waits at barrier 1 (bar.sync" in error.problem and "where 32 of 64 have arrived" in error.problem


def test_blocks_that_write_the_same_element() -> None:
    text = kernel("float* x", "  x[threadIdx.x] = (float)blockIdx.x;")
    fault(
        text,
        [floats()],
        2,
        32,
        match=r"block \(1, 0, 0\), thread \(0, 0, 0\): write to byte 0 of argument 0 races",
        line=1,
    )


def test_grid_barrier_in_a_launch_that_is_not_cooperative() -> None:
    from tests.runtime.emulator.test_execution import GRID_SYNC

    fault(GRID_SYNC, [floats(256), floats(256)], 8, 32, match="not cooperative")


ASYNC = """\
  __shared__ alignas(16) float t[128];
  unsigned to = (unsigned)__cvta_generic_to_shared(t + threadIdx.x * 4);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(x + threadIdx.x * 4) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
  BARRIER
  y[threadIdx.x] = t[127 - threadIdx.x];"""


def asynchronous(pending: int, barrier: str = "__syncthreads();") -> str:
    return kernel("float* y, float* x", ASYNC.replace("PENDING", str(pending)).replace("BARRIER", barrier))


def test_asynchronous_copies_arrive_when_they_are_waited_for() -> None:
    x, y = numbers(128), floats(32)
    run(asynchronous(0), [y, x])
    np.testing.assert_array_equal(y, x[:95:-1])
    fault(asynchronous(1), [floats(32), x], match="cp.async still writes|never written", line=7)
    fault(asynchronous(0, ""), [floats(32), x], match="never written|missing between them|cp.async", line=7)
