"""Bulk copies between global and shared memory: boxes of tensors of every rank and swizzle, plain bytes, reductions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.emulator.hopper import hopper, map_of, run_hopper
from tilestitch.runtime.emulator import EmulatorOptions, KernelFaultError
from tilestitch.runtime.tensor_map import TensorMap

ORDERS = [
    EmulatorOptions(),
    EmulatorOptions(thread_order="reversed", checked=False),
    EmulatorOptions(block_order="adversarial", thread_order="random", seed=3),
]


def load_kernel(rank: int, start: tuple[int, ...], tile_bytes: int) -> str:
    at = ", ".join(map(str, start))
    return hopper(
        "map m, uint8_t* y",
        f"""\
  extern __shared__ __align__(1024) uint8_t tile[];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {{
    init(&bar, 1);
    fence_init();
    expect(&bar, {tile_bytes});
    load_{rank}d(tile, &m, &bar, {at});
  }}
  __syncthreads();
  await(&bar, 0);
  for (int i = threadIdx.x; i < {tile_bytes}; i += blockDim.x) y[i] = tile[i];""",
    )


def load(tensor_map: TensorMap, x: np.ndarray, start: tuple[int, ...], **more: Any) -> np.ndarray:
    """What a copy puts into shared memory, as bytes."""
    y = np.zeros(tensor_map.tile_bytes, np.uint8)
    text = load_kernel(tensor_map.rank, start, tensor_map.tile_bytes)
    run_hopper(text, [(tensor_map, x), y], shared_bytes=y.size, **more)
    return y


def box_of(x: np.ndarray, start: tuple[int, ...], box: tuple[int, ...], fill: float = 0) -> np.ndarray:
    """The box from an element on, both innermost first, with `fill` where there is no tensor."""
    places = np.ix_(*(np.arange(s, s + b) for s, b in zip(reversed(start), reversed(box), strict=True)))
    inside = np.ones((1,) * x.ndim, bool)
    for place, size in zip(places, x.shape, strict=True):
        inside = inside & (place >= 0) & (place < size)
    found = x[tuple(np.clip(place, 0, size - 1) for place, size in zip(places, x.shape, strict=True))]
    return np.where(inside, found, np.asarray(fill, x.dtype))


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(7).integers(-99, 99, shape).astype(dtype)


@pytest.mark.parametrize("options", ORDERS, ids=["in_order", "unchecked", "adversarial"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_boxes_of_every_rank_reach_beyond_the_tensor(rank: int, options: EmulatorOptions) -> None:
    x = numbers(*(5, 3, 7, 6, 20)[5 - rank :])
    box, start = (8, 5, 3, 2, 4)[:rank], (15, -2, 5, 2, -1)[:rank]
    y = load(map_of(x, box), x, start, options=options)
    np.testing.assert_array_equal(y.view(x.dtype).reshape(box[::-1]), box_of(x, start, box))


@pytest.mark.parametrize(
    "dtype", [np.uint8, np.float16, ml_dtypes.bfloat16, np.int32, np.int64, np.float64], ids=lambda d: d.__name__
)
def test_elements_of_every_size(dtype: Any) -> None:
    x = numbers(9, 48, dtype=dtype)
    box = (32 // x.itemsize, 4)
    y = load(map_of(x, box), x, (45, 7))
    np.testing.assert_array_equal(y.view(dtype).reshape(box[::-1]), box_of(x, (45, 7), box))


def test_nan_outside() -> None:
    x = numbers(9, 48, dtype=np.float16)
    y = load(map_of(x, (16, 4), oob_fill="nan"), x, (40, -2))
    np.testing.assert_array_equal(y.view(np.float16).reshape(4, 16), box_of(x, (40, -2), (16, 4), np.nan))


def test_rows_apart_and_every_other_one() -> None:
    x = numbers(6, 12, 20)
    tensor_map = TensorMap("float32", (10, 12, 3), (80, 2 * 960), (8, 6, 3), element_strides=(2, 2, 1))
    y = load(tensor_map, x, (1, 3, 0)).view(np.float32).reshape(3, 3, 8)
    np.testing.assert_array_equal(y, x[::2, 3:9:2, 1:9])


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_swizzles_exchange_16_bytes_within_rows(swizzle: str) -> None:
    """Byte b of row r goes where bits 4 to 6 of its address are those of b, exclusive or those of bits 7 to 9."""
    span = {"none": 64, "32B": 32, "64B": 64, "128B": 128}[swizzle]
    x = numbers(40, 128, dtype=np.float16)
    box = (span // 2, 24)
    y = load(map_of(x, box, swizzle=swizzle), x, (32, 11)).view(np.float16).reshape(24, span // 2)
    plain = np.arange(24 * span).reshape(24, span)[:, ::2]
    pattern = {"none": 0, "32B": 1, "64B": 3, "128B": 7}[swizzle]
    np.testing.assert_array_equal(
        y.reshape(-1)[(plain ^ (((plain >> 7) & pattern) << 4)) // 2], box_of(x, (32, 11), box)
    )


def store_kernel(rank: int, start: tuple[int, ...], tile_bytes: int) -> str:
    at = ", ".join(map(str, start))
    return hopper(
        "const uint8_t* x, map m",
        f"""\
  extern __shared__ __align__(1024) uint8_t tile[];
  for (int i = threadIdx.x; i < {tile_bytes}; i += blockDim.x) tile[i] = x[i];
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {{
    store_{rank}d(&m, tile, {at});
    commit();
    wait_read();
  }}""",
    )


@pytest.mark.parametrize("options", ORDERS, ids=["in_order", "unchecked", "adversarial"])
@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_stores_leave_out_what_lies_outside(rank: int, options: EmulatorOptions) -> None:
    y = numbers(*(3, 3, 5, 6, 20)[5 - rank :])
    box, start = (8, 4, 3, 2, 2)[:rank], (15, -2, 3, 2, -1)[:rank]
    x = numbers(*box[::-1]) + 1000
    wide = np.pad(y, 16)
    wide[tuple(slice(s + 16, s + 16 + b) for s, b in zip(reversed(start), reversed(box), strict=True))] = x
    expected = wide[(slice(16, -16),) * rank]
    tensor_map = map_of(y, box)
    text = store_kernel(rank, start, tensor_map.tile_bytes)
    run_hopper(text, [x, (tensor_map, y)], shared_bytes=x.nbytes, options=options)
    np.testing.assert_array_equal(y, expected)


def test_a_swizzled_store_undoes_a_swizzled_load() -> None:
    x, y = numbers(40, 64, dtype=np.float16), np.zeros((40, 64), np.float16)
    text = hopper(
        "map from, map to",
        """\
  __shared__ alignas(1024) uint8_t tile[4096];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(&from) : "memory");
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" :: "l"(&from), "r"(0), "r"(4));
    init(&bar, 1);
    fence_init();
    expect(&bar, 4096);
    load_2d(tile, &from, &bar, 0, 4);
    await(&bar, 0);
    store_2d(&to, tile, 0, 8);
    commit();
    wait_written();
  }""",
    )
    maps = [map_of(array, (64, 32), swizzle="128B") for array in (x, y)]
    run_hopper(text, [(maps[0], x), (maps[1], y)])
    np.testing.assert_array_equal(y[8:], x[4:36])


REDUCTIONS = {
    "add": (np.add, [np.float32, np.float16, ml_dtypes.bfloat16, np.uint32, np.int32, np.uint64]),
    "min": (np.minimum, [np.float16, np.int32, np.uint32, np.int64]),
    "max": (np.maximum, [np.int32, ml_dtypes.bfloat16, np.uint64]),
    "and": (np.bitwise_and, [np.uint32, np.uint64]),
    "or": (np.bitwise_or, [np.uint32]),
    "xor": (np.bitwise_xor, [np.uint64]),
}


@pytest.mark.parametrize(
    ("operation", "dtype"), [(name, dtype) for name, (_, dtypes) in REDUCTIONS.items() for dtype in dtypes]
)
def test_reductions_of_tensors(operation: str, dtype: Any) -> None:
    low = 0 if np.dtype(dtype).kind == "u" else -50
    generator = np.random.default_rng(3)
    x, y = (generator.integers(low, 50, (4, 16)).astype(dtype) for _ in range(2))
    expected = REDUCTIONS[operation][0](x, y)
    tensor_map = map_of(y, (16, 4))
    text = store_kernel(2, (0, 0), x.nbytes).replace(
        "cp.async.bulk.tensor.2d.global", "cp.reduce.async.bulk.tensor.2d.global"
    )
    text = text.replace(
        "shared::cta.tile.bulk_group [%0, {%3, %4}]", f"shared::cta.{operation}.tile.bulk_group [%0, {{%3, %4}}]"
    )
    run_hopper(text, [x, (tensor_map, y)], shared_bytes=x.nbytes)
    np.testing.assert_array_equal(y, expected)


PLAIN = """\
  __shared__ alignas(128) float tile[64];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    init(&bar, 1);
    fence_init();
    expect(&bar, 256);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared(tile)), "l"(x), "r"(256), "r"(shared(&bar)) : "memory");
    await(&bar, 0);
  }
  __syncthreads();
  if (threadIdx.x < 64) tile[threadIdx.x] += 1.0f;
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("STORE [%0], [%1], %2;" :: "l"(y), "r"(shared(tile)), "r"(256) : "memory");
    commit();
    wait_written();
  }"""


@pytest.mark.parametrize(
    ("store", "before"),
    [
        ("cp.async.bulk.global.shared::cta.bulk_group", 0),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32", 1),
    ],
)
def test_plain_bytes(store: str, before: int) -> None:
    x, y = numbers(64), numbers(64)
    expected = x + 1 + before * y
    run_hopper(hopper("const float* x, float* y", PLAIN.replace("STORE", store)), [x, y])
    np.testing.assert_array_equal(y, expected)


def test_a_multicast_reaches_the_blocks_of_its_mask() -> None:
    """Each block of a cluster of two loads one half for both."""
    x, y = numbers(4, 32), np.zeros((4, 2, 32), np.float32)
    text = hopper(
        "map m, float* y",
        """\
  __shared__ alignas(128) float tile[2][32];
  __shared__ uint64_t bar;
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    init(&bar, 1);
    fence_init();
    expect(&bar, 256);
  }
  asm volatile("barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%3, %4}], [%2], %5;" :: "r"(shared(tile[rank])), "l"(&m), "r"(shared(&bar)), "r"(0),
                 "r"(blockIdx.x), "h"((unsigned short)3) : "memory");
  await(&bar, 0);
  y[blockIdx.x * 64 + threadIdx.x] = (&tile[0][0])[threadIdx.x];
  asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");""",
    )
    for options in ORDERS:
        run_hopper(text, [(map_of(x, (32, 1)), x), y], 64, options, grid=4, cluster=(2, 1, 1))
        np.testing.assert_array_equal(y, x.reshape(2, 2, 32)[[0, 0, 1, 1]])


TO_NEIGHBOUR = """\
  __shared__ alignas(128) float tile[32];
  __shared__ alignas(128) float other[32];
  __shared__ uint64_t bar;
  unsigned rank, place, remote;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  tile[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
  fence_async();
  if (threadIdx.x == 0) {
    init(&bar, 1);
    fence_init();
    expect(&bar, 128);
  }
  asm volatile("barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (threadIdx.x == 0) {
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(shared(other)), "r"(rank ^ 1));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared(&bar)), "r"(rank ^ 1));
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(place), "r"(shared(tile)), "r"(128), "r"(remote) : "memory");
    LATE
  }
  await(&bar, 0);
  y[blockIdx.x * 32 + threadIdx.x] = other[threadIdx.x];
  asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");"""


@pytest.mark.parametrize("options", ORDERS, ids=["in_order", "unchecked", "adversarial"])
def test_blocks_of_a_cluster_copy_to_each_other(options: EmulatorOptions) -> None:
    x, y = numbers(4, 32), np.zeros((4, 32), np.float32)
    text = hopper("const float* x, float* y", TO_NEIGHBOUR.replace("LATE", ""))
    run_hopper(text, [x, y], 32, options, grid=4, cluster=(2, 1, 1))
    np.testing.assert_array_equal(y, x[[1, 0, 3, 2]])


def test_what_another_block_copies_must_not_be_overwritten() -> None:
    text = hopper("const float* x, float* y", TO_NEIGHBOUR.replace("LATE", "tile[0] = 1;"))
    with pytest.raises(KernelFaultError, match=r"write to byte 0 of shared variable tile, which a bulk copy .* reads"):
        run_hopper(text, [numbers(4, 32), np.zeros((4, 32), np.float32)], 32, grid=4, cluster=(2, 1, 1))


ANY_BOX = hopper(
    "map m, const int* start, const int* tile_bytes, uint8_t* y",
    """\
  extern __shared__ __align__(1024) uint8_t tile[];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    init(&bar, 1);
    fence_init();
    expect(&bar, tile_bytes[0]);
    load_3d(tile, &m, &bar, start[0], start[1], start[2]);
  }
  __syncthreads();
  await(&bar, 0);
  for (int i = threadIdx.x; i < tile_bytes[0]; i += blockDim.x) y[i] = tile[i];""",
)


@given(data=st.data())
def test_any_box(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([np.uint8, np.float16, np.float32, np.float64]))
    item = np.dtype(dtype).itemsize
    swizzle = data.draw(st.sampled_from(["none", "32B", "64B", "128B"]))
    row_bytes = data.draw(st.integers(1, 8)) * 16 if swizzle == "none" else int(swizzle[:-1])
    box = (row_bytes // item, data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3)))
    x = numbers(*data.draw(st.tuples(st.integers(1, 5), st.integers(1, 9))), 256 // item, dtype=dtype)
    dims = (data.draw(st.integers(1, x.shape[2])), x.shape[1], x.shape[0])
    steps = (1, *data.draw(st.tuples(st.integers(1, 3), st.integers(1, 2))))
    start = data.draw(st.tuples(st.integers(-40, 40), st.integers(-6, 10), st.integers(-4, 6)))
    spans = tuple(b * s for b, s in zip(box, steps, strict=True))
    tensor_map = TensorMap(np.dtype(dtype).name, dims, (256, 256 * x.shape[1]), spans, steps, swizzle)
    y = np.zeros(tensor_map.tile_bytes, np.uint8)
    arguments = [(tensor_map, x), np.array(start, np.int32), np.array([y.size], np.int32), y]
    run_hopper(ANY_BOX, arguments, 32, shared_bytes=y.size)
    plain = np.arange(y.size)
    pattern = {"none": 0, "32B": 1, "64B": 3, "128B": 7}[swizzle]
    found = y[plain ^ (((plain >> 7) & pattern) << 4)].view(dtype).reshape(box[::-1])
    expected = box_of(x[:, :, : dims[0]], start, spans)[:: steps[2], :: steps[1]]
    np.testing.assert_array_equal(found, expected)
