"""A group as numbers for the latency models: bytes, operations, tasks. Nothing here knows how fast a machine is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, prod

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of, op_spec
from tilestitch.cost_model.counts import operations, operations_per_element
from tilestitch.cost_model.cpu import CpuDevice
from tilestitch.cost_model.devices import Device, find_device, representative
from tilestitch.cost_model.facts import Arithmetic, KernelFacts, Part, Traffic, Unit, kernel_of
from tilestitch.cost_model.joined import joined_facts
from tilestitch.cost_model.protocol import AnyDevice
from tilestitch.passes.plan import Group, GroupKind, WhyNot
from tilestitch.passes.plan import roles as role
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.cpu.attention import attention_rows

from . import few_rows
from .profit import evaluations
from .row_bands import facts_of_band
from .spread import looks_again, row_blocks

TASK_ELEMENTS = 4096
"""Elements of one task or block of an element-wise kernel, and of one tile of a product."""
GPU_THREADS = 256
TILE_ELEMENTS = (4096, 2048, 1024)
"""Of a product on a GPU, the most for which there are tiles enough."""
GEMV_COLUMNS = 32
"""Of a block, where a GPU computes a product of few rows column by column."""
LEAST_PART, MOST_PARTS = 128, 32
"""Steps of the reduction that are a part of their own, and parts."""
GPU_ROWS = 128
"""With fewer rows than this most of a large GPU is idle."""
ATTENTION_ROWS, ATTENTION_KEYS = (64, 32, 16), 64
"""On a GPU, queries of a task of attention (the most for which there are tasks enough), and keys of a step."""
ATTENTION_SHARED_BYTES = 100 << 10
"""Wide operands get smaller tiles rather than more shared memory."""
ATTENTION_THREADS, ATTENTION_REGISTERS = 256, 84
"""Half as many threads with twice the registers, whose asynchronous copies have as many bytes in flight as these."""
BASE_REGISTERS = 16
DEFAULT_CAPABILITY = HOPPER = 90
WARPGROUP_DTYPES = frozenset({"float16", "bfloat16", "int8", "uint8"})


def device_of(target: TargetInfo) -> AnyDevice:
    """The device that a target is planned for: a generic CPU with its threads, or a GPU of the table.

    A bare `cuda` stands for Hopper. Raises DeviceError for a device that is not in the table.
    """
    if target.device:
        return find_device(target.device)
    if not target.name.startswith("cuda"):
        return CpuDevice(cores=max(1, target.threads))
    digits = "".join(c for c in target.name if c.isdigit())
    return representative(int(digits) if digits else DEFAULT_CAPABILITY)


def group_facts(nodes: Mapping[str, Node], group: Group, target: TargetInfo) -> KernelFacts:
    """The facts of a planned group; `nodes` are the graph's by name. The group must be legal (`legality.check_group`).

    Raises ValueError for a group that is none.
    """
    if group.tie == "band":
        product, behind = group.parts
        apart = group_facts(nodes, product, target), group_facts(nodes, behind, target)
        warps = multiplied_by_warpgroups(apart[0].dtype, target)
        return facts_of_band(nodes, product, behind, apart, warps=warps)
    if group.stages:
        return joined_facts([[group_facts(nodes, part, target) for part in stage] for stage in group.stages])
    members = [nodes[name] for name in group.nodes]
    values = {o.name: o for n in members for o in n.outputs}
    stored = [values[name] for name in group.outputs]
    roles = roles_of(members, stored, group.name)
    if isinstance(roles, WhyNot):
        raise ValueError(f"no kernel: {roles}; plan the graph again")
    return facts_of(members, stored, roles, target)


def nodes_by_name(graph: Graph) -> dict[str, Node]:
    return {n.name: n for n in graph.nodes}


def facts_of(nodes: Sequence[Node], stored: Sequence[Value], roles: Roles, target: TargetInfo) -> KernelFacts:
    """The facts of `nodes` (in topological order) as one kernel that stores `stored`."""
    counts = evaluations(nodes, stored, roles)
    gpu = target.is_gpu
    elements = max(o.tensor_type.num_elements for n in nodes for o in n.outputs)
    if roles.rows is not None:
        elements = max(elements, prod(roles.rows.shape))
    tasks, launches = _tasks(roles, stored, elements, target)
    row_bytes = _row_bytes(roles) if roles.softmax is None else _tile_bytes(roles, gpu)
    threads, grid_barriers = 1, 0
    if gpu and roles.rows is not None:
        blocks = row_blocks(roles, multiprocessors_of(target))
        threads, tasks, launches, grid_barriers = blocks.threads, blocks.blocks, blocks.launches, blocks.grid_barriers
        row_bytes //= blocks.sharing
    elif gpu:
        threads, tasks = _blocks(roles, tasks, multiprocessors_of(target))
    dtype = _dtype(nodes, roles)
    part = Part(
        kind=roles.kind.value,
        dtype=dtype,
        reads=_reads(nodes, counts),
        writes=tuple(Traffic(v.name, v.tensor_type.nbytes, v.tensor_type.nbytes) for v in stored),
        arithmetic=tuple(_arithmetic(nodes, counts, roles, dtype, target)),
        elements=elements,
        tasks=tasks,
        threads=threads,
        shared_bytes=row_bytes,
        registers=ATTENTION_REGISTERS if roles.softmax is not None else BASE_REGISTERS + 2 * _most_alive(nodes),
        barriers=sum(part is role.Part.REDUCTION for part in roles.parts.values()) if gpu else 0,
        grid_barriers=grid_barriers,
    )
    joining = Part(part.kind, dtype, threads=threads)
    return kernel_of(part, *[joining] * (launches - 1))


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _arithmetic(
    nodes: Sequence[Node], counts: Mapping[Value, float], roles: Roles, dtype: str, target: TargetInfo
) -> Iterator[Arithmetic]:
    """What is computed, by unit."""
    fma = cheap = transcendental = 0.0
    for node in nodes:
        kind = kind_of(node.op)
        if kind is Kind.CONTRACTION:
            fma += operations(node) / 2
        elif kind in (Kind.REDUCTION, Kind.OPAQUE):
            cheap += operations(node)
        else:
            times = max(counts.get(o, 0.0) for o in node.outputs)
            if op_spec(node.op).expensive:
                transcendental += times
            else:
                cheap += times * operations_per_element(node.op)
    staged = _staged(nodes, counts, roles) if roles.kind is GroupKind.CONTRACTION else 0
    unit = _unit(dtype, target)
    found: tuple[tuple[Unit, float], ...] = (
        (unit, fma), ("alu", cheap), ("special", transcendental), ("scalar", staged)
    )  # fmt: skip
    return (Arithmetic(unit, dtype, int(count)) for unit, count in found if int(count))


def _unit(dtype: str, target: TargetInfo) -> Unit:
    """What multiplies and adds elements of a dtype in contractions."""
    if not target.is_gpu or dtype not in (*WARPGROUP_DTYPES, "tfloat32"):
        return "fma"
    return "wgmma" if multiplied_by_warpgroups(dtype, target) else "mma"


def _staged(nodes: Sequence[Node], counts: Mapping[Value, float], roles: Roles) -> int:
    """Evaluations in front of a product's operands, if more than views is there."""
    assert roles.anchor is not None
    wanted = set(roles.anchor.inputs)
    prologue = []
    for node in reversed(nodes):
        if node is not roles.anchor and any(o in wanted for o in node.outputs):
            prologue.append(node)
            wanted.update(node.inputs)
    if all(kind_of(n.op) is Kind.VIEW for n in prologue):
        return 0
    return int(sum(counts.get(n.output, 0.0) for n in prologue if n.op != "reshape"))


def _dtype(nodes: Sequence[Node], roles: Roles) -> str:
    node = roles.anchor or nodes[-1]
    if node.attrs.get("precision") == "tf32":
        return "tfloat32"
    return (node.inputs or node.outputs)[0].tensor_type.dtype


# -- memory ------------------------------------------------------------------------------------------------------------


def _reads(nodes: Sequence[Node], counts: Mapping[Value, float]) -> tuple[Traffic, ...]:
    """Loads of everything that comes from outside; readers at the same index are taken to share one load."""
    members = set(nodes)
    requested: dict[Value, float] = {}
    for node in nodes:
        times = max((counts.get(o, 0.0) for o in node.outputs), default=0.0)
        for value in dict.fromkeys(node.inputs):
            if value.producer not in members:
                requested[value] = max(requested.get(value, 0.0), _elements_read(node, value, times))
    traffic = []
    for value, elements in requested.items():
        type_ = value.tensor_type
        size = type_.num_elements
        itemsize = type_.nbytes / size if size else 0.0
        traffic.append(Traffic(
            value.name, int(elements * itemsize), int(min(elements, size) * itemsize),
            "weight" if value.is_constant else "activation",
        ))  # fmt: skip
    return tuple(traffic)


def _elements_read(node: Node, value: Value, times: float) -> float:
    size = value.tensor_type.num_elements
    if kind_of(node.op) not in (Kind.VIEW, Kind.INJECTIVE):
        return float(size)  # tiles of a product are kept close; what is read again comes from the first cache
    if node.op == "concat":
        total = node.output.tensor_type.num_elements
        return times * size / total if total else 0.0
    return times


def _row_bytes(roles: Roles) -> int:
    """What a task keeps of its row between a reduction and the next look at the row; 0 if it does not look again."""
    rows = roles.rows
    if rows is None or not any(part is role.Part.FULL for part in roles.parts.values()):
        return 0
    width = max(o.tensor_type.nbytes // max(1, o.tensor_type.num_elements) for n in roles.parts for o in n.outputs)
    return prod(rows.shape[a] for a in rows.axes) * width


def _tile_bytes(roles: Roles, gpu: bool) -> int:
    """What a task of attention keeps: on a GPU queries, keys and values, on a CPU the scores of its rows."""
    assert roles.softmax is not None and roles.anchor is not None
    width = 4 if roles.softmax.query.dtype == "float32" else 2
    if not gpu:
        return min(ATTENTION_ROWS[0], roles.softmax.queries) * roles.softmax.keys * 4
    widths = roles.softmax.query.shape[-1] + 4 * roles.anchor.output.shape[-1]
    return min(ATTENTION_SHARED_BYTES, width * widths * ATTENTION_KEYS)


def _most_alive(nodes: Sequence[Node]) -> int:
    """The largest number of values of `nodes` that are needed at the same time, evaluated in order."""
    position = {n: i for i, n in enumerate(nodes)}
    last = [max((position[u] for o in n.outputs for u in o.users if u in position), default=i)
            for i, n in enumerate(nodes)]  # fmt: skip
    steps = [0] * (len(nodes) + 1)
    for first, end in enumerate(last):
        steps[first] += 1
        steps[end + 1 if end + 1 <= len(nodes) else len(nodes)] -= 1
    alive = most = 0
    for step in steps[:-1]:
        alive += step
        most = max(most, alive)
    return most


# -- parallelism -------------------------------------------------------------------------------------------------------


def _tasks(roles: Roles, stored: Sequence[Value], elements: int, target: TargetInfo) -> tuple[int, int]:
    """Independent parts on a CPU, and launches. Few long rows are cut into parts if nothing needs the row again."""
    if roles.softmax is not None:
        heads, queries = roles.softmax.heads, max(1, roles.softmax.queries)
        if not target.name.startswith("cuda"):
            return max(1, heads * ceil(queries / attention_rows(heads, queries, target.threads))), 1
        sizes = [max(1, heads * ceil(queries / rows)) for rows in ATTENTION_ROWS]
        tiles = next((t for t in sizes if t >= GPU_ROWS), sizes[-1])
        parts = max(1, min(ceil(GPU_ROWS / tiles), roles.softmax.keys // (4 * ATTENTION_KEYS)))
        return tiles * parts, 1 if parts == 1 else 2
    if roles.rows is not None:
        rows = prod(roles.rows.dropped)
        if rows >= target.threads or looks_again(roles) or elements < 2 * TASK_ELEMENTS:
            return rows, 1
        return max(rows, ceil(elements / TASK_ELEMENTS)), 2
    if roles.anchor is not None and roles.kind is GroupKind.OPAQUE and roles.anchor.op != "window_reduce":
        return 1, 1
    return max(1, ceil(sum(v.tensor_type.num_elements for v in stored[:1]) / TASK_ELEMENTS)), 1


def _blocks(roles: Roles, tasks: int, multiprocessors: int) -> tuple[int, int]:
    """Threads of a block, and blocks, of a kernel without rows."""
    if roles.softmax is not None:
        return ATTENTION_THREADS, tasks
    if roles.kind is GroupKind.CONTRACTION:
        assert roles.anchor is not None
        return GPU_THREADS, product_blocks(roles.anchor, multiprocessors)
    return GPU_THREADS, tasks * TASK_ELEMENTS // (4 * GPU_THREADS) if roles.kind is GroupKind.INJECTIVE else tasks


def product_blocks(anchor: Node, multiprocessors: int) -> int:
    """Blocks of a product on a GPU: tiles, smaller ones where they are few, and then parts of the reduction.

    Roughly what code generation does, which looks at more than their number.
    """
    size = anchor.output.tensor_type.num_elements
    if not size:
        return 1
    columns = anchor.output.shape[-1]
    steps = operations(anchor) // (2 * size)
    if min(columns, size // columns) <= few_rows.MOST_ROWS:
        tiles = ceil(max(columns, size // columns) / GEMV_COLUMNS)
        least_part, enough = few_rows.MOST_CHUNK, 2 * multiprocessors
    else:
        sizes = [ceil(size / elements) for elements in TILE_ELEMENTS]
        tiles = next((tiles for tiles in sizes if tiles >= multiprocessors), sizes[-1])
        least_part, enough = LEAST_PART, multiprocessors
    return tiles * max(1, min(steps // least_part, ceil(enough / tiles), MOST_PARTS))


def multiplied_by_warpgroups(dtype: str, target: TargetInfo) -> bool:
    """Whether products of a dtype suit Hopper's warpgroups. Code generation looks closer."""
    device = device_of(target)
    return isinstance(device, Device) and device.capability == HOPPER and dtype in WARPGROUP_DTYPES


def multiprocessors_of(target: TargetInfo) -> int:
    """Multiprocessors that every GPU has on which code for `target` must run."""
    device = device_of(target)
    assert isinstance(device, Device)
    return device.sm_count if target.multiprocessors is None else target.multiprocessors
