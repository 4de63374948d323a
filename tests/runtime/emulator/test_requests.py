"""How the threads of a warp access memory together, counted line by line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tilestitch.runtime.emulator import EmulatorOptions, Kernels, Requests


def requests_of(body: str, threads: int = 32, blocks: int = 1, **options: str) -> dict[int, Requests]:
    """The requests of a kernel by the lines of its body, of which each has one."""
    text = 'extern "C" __global__ void k(const float* x, float* y) {\n' + body + "\n}"
    seen: list[Sequence[Requests]] = []
    x = np.ones(4096, np.float32)
    x.flags.writeable = False
    emulated = EmulatorOptions(on_requests=lambda symbol, found: seen.append(found), **options)  # type: ignore[arg-type]
    Kernels({"k": text}, emulated).launch("k", (blocks, 1, 1), (threads, 1, 1), [x, np.zeros(4096, np.float32)])
    (found,) = seen
    return {one.line - 1: one for one in found}


def of_reads(place: str, kind: str = "float", threads: int = 32) -> Requests:
    body = f"{kind} v = (({kind}*)x)[{place}];\n*({kind}*)(y + threadIdx.x * 4) = v;"
    return requests_of(body, threads)[1]


@pytest.mark.parametrize(
    ("place", "kind", "sectors", "least"),
    [
        ("threadIdx.x", "float", 4, 4),
        ("threadIdx.x + 1", "float", 5, 4),
        ("threadIdx.x * 2", "float", 8, 4),
        ("threadIdx.x * 8", "float", 32, 4),
        ("threadIdx.x * 64", "float", 32, 4),
        ("7", "float", 1, 1),
        ("31 - threadIdx.x", "float", 4, 4),
        ("threadIdx.x", "float4", 16, 16),
        ("threadIdx.x * 2", "float4", 32, 16),
        ("threadIdx.x", "short", 2, 2),
        ("threadIdx.x * 16", "short", 32, 2),
    ],
)
def test_sectors_that_a_warp_touches(place: str, kind: str, sectors: int, least: int) -> None:
    found = of_reads(place, kind)
    assert (found.requests, found.transactions, found.least_transactions) == (1, sectors, least)
    assert found.space == "global" and not found.is_write
    assert found.excess == sectors / least


def test_the_last_warp_may_be_a_part() -> None:
    found = of_reads("threadIdx.x * 8", threads=37)
    assert (found.requests, found.transactions, found.bytes) == (2, 37, 4 * 37)


def test_lanes_of_a_branch_are_a_request_of_their_own() -> None:
    found = requests_of("if (threadIdx.x % 4 == 0)\ny[threadIdx.x * 8] = 1;")[2]
    assert (found.requests, found.bytes, found.transactions, found.least_transactions) == (1, 32, 8, 1)
    assert found.is_write


def test_turns_of_a_loop_and_blocks_add_up() -> None:
    body = """float s = 0;
    for (int i = 0; i < 5; ++i) s +=
      x[i * 32 + threadIdx.x];
    y[threadIdx.x + 32 * blockIdx.x] = s;"""
    found = requests_of(body, blocks=3)
    assert (found[3].requests, found[3].transactions) == (15, 60)
    assert (found[4].requests, found[4].transactions) == (3, 12)


@pytest.mark.parametrize("thread_order", ["in_order", "reversed", "random"])
def test_requests_do_not_depend_on_the_order_of_threads(thread_order: str) -> None:
    body = """__shared__ float t[64];
    t[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float v = t[63 - threadIdx.x]; if (threadIdx.x < 40)
      y[threadIdx.x] = v;"""
    found = requests_of(body, threads=64, thread_order=thread_order)
    assert (found[5].space, found[5].requests, found[5].transactions) == ("global", 2, 5)
    assert (found[4].space, found[4].requests, found[4].transactions) == ("shared", 2, 2)


SHARED = [
    ("float", "threadIdx.x", 1, 1),
    ("float", "threadIdx.x * 2", 2, 1),
    ("float", "threadIdx.x * 33 % 1024", 1, 1),
    ("float", "threadIdx.x * 32", 32, 1),
    ("float2", "threadIdx.x", 2, 2),
    ("float2", "threadIdx.x * 2", 4, 2),
    ("float4", "threadIdx.x", 4, 4),
    ("float4", "threadIdx.x * 2", 8, 4),
    ("float4", "threadIdx.x * 8", 32, 4),
]


@pytest.mark.parametrize(("kind", "place", "wavefronts", "least"), SHARED)
def test_wavefronts_of_shared_memory(kind: str, place: str, wavefronts: int, least: int) -> None:
    body = f"""__shared__ __align__(16) {kind} t[1024 * 4 / sizeof({kind}) * 2];
    {kind} v = (({kind}*)x)[threadIdx.x];
    t[{place}] = v;"""
    found = requests_of(body)[3]
    assert found.space == "shared" and found.is_write
    assert (found.requests, found.transactions, found.least_transactions) == (1, wavefronts, least)


def test_a_thread_s_neighbours_in_shared_memory_are_one_access() -> None:
    body = """__shared__ __align__(16) float t[128];
    #pragma unroll
    for (int i = 0; i < 4; ++i) t[threadIdx.x * 4 + i] =
      x[i];
    __syncthreads();
    y[threadIdx.x] = t[threadIdx.x];"""
    found = requests_of(body)
    assert (found[3].space, found[3].requests, found[3].bytes, found[3].transactions) == ("shared", 1, 512, 4)
    assert (found[4].space, found[4].requests) == ("global", 4)


def test_only_checked_kernels_are_counted() -> None:
    with pytest.raises(ValueError, match="on_requests counts accesses"):
        EmulatorOptions(checked=False, on_requests=print)
