"""A group as numbers for the latency models: bytes, operations, and launches as its schedule has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, prod

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of, op_spec
from tilestitch.cost_model.counts import operations, operations_per_element
from tilestitch.cost_model.cpu import CpuDevice
from tilestitch.cost_model.devices import Device, find_device, representative
from tilestitch.cost_model.facts import Arithmetic, KernelFacts, Part, Traffic, Unit, kernel_of
from tilestitch.cost_model.joined import joined_facts
from tilestitch.cost_model.protocol import AnyDevice, LatencyModel
from tilestitch.passes.fusion.cost.gpu_facts import gpu_facts
from tilestitch.passes.fusion.cost.profit import evaluations
from tilestitch.passes.fusion.cost.row_bands import facts_of_band
from tilestitch.passes.fusion.legality import operands
from tilestitch.passes.fusion.rules.spread import looks_again
from tilestitch.passes.plan import Group, GroupKind, WhyNot
from tilestitch.passes.plan import roles as role
from tilestitch.passes.plan.roles import Roles, roles_of
from tilestitch.passes.plan.target import TargetInfo
from tilestitch.passes.schedule.cpu.attention import attention_rows
from tilestitch.passes.schedule.kernels import schedule_group
from tilestitch.passes.schedule.structure import Known, structure_of

TASK_ELEMENTS = 4096
"""Elements of one task of an element-wise kernel, and of one tile of a GEMM, on a CPU."""
ATTENTION_ROWS = 64
"""On a CPU, queries whose scores a task of attention keeps."""
BASE_REGISTERS = 16
_KNOWN: Known[KernelFacts] = Known()
DEFAULT_CAPABILITY = 90


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


def group_facts(
    nodes: Mapping[str, Node], group: Group, target: TargetInfo, model: LatencyModel | None = None
) -> KernelFacts:
    """The facts of a planned group; `nodes` are the graph's by name. The group must be legal (`legality.check_group`).

    On a GPU they are those of its schedule; a group that has none yet gets the one that it will have by `model`. Raises
    ValueError for a group that is none.
    """
    structure = structure_of(nodes, group, target)
    if structure is None:
        return _group_facts(nodes, group, target, model)
    known, facts = _KNOWN.of(structure, model, lambda: _group_facts(nodes, group, target, model))
    return facts if known.names == structure.names else facts.renamed(known.renaming(structure))


def _group_facts(
    nodes: Mapping[str, Node], group: Group, target: TargetInfo, model: LatencyModel | None
) -> KernelFacts:
    if target.is_gpu and model is not None and not (group.schedule or any(part.schedule for part in group.parts)):
        group = schedule_group(nodes, group, target, model)
    if group.tie == "band":
        gemm, after = group.parts
        return facts_of_band(nodes, group, (group_facts(nodes, gemm, target), group_facts(nodes, after, target)))
    if group.stages:
        return joined_facts([[group_facts(nodes, part, target, model) for part in stage] for stage in group.stages])
    members = [nodes[name] for name in group.nodes]
    values = {o.name: o for n in members for o in n.outputs}
    stored = [values[name] for name in group.outputs]
    roles = roles_of(members, stored, group.name)
    if isinstance(roles, WhyNot):
        raise ValueError(f"no kernel: {roles}; plan the graph again")
    if not target.is_gpu:
        return _on_cpu(members, stored, roles, target)
    return gpu_facts(nodes, group, roles, _work(members, stored, roles), multiprocessors_of(target))


def nodes_by_name(graph: Graph) -> dict[str, Node]:
    return {n.name: n for n in graph.nodes}


def facts_of(
    nodes: Sequence[Node], stored: Sequence[Value], roles: Roles, target: TargetInfo, model: LatencyModel
) -> KernelFacts:
    """The facts of `nodes` (in topological order) as one kernel that stores `stored`, scheduled by `model`."""
    if not target.is_gpu:
        return _on_cpu(nodes, stored, roles, target)
    return group_facts({node.name: node for node in nodes}, _group(nodes, stored, roles), target, model)


def _group(nodes: Sequence[Node], stored: Sequence[Value], roles: Roles) -> Group:
    """A candidate as the group that it would be."""
    inputs, constants = operands(nodes)
    return Group(
        "candidate", roles.kind, tuple(n.name for n in nodes), roles.anchor.name if roles.anchor else None,
        tuple(v.name for v in inputs), tuple(v.name for v in constants), tuple(v.name for v in stored),
    )  # fmt: skip


def _work(nodes: Sequence[Node], stored: Sequence[Value], roles: Roles) -> Part:
    """What a kernel reads, writes and computes, however it is scheduled."""
    counts, dtype = evaluations(nodes, stored, roles), _dtype(nodes, roles)
    elements = max(o.tensor_type.num_elements for n in nodes for o in n.outputs)
    if roles.rows is not None:
        elements = max(elements, prod(roles.rows.shape))
    return Part(
        kind=roles.kind.value,
        dtype=dtype,
        reads=_reads(nodes, counts),
        writes=tuple(Traffic(v.name, v.tensor_type.nbytes, v.tensor_type.nbytes) for v in stored),
        arithmetic=tuple(_arithmetic(nodes, counts, roles, dtype)),
        elements=elements,
    )


def _on_cpu(nodes: Sequence[Node], stored: Sequence[Value], roles: Roles, target: TargetInfo) -> KernelFacts:
    work = _work(nodes, stored, roles)
    tasks, launches = _tasks(roles, stored, work.elements, target)
    row_bytes = _row_bytes(roles) if roles.softmax is None else _score_bytes(roles)
    part = replace(work, tasks=tasks, shared_bytes=row_bytes, registers=BASE_REGISTERS + 2 * _most_alive(nodes))
    return kernel_of(part, *[Part(part.kind, part.dtype)] * (launches - 1))


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _arithmetic(nodes: Sequence[Node], counts: Mapping[Value, float], roles: Roles, dtype: str) -> Iterator[Arithmetic]:
    """What is computed, by unit; what multiplies and adds is for the schedule to say."""
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
    found: tuple[tuple[Unit, float], ...] = (
        ("fma", fma), ("alu", cheap), ("special", transcendental), ("scalar", staged)
    )  # fmt: skip
    return (Arithmetic(unit, dtype, int(count)) for unit, count in found if int(count))


def _staged(nodes: Sequence[Node], counts: Mapping[Value, float], roles: Roles) -> int:
    """Evaluations before a GEMM's operands, if more than views is there."""
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
        if value.data is not None and value.data.size == 1:
            continue  # it is part of the code
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
        return float(size)  # tiles of a GEMM are kept close; what is read again comes from the first cache
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


def _score_bytes(roles: Roles) -> int:
    """What a task of attention keeps: the scores of its rows."""
    assert roles.softmax is not None
    return min(ATTENTION_ROWS, roles.softmax.queries) * roles.softmax.keys * 4


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
        return max(1, heads * ceil(queries / attention_rows(heads, queries, target.threads))), 1
    if roles.rows is not None:
        rows = prod(roles.rows.dropped)
        if rows >= target.threads or looks_again(roles) or elements < 2 * TASK_ELEMENTS:
            return rows, 1
        return max(rows, ceil(elements / TASK_ELEMENTS)), 2
    if roles.anchor is not None and roles.kind is GroupKind.OPAQUE and roles.anchor.op != "window_reduce":
        return 1, 1
    return max(1, ceil(sum(v.tensor_type.num_elements for v in stored[:1]) / TASK_ELEMENTS)), 1


def multiprocessors_of(target: TargetInfo) -> int:
    """Multiprocessors that every GPU has on which code for `target` must run."""
    device = device_of(target)
    assert isinstance(device, Device)
    return device.sm_count if target.multiprocessors is None else target.multiprocessors
