"""Launches that are under way together, as programmatic edges of a CUDA graph have it."""

from __future__ import annotations

import numpy as np
import pytest

from tilestitch.runtime.emulator import EmulatorOptions, Kernels
from tilestitch.runtime.emulator.backend import _sequence
from tilestitch.runtime.emulator.errors import KernelFaultError
from tilestitch.runtime.emulator.kernels import KernelEdge, KernelLaunch
from tilestitch.runtime.launches import EDGE_KINDS, Edge

WRITER = """\
extern "C" __global__ void writer(float* x, unsigned* flag) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  for (int i = 0; i < 4; ++i) __syncthreads();
  x[blockIdx.x * 32 + threadIdx.x] = 1.0f;
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(flag), "r"(1u) : "memory");
}
"""
LATE = WRITER.replace("writer", "late").replace(
    '  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");\n', ""
)
LATE = LATE.replace("}\n", '  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");\n}\n')
BEGINNINGS = {
    "careless": "",
    "waits": '  asm volatile("griddepcontrol.wait;" ::: "memory");\n',
    "polls": """\
  unsigned seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
  } while (seen < 3);
""",
}
READERS = {
    name: f'extern "C" __global__ void {name}(float* x, unsigned* flag, float* y) {{\n{beginning}'
    "  float sum = 0;\n  for (int i = 0; i < 3; ++i) sum += x[i * 32 + threadIdx.x];\n"
    "  y[blockIdx.x * 32 + threadIdx.x] = sum;\n}\n"
    for name, beginning in BEGINNINGS.items()
}
ORDERS = [
    EmulatorOptions(resident_blocks=1),
    EmulatorOptions(resident_blocks=2, block_order="reversed", thread_order="reversed"),
    EmulatorOptions(resident_blocks=8, block_order="random", seed=2),
    EmulatorOptions(resident_blocks=8, block_order="adversarial", seed=3),
]


def run(
    writer: str, reader: str, edges: list[KernelEdge], options: EmulatorOptions, first: int = 0, readers: int = 2
) -> np.ndarray:
    """What some blocks read of what three write. first: the number of the writer's launch."""
    x, flag, y = np.zeros(96, np.float32), np.zeros(1, np.uint32), np.zeros(32 * readers, np.float32)
    requests = [
        KernelLaunch(writer, (3, 1, 1), (32, 1, 1), [x, flag]),
        KernelLaunch(reader, (readers, 1, 1), (32, 1, 1), [x, flag, y]),
    ]
    kernels = Kernels({"writer": WRITER, "late": LATE, **READERS}, options)
    kernels.run(requests[::-1] if first else requests, edges)
    return y


@pytest.mark.parametrize("options", ORDERS, ids=lambda o: f"{o.block_order}-{o.resident_blocks}")
@pytest.mark.parametrize("kind", EDGE_KINDS)
@pytest.mark.parametrize("reader", ["waits", "polls"])
@pytest.mark.parametrize("writer", ["writer", "late"])
def test_a_reader_that_waits_sees_all(writer: str, reader: str, kind: str, options: EmulatorOptions) -> None:
    np.testing.assert_array_equal(run(writer, reader, [(0, 1, kind)], options), [3] * 64)


@pytest.mark.parametrize("options", ORDERS[1:], ids=lambda o: f"{o.block_order}-{o.resident_blocks}")
def test_a_reader_that_does_not_wait_races(options: EmulatorOptions) -> None:
    """One block: of several that read a word before it is written, only their number is remembered."""
    np.testing.assert_array_equal(run("writer", "careless", [(0, 1)], options, readers=1), [3] * 32)
    for writer, kind in (("writer", "programmatic"), ("late", "programmatic"), ("late", "launch_order")):
        with pytest.raises(KernelFaultError, match="races"):
            run(writer, "careless", [(0, 1, kind)], options, readers=1)


def test_blocks_that_come_too_early_leave_no_place_for_those_that_they_wait_for() -> None:
    for resident in (1, 2):
        with pytest.raises(KernelFaultError, match="deadlock"):
            run("writer", "polls", [], EmulatorOptions(resident_blocks=resident), first=1)


def test_what_follows_a_launch_that_waits_at_its_end_follows_the_one_before() -> None:
    """The last kernel writes over what the first writes; it comes after the second only."""
    end = READERS["careless"].replace("careless", "ends").replace("sum += x[i * 32 + threadIdx.x]", "sum += 1")
    waits = end.replace("ends", "ends_late").replace("}\n", BEGINNINGS["waits"] + "}\n")
    over = 'extern "C" __global__ void over(float* x) { x[threadIdx.x] = 2.0f; }'
    options = EmulatorOptions(resident_blocks=8)
    kernels = Kernels({"writer": WRITER, "ends": end, "ends_late": waits, "over": over}, options)
    edges: list[KernelEdge] = [(0, 1, "programmatic"), (1, 2)]
    for middle, races in (("ends", True), ("ends_late", False)):
        x, flag, y = np.zeros(96, np.float32), np.zeros(1, np.uint32), np.zeros(64, np.float32)
        requests = [
            KernelLaunch("writer", (3, 1, 1), (32, 1, 1), [x, flag]),
            KernelLaunch(middle, (2, 1, 1), (32, 1, 1), [x, flag, y]),
            KernelLaunch("over", (1, 1, 1), (32, 1, 1), [x]),
        ]
        if races:
            with pytest.raises(KernelFaultError, match="races"):
                kernels.run(requests, edges)
            continue
        kernels.run(requests, edges)
        np.testing.assert_array_equal(x[:32], [2] * 32)


def test_launches_are_under_way_together_that_edges_connect_and_what_lies_between_them() -> None:
    tie, options = "programmatic", EmulatorOptions()
    assert _sequence(3, [Edge(0, 1), Edge(1, 2)], options) == [(0,), (1,), (2,)]
    assert _sequence(4, [Edge(0, 1), Edge(1, 2, tie), Edge(2, 3)], options) == [(0,), (1, 2), (3,)]
    assert _sequence(4, [Edge(0, 3, tie), Edge(0, 1), Edge(1, 3)], options) == [(0, 1, 3), (2,)]
    assert _sequence(4, [Edge(0, 2, tie), Edge(1, 3)], options) == [(0, 2), (1,), (3,)]
