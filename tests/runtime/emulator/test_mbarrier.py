"""Barriers in memory, clusters, and instructions of a warp that Hopper has."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.emulator.hopper import hopper, run_hopper
from tilestitch.runtime.emulator import EmulatorOptions, KernelFaultError

ORDERS = [
    EmulatorOptions(),
    EmulatorOptions(thread_order="reversed", block_order="reversed"),
    EmulatorOptions(block_order="adversarial", thread_order="random", seed=2),
    EmulatorOptions(checked=False),
]


def words(size: int) -> np.ndarray:
    return np.zeros(size, np.uint32)


@pytest.mark.parametrize("options", ORDERS, ids=["in_order", "reversed", "adversarial", "unchecked"])
def test_arrivals_hand_shared_memory_on(options: EmulatorOptions) -> None:
    """Each phase, a warp writes what all others read, and waits until they have: two barriers, no __syncthreads."""
    text = hopper(
        "uint32_t* y",
        """\
  __shared__ uint32_t t[32];
  __shared__ uint64_t full;
  __shared__ uint64_t empty;
  if (threadIdx.x == 0) {
    init(&full, 32);
    init(&empty, 96);
  }
  __syncthreads();
  for (int i = 0; i < 5; ++i)
    if (threadIdx.x < 32) {
      await(&empty, (i + 1) % 2);
      t[threadIdx.x] = i * 100 + threadIdx.x;
      arrive(&full);
    } else {
      await(&full, i % 2);
      y[threadIdx.x] += t[31 - threadIdx.x % 32];
      arrive(&empty);
    }""",
    )
    y = words(128)
    run_hopper(text, [y], options=options)
    np.testing.assert_array_equal(y[32:].reshape(3, 32), np.tile(1000 + 5 * (31 - np.arange(32)), (3, 1)))


def test_states_counts_and_drops() -> None:
    text = hopper(
        "uint32_t* y",
        """\
  __shared__ uint64_t bar;
  uint32_t b = shared(&bar), done, pending;
  uint64_t state;
  init(&bar, 3);
  asm volatile("mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %0, [%1], 2;" : "=l"(state) : "r"(b) : "memory");
  asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(state));
  y[0] = pending;
  asm volatile("{.reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(done) : "r"(b), "l"(state) : "memory");
  y[1] = done;
  asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" :: "r"(b) : "memory");
  asm volatile("{.reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(done) : "r"(b), "l"(state) : "memory");
  y[2] = done;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], 2;" : "=l"(state) : "r"(b) : "memory");
  await(&bar, 1);
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 64;" :: "r"(b) : "memory");
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], 2;" : "=l"(state) : "r"(b) : "memory");
  asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0; selp.b32 %0, 1, 0, p;}"
               : "=r"(done) : "r"(b) : "memory");
  y[3] = done;
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 64;" :: "r"(b) : "memory");
  await(&bar, 0);
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(b) : "memory");
  init(&bar, 1);""",
    )
    y = words(4)
    run_hopper(text, [y], 1)
    np.testing.assert_array_equal(y, [3, 0, 1, 0])


@pytest.mark.parametrize("options", ORDERS, ids=["in_order", "reversed", "adversarial", "unchecked"])
def test_arrivals_of_another_block(options: EmulatorOptions) -> None:
    """Each block writes to its neighbour's shared memory, and arrives at the barrier there."""
    text = hopper(
        "uint32_t* y",
        """\
  __shared__ uint32_t t[32];
  __shared__ uint64_t bar;
  uint32_t rank, place, remote;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    init(&bar, 32);
    fence_init();
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(shared(t + threadIdx.x)), "r"(rank ^ 1));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared(&bar)), "r"(rank ^ 1));
  asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(place), "r"(blockIdx.x * 100 + threadIdx.x) : "memory");
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(remote) : "memory");
  asm volatile("{\\n.reg .pred p;\\nW:\\n"
               "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\\n@!p bra W;\\n}"
               :: "r"(shared(&bar)) : "memory");
  y[blockIdx.x * 32 + threadIdx.x] = t[31 - threadIdx.x];
  asm volatile("barrier.cluster.arrive.aligned;\\n barrier.cluster.wait.aligned;" ::: "memory");""",
    )
    y = words(128)
    run_hopper(text, [y], 32, options, grid=4, cluster=(2, 1, 1))
    expected = 31 - np.arange(32) + 100 * np.array([1, 0, 3, 2])[:, None]
    np.testing.assert_array_equal(y.reshape(4, 32), expected)


def test_copies_of_a_thread_arrive() -> None:
    text = hopper(
        "const uint32_t* x, uint32_t* y",
        """\
  __shared__ alignas(16) uint32_t t[128];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) init(&bar, 32);
  __syncthreads();
  asm volatile("cp.async.cg.shared::cta.global [%0], [%1], 16;"
               :: "r"(shared(t + threadIdx.x * 4)), "l"(x + threadIdx.x * 4));
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(shared(&bar)) : "memory");
  await(&bar, 0);
  y[threadIdx.x] = t[127 - threadIdx.x];""",
    )
    x, y = np.arange(128, dtype=np.uint32), words(32)
    run_hopper(text, [x, y], 32)
    np.testing.assert_array_equal(y, x[:95:-1])


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_puts_four_matrices(trans: str) -> None:
    text = hopper(
        "const uint32_t* x, uint32_t* y",
        f"""\
  __shared__ alignas(16) uint32_t t[128];
  uint32_t row = shared(t + threadIdx.x * 4);
  asm volatile("stmatrix.sync.aligned.m8n8.x4{trans}.shared::cta.b16 [%0], {{%1, %2, %3, %4}};"
               :: "r"(row), "r"(x[threadIdx.x]), "r"(x[32 + threadIdx.x]), "r"(x[64 + threadIdx.x]),
                  "r"(x[96 + threadIdx.x]) : "memory");
  __syncwarp();
  for (int i = 0; i < 4; ++i) y[i * 32 + threadIdx.x] = t[i * 32 + threadIdx.x];""",
    )
    x, y = np.arange(256, dtype=np.uint16), np.zeros(256, np.uint16)
    run_hopper(text, [x.view(np.uint32), y.view(np.uint32)], 32)
    matrices = x.reshape(4, 8, 8)
    np.testing.assert_array_equal(y.reshape(4, 8, 8), matrices.transpose(0, 2, 1) if trans else matrices)


def test_one_lane_is_elected() -> None:
    text = hopper(
        "uint32_t* y",
        """\
  uint32_t chosen, leader;
  asm volatile("{.reg .pred p; elect.sync %0|p, 0xfffffff0; selp.b32 %1, 1, 0, p;}" : "=r"(leader), "=r"(chosen));
  y[threadIdx.x] = chosen;
  y[32 + threadIdx.x] = leader;""".replace("  asm", "  if (threadIdx.x < 4) return;\n  asm"),
    )
    y = words(64)
    run_hopper(text, [y], 32)
    assert y[:32].sum() == 1
    assert set(y[36:]) == {int(np.argmax(y[:32]))}


def test_a_wait_that_nothing_ends_says_what_is_missing() -> None:
    text = hopper("uint32_t* y", "  __shared__ uint64_t bar;\n  init(&bar, 4);\n  arrive(&bar);\n  await(&bar, 0);")
    with pytest.raises(KernelFaultError, match=r"deadlock.*phase 0 of the mbarrier .* variable bar: 1 of 4") as caught:
        run_hopper(text, [words(1)], 1)
    assert caught.value.source == "await(&bar, 0);"
    assert f"line {caught.value.line})" in caught.value.problem


FAULTS = {
    "init(&bar, y[0]);": "mbarrier.init with 0 arrivals",  # NVRTC 13.0 crashes on a constant 0
    "arrive(&bar);": "mbarrier.arrive on what is no mbarrier .byte 0 of shared variable bar",
    "init((uint64_t*)((char*)&bar + 4), 1);": "aligned to 8",
    "init(&bar, 1); expect(&bar, 1 << 20);": "counts 1048576 bytes; the limit is 1048575",
    'init(&bar, 1); asm("mbarrier.arrive.noComplete.release.cta.shared.b64 _, [%0], 1;" :: "r"(shared(&bar)));':
        "noComplete ends phase 0",
    'init(&bar, 1); asm("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" :: "r"(shared(&bar)));': "2 arrivals .* 1 of 1",
    'asm volatile("barrier.cluster.wait;");': "no barrier.cluster.arrive before",
    'asm volatile("barrier.cluster.arrive; barrier.cluster.arrive;");': "arrive twice",
}  # fmt: skip


@pytest.mark.parametrize("statement", FAULTS)
def test_faults(statement: str) -> None:
    text = hopper("uint32_t* y", f"  __shared__ alignas(16) uint64_t bar;\n  {statement}\n  y[0] = 0;")
    with pytest.raises(KernelFaultError, match=FAULTS[statement]) as caught:
        run_hopper(text, [words(1)], 1)
    assert statement.split(";")[0] in caught.value.source


@pytest.mark.parametrize("arrival", ["release", "relaxed"])
@pytest.mark.parametrize("wait", ["acquire", "relaxed"])
def test_only_release_and_acquire_order_memory(arrival: str, wait: str) -> None:
    text = hopper(
        "uint32_t* y",
        f"""\
  __shared__ uint32_t t;
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) init(&bar, 1);
  __syncthreads();
  if (threadIdx.x == 0) {{
    t = 7;
    asm volatile("mbarrier.arrive.{arrival}.cta.shared::cta.b64 _, [%0];" :: "r"(shared(&bar)) : "memory");
  }} else {{
    asm volatile("{{\\n.reg .pred p;\\nW:\\nmbarrier.try_wait.parity.{wait}.cta.shared::cta.b64 p, [%0], 0;\\n"
                 "@!p bra W;\\n}}" :: "r"(shared(&bar)) : "memory");
    y[0] = t;
  }}""",
    )
    y = words(1)
    if (arrival, wait) == ("release", "acquire"):
        run_hopper(text, [y], 2)
        assert y[0] == 7
        return
    with pytest.raises(KernelFaultError, match="shared variable t races with a write"):
        run_hopper(text, [y], 2)
