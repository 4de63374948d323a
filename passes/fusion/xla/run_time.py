"""XLA's latency estimate of kernels, by which it decides on fusion (gpu_performance_model, and its base).

The constants are XLA's own, for one H200: the baseline decides as XLA does, regardless of our cost model. Arithmetic is
counted by our table of operations, and all reads except those of transposes count as coalesced.
"""

from collections.abc import Sequence

from tilestitch.compiler.ir import Kind, Node, Value, kind_of
from tilestitch.cost_model.counts import operations_per_element
from tilestitch.cost_model.devices import find_device

from .diamonds import has_diamond

LAUNCH_US = 1.0
MEMORY_COMPUTE_PARALLELISM = 0.95
L2_SPEEDUP, L1_SPEEDUP = 2.5, 8.0
L1_BYTES_PER_SM = 256 << 10
SECTOR_BYTES = 64
"""Bytes that DRAM moves for a single element."""
BLOCK_THREADS, ELEMENTS_PER_THREAD = 128, 4
LANES_PER_SM = 128
BYTES_PER_CLOCK_AND_BLOCK = 32
DEVICE = find_device("H200")


def kernel_us(nodes: Sequence[Node], stored: Sequence[Value]) -> float:
    """Return XLA's estimate for a kernel of `nodes`, in microseconds, without its launch."""
    members = set(nodes)
    counts = once_each(nodes) if has_diamond(nodes) else evaluations(nodes, stored)
    operations = sum(_operations(n, counts.get(n.output, 0.0)) for n in nodes if n.outputs)
    largest = max((_elements(n) for n in nodes), default=1)
    blocks = max(1, -(-largest // (BLOCK_THREADS * ELEMENTS_PER_THREAD)))
    lanes = min(blocks * BLOCK_THREADS, DEVICE.sm_count * LANES_PER_SM)
    compute_us = operations / (2 * lanes * DEVICE.clock_hz) * 1e6
    reads = {v: 0.0 for n in nodes for v in n.inputs if v.producer not in members}
    for value in reads:
        reads[value] = sum(_fetched(n, i, counts) for n, i in value.uses if n in members)
    scattered = any(_moves_last_axis(n) for n in nodes)
    memory_us = sum(_read_us(v, count * _width(v), blocks, scattered) for v, count in reads.items())
    memory_us += sum(v.tensor_type.nbytes for v in stored) / DEVICE.dram_bytes_per_second * 1e6
    return compute_us + memory_us - min(compute_us, memory_us) * MEMORY_COMPUTE_PARALLELISM


def once_each(nodes: Sequence[Node]) -> dict[Value, float]:
    """Return evaluation counts of a Triton kernel, which computes each element of a tile of rows once."""
    return {v: float(v.tensor_type.num_elements) for n in nodes for v in n.outputs}


def evaluations(nodes: Sequence[Node], stored: Sequence[Value]) -> dict[Value, float]:
    """Return how often elements of each value are computed: readers at the same index share evaluations, others add
    theirs.
    """
    members = set(nodes)
    shared = {v: float(v.tensor_type.num_elements) for v in stored}
    apart: dict[Value, float] = {}
    for node in reversed(nodes):
        mine = max((shared.get(o, 0.0) + apart.get(o, 0.0) for o in node.outputs), default=0.0)
        for value in dict.fromkeys(node.inputs):
            if value.producer not in members:
                continue
            if kind_of(node.op) is Kind.REDUCTION:
                size = value.tensor_type.num_elements
                repeats = mine / max(1, node.outputs[0].tensor_type.num_elements)
                shared[value] = max(shared.get(value, 0.0), size * repeats)
            elif value.tensor_type.shape == node.outputs[0].tensor_type.shape or node.op == "reshape":
                shared[value] = max(shared.get(value, 0.0), mine)
            else:
                apart[value] = apart.get(value, 0.0) + mine
    return {v: shared.get(v, 0.0) + apart.get(v, 0.0) for v in {**shared, **apart}}


def _fetched(node: Node, index: int, counts: dict[Value, float]) -> float:
    """Return how often `node` fetches an element of its operand from memory."""
    mine = max((counts.get(o, 0.0) for o in node.outputs), default=0.0)
    if kind_of(node.op) is Kind.REDUCTION:
        size = node.inputs[index].tensor_type.num_elements
        return size * mine / max(1, node.outputs[0].tensor_type.num_elements)
    return mine


def _operations(node: Node, count: float) -> float:
    if kind_of(node.op) is Kind.REDUCTION:
        return count * node.inputs[0].tensor_type.num_elements / max(1, node.outputs[0].tensor_type.num_elements)
    return count * operations_per_element(node.op) if kind_of(node.op) in (Kind.VIEW, Kind.INJECTIVE) else count


def _elements(node: Node) -> int:
    value = node.inputs[0] if kind_of(node.op) is Kind.REDUCTION else node.outputs[0]
    return value.tensor_type.num_elements


def _width(value: Value) -> float:
    return value.tensor_type.nbytes / max(1, value.tensor_type.num_elements)


def _moves_last_axis(node: Node) -> bool:
    if node.op != "transpose":
        return False
    moved = [a for a in node.attrs["perm"] if node.inputs[0].shape[a] != 1]
    return bool(moved) and moved[-1] != max(moved)


def _read_us(value: Value, fetched_bytes: float, blocks: int, scattered: bool) -> float:
    """Return the time of reads: first ones from DRAM, others from the caches if the tensor fits there."""
    used = _width(value) / SECTOR_BYTES if scattered else 1.0
    once = min(float(value.tensor_type.nbytes), fetched_bytes)
    again = DEVICE.dram_bytes_per_second * 1.0
    if once < DEVICE.l2_bytes:
        again *= L2_SPEEDUP * (L1_SPEEDUP if once < L1_BYTES_PER_SM * DEVICE.sm_count else 1.0)
    else:
        again *= used
    most = blocks * BYTES_PER_CLOCK_AND_BLOCK * float(DEVICE.clock_hz)
    return (once / min(DEVICE.dram_bytes_per_second * used, most) + (fetched_bytes - once) / min(again, most)) * 1e6
