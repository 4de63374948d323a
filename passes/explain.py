"""Explanation of all decisions of a plan as plain data, for `tilestitch explain --json`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilestitch.compiler.ir import Graph, Kind, Node, TensorType, Value, kind_of
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.compiler.ir.substitute import data_at, graph_at, sizes_given
from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.counts import bytes_of, footprint_bytes, operations
from tilestitch.cost_model.devices import CpuDevice, Device
from tilestitch.cost_model.facts import KernelFacts
from tilestitch.cost_model.laws.compute import waves_apart, waves_together
from tilestitch.cost_model.protocol import AnyDevice, LatencyModel, Prediction
from tilestitch.cost_model.side_by_side import works_of
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts, nodes_by_name

from .host_steps import host_summary, refused_kernels, why_on_host
from .open.regions import CALL
from .open.typical import typical_sizes
from .plan import Group, HostGroup, StitchPlan, WhyNot
from .plan.cases import Cases
from .plan.cpu.dots import largest_pair, small_pairs
from .plan.launches.cuda.group import ticketing_of
from .plan.schedules import LaunchesSchedule, TicketSchedule, schedule_to_json
from .plan.target import TargetInfo
from .schedule.launches import nested_graphs
from .schedule.makespan import plan_us, timeline_of
from .schedule.parallel.arrange import one_at_a_time_bytes
from .sync.cost import Gain, gains, slots, timeline
from .sync.joins import joined_of
from .sync.waves import Span
from .waits import described_edge, waits_of

OPERATIONS_PER_BYTE = 16
"""Kernels with fewer operations per byte moved are memory-bound on any present machine."""
OF_CALLS = ("buffers", "slices", "prediction", "calls", "bodies")
"""Fields of a call's explanation that are kept separate; its kernels are listed among those of the graph."""
LaunchesOf = Callable[[StitchPlan, str], Sequence[Sequence[Mapping[str, Any]]]]
"""Function that returns the launches of a group of a plan as JSON data, for each of its cases."""


def explain_plan(
    graph: Graph,
    plan: StitchPlan,
    *,
    launches: LaunchesOf | None = None,
    target: TargetInfo | None = None,
    model: LatencyModel = ANALYTICAL,
    is_body: bool = False,
    given_sizes: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the decisions of `plan` for `graph` as JSON data; `launches` gives the launches of its groups, if known.

    `kernels` is in launch order (`number`) and has native groups only; `host_steps` has the others, each with the
    reason, and `host` summarises them (`is_body`: of a loop or branch). Kernels of a call are listed at the call
    (`body`), for its sizes (`given_sizes`). `origins` maps each node of the graph to the model's nodes from which it
    stems. Bytes are counted once per tensor; `unfused` describes a kernel's nodes as one kernel each; `sync` is what it
    waits for. `predicted_us` is the prediction of `model` for each kernel on the device of `target` (default: the
    plan's target, one thread); `prediction` names both, and has the total time (`total_us`), with concurrency where
    edges and the device allow it, as `schedule` shows for a GPU.
    """
    given, given_graph, nested = plan, graph, nested_graphs(graph)
    sizes = typical_sizes(graph, given_sizes)
    if sizes:
        graph, plan = graph_at(graph, sizes), data_at(plan, sizes)
    target = target or plan.target
    device = device_of(target)
    bodies = {
        key: explain_plan(
            body, given.bodies[key], launches=launches, target=target, model=model, is_body=True,
            given_sizes=_sizes_of_call(graph, key, body),
        )
        for key, body in nested.items()
    }  # fmt: skip
    told = _Told(graph, plan, given, target, model, launches)
    told.tell_groups(bodies, is_body)
    total_us = plan_us(plan, told.facts, told.durations_us, device)
    called_us = sum(one["prediction"]["total_us"] for one in told.called.values())
    return {
        "kernels": told.kernels,
        "host_steps": told.host_steps,
        "host": host_summary(graph, plan, _all_kernels(told.kernels, bodies), given=given_graph, is_body=is_body),
        "refusals": [
            *(r.to_json() for r in plan.refusals),
            *(r for one in told.called.values() for r in one["refusals"]),
        ],
        "origins": {
            **{n.name: list(n.origins) for n in graph.nodes},
            **{name: origins for one in told.called.values() for name, origins in one["origins"].items()},
        },
        "buffers": _buffers(plan),
        "slices": _slices(given),
        "calls": {key: {name: one[name] for name in OF_CALLS} for key, one in told.called.items()},
        "target": plan.target.name,
        "planner": plan.planner,
        "prediction": {**_prediction(model, device), "sizes": sizes, "total_us": round(total_us + called_us, 3)},
        "schedule": _schedule(plan, graph, told.facts, told.durations_us, device),
        "plugins": [p.to_json() for p in plan.plugins],
        "bodies": bodies,
    }


@dataclass
class _Told:
    """Explanation of the groups of a plan, filled in group by group.

    `graph`, `plan`: at typical sizes. `given`: the plan with open sizes. `called`: explanations of calls, by key.
    `facts`, `durations_us`: of each kernel by the name of its group, and its predicted time.
    """

    graph: Graph
    plan: StitchPlan
    given: StitchPlan
    target: TargetInfo
    model: LatencyModel
    launches: LaunchesOf | None
    kernels: list[dict[str, Any]] = field(default_factory=list)
    host_steps: list[dict[str, Any]] = field(default_factory=list)
    called: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, KernelFacts] = field(default_factory=dict)
    durations_us: dict[str, float] = field(default_factory=dict)

    def tell_groups(self, bodies: dict[str, dict[str, Any]], is_body: bool) -> None:
        """Explain all groups in launch order. `bodies`: explanations of nested graphs, from which those of calls are
        removed.
        """
        graph, plan = self.graph, self.plan
        reasons = {n.name: why for n, why in why_on_host(graph, refused_kernels(plan), is_body=is_body).items()}
        by_name: dict[str, Group | HostGroup] = {g.name: g for g in plan.groups}
        by_name.update((g.name, g) for g in plan.host_groups)
        values = {v.name: v for v in (*graph.inputs, *graph.constants)}
        values.update((o.name, o) for n in graph.nodes for o in n.outputs)
        nodes, waits = nodes_by_name(graph), waits_of(plan)
        for number, segment in enumerate(plan.segments):
            for name in segment.groups:
                group = by_name[name]
                if not isinstance(group, HostGroup):
                    self._tell_kernel(group, number, nodes, values, waits[name])
                    continue
                if graph.node(name).op == CALL:
                    self._tell_call(f"{name}.body", bodies.pop(f"{name}.body"))
                if name in reasons:
                    self.host_steps.append({**_host_step(graph, group, number), **_why(reasons[name])})

    def _tell_kernel(
        self, group: Group, segment: int, nodes: Mapping[str, Node], values: Mapping[str, Value], waits: Any
    ) -> None:
        device = device_of(self.target)
        facts = self.facts[group.name] = group_facts(nodes, group, self.target, self.model)
        (found,) = self.model.predict((facts,), device)
        self.durations_us[group.name] = found.latency_us
        kernel = _kernel(self.graph, group, values, segment) | _predicted(found) | {"sync": waits}
        kernel |= _tiles(nodes, group, facts, self.target, self.model, device)
        kernel |= _launched(self.given, group, self.launches)
        self.kernels.append({"number": len(self.kernels), **kernel})

    def _tell_call(self, key: str, body: dict[str, Any]) -> None:
        self.called[key] = body
        first = len(self.kernels)
        self.kernels += [{"body": key, **k, "number": first + i} for i, k in enumerate(body["kernels"])]
        self.host_steps += body["host_steps"]


def _sizes_of_call(graph: Graph, key: str, body: Graph) -> dict[str, int]:
    """Return the values of the symbols of a call's body, as far as the types of its operands determine them."""
    node = graph.node(key.rpartition(".")[0])
    shapes = [v.type.shape if isinstance(v.type, TensorType) else None for v in node.inputs]
    return sizes_given(body, shapes) if node.op == CALL else {}


def _predicted(found: Prediction) -> dict[str, Any]:
    return {
        "predicted_us": round(found.latency_us, 3),
        "predicted_range_us": [round(found.low_us, 3), round(found.high_us, 3)],
        "bound": found.bound,
    }


def _tiles(
    nodes: Mapping[str, Node], group: Group, facts: KernelFacts, target: TargetInfo, model: LatencyModel,
    device: AnyDevice,
) -> dict[str, Any]:  # fmt: skip
    """Return the tile dependences of a kernel, and the predicted saving; nothing for kernels whose tiles do not
    wait.
    """
    if isinstance(group.schedule, TicketSchedule | LaunchesSchedule) and isinstance(device, Device):
        launched = zip(group.parts, ticketing_of(nodes, group).parts, strict=True)
        drawn = [part for part, launches in launched for _ in launches]
        parts = [group_facts(nodes, part, target, model) for part in group.parts]
        edges = zip(group.schedule.edges, gains(nodes, group, parts, device), strict=True)
        return {
            "tiles": [{**described_edge(drawn, edge), **_gained(gain)} for edge, gain in edges],
            "apart": _apart(parts, facts, model, device),
            "timeline": _spans(drawn, *timeline(nodes, group, parts, device)),
        }
    joined = joined_of(nodes, group)
    return {} if joined is None else {"tiles": [described_edge(joined.groups, edge) for edge in joined.edges]}


def _launched(given: StitchPlan, group: Group, launches: LaunchesOf | None) -> dict[str, Any]:
    """Return the launches of a group, if known, and its decision table, if it has one. `given`: the plan with open
    sizes.
    """
    told = None if launches is None else launches(given, group.name)
    usual = 0 if group.cases is None else _place(group, group.cases)
    return {
        **({} if told is None else {"launches": list(told[usual])}),
        **({} if group.cases is None else {"cases": _cases(given.group(group.name), told)}),
    }


def _place(group: Group, cases: Cases) -> int:
    """Return the number of the case with the group's own schedule."""
    return next(number for number, case in enumerate(cases.cases) if case.schedule == group.schedule)


def _cases(group: Group, launches: Sequence[Sequence[Mapping[str, Any]]] | None) -> dict[str, Any]:
    """Return the decision table of a group: its expression, and for each region the schedule, its launches, and what
    was predicted (`alone_us`: with one schedule for all sizes).
    """
    assert group.cases is not None
    rows = [
        {
            "from": case.low,
            "below": case.high,
            "schedule": schedule_to_json(case.schedule),
            "predicted": [
                {"value": each.value, "sizes": dict(each.sizes), "us": each.us, "alone_us": each.alone_us}
                for each in case.predicted
            ],
            **({} if launches is None else {"launches": list(launches[number])}),
        }
        for number, case in enumerate(group.cases.cases)
    ]
    return {"size": str(group.cases.size), "regions": rows}


def _apart(parts: Sequence[KernelFacts], together: KernelFacts, model: LatencyModel, device: Device) -> dict[str, Any]:
    """Return the parts of a kernel whose blocks draw tiles as launches of their own, including their waves of
    blocks.
    """
    tiles, launches = [part.tasks for part in parts], [part.sequence[-1] for part in parts]
    tied = [one for one in together.sequence if one.pace != 1.0] or together.sequence[-1:]
    return {
        "predicted_us": round(sum(found.latency_us for found in model.predict(parts, device)), 3),
        "waves": waves_apart(tiles, [slots(launch, device) for launch in launches]),
        "waves_together": round(waves_together(tiles, min(slots(one, device) for one in tied)), 2),
    }


def _gained(gain: Gain) -> dict[str, Any]:
    return {
        "waves": gain.waves,
        "waves_together": round(gain.waves_together, 2),
        "saved_us": round(gain.saved_us, 3),
    }


def _spans(parts: Sequence[Group], tied: Sequence[Span], apart: Sequence[Span]) -> list[dict[str, Any]]:
    """Return when each launch of a kernel with tile dependences runs, and when it would run without them."""

    def rounded(span: Span) -> list[float]:
        return [round(us, 3) for us in span]

    return [
        {"part": part.name, "tied_us": rounded(with_), "apart_us": rounded(without)}
        for part, with_, without in zip(parts, tied, apart, strict=True)
    ]


def _schedule(
    plan: StitchPlan, graph: Graph, facts: Mapping[str, KernelFacts], durations_us: Mapping[str, float],
    device: AnyDevice,
) -> dict[str, Any] | None:  # fmt: skip
    """Return the predicted timeline of launches, and the memory price of concurrency; None on a CPU."""
    if not isinstance(device, Device):
        return None
    timeline = timeline_of(plan, works_of(facts, durations_us, device))
    return {
        **timeline,
        "arena_bytes": plan.buffers.arena_bytes,
        "one_at_a_time_bytes": one_at_a_time_bytes(plan, graph),
    }


def _all_kernels(
    kernels: Sequence[Mapping[str, Any]], bodies: Mapping[str, Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the kernels of a graph and of those nested in it."""
    return [*kernels, *(kernel for body in bodies.values() for kernel in _all_kernels(body["kernels"], body["bodies"]))]


def _prediction(model: LatencyModel, device: AnyDevice) -> dict[str, Any]:
    """Return the model that predicted, and the device that represents the target: a generic CPU, or one GPU of an
    architecture.
    """
    cores = {"cores": device.cores} if isinstance(device, CpuDevice) else {}
    return {"model": model.name, "device": device.name, **cores, "estimate": True}


def _kernel(graph: Graph, group: Group, values: Mapping[str, Value], segment: int) -> dict[str, Any]:
    nodes = [graph.node(name) for name in group.nodes]
    bytes_read, bytes_written = _traffic(group, nodes, values)
    work = sum(operations(n) for n in nodes)
    return {
        "name": group.name,
        "kind": group.kind.value,
        "memory_bound": work < OPERATIONS_PER_BYTE * (bytes_read + bytes_written),
        "onnx_nodes": list(group.origins),
        "nodes": list(group.nodes),
        "inputs": list(group.inputs),
        "outputs": list(group.outputs),
        "stored_by": [n.name for n in nodes if any(o.name in group.outputs for o in n.outputs)],
        "composition": list(group.schemes),
        "stages": [[_part(part, nodes, values) for part in stage] for stage in group.stages],
        "tie": group.tie if group.stages else "",
        "stitches": [
            {"producer": s.producer, "consumer": s.consumer, "scheme": s.scheme, "rule": s.rule} for s in group.stitches
        ],
        "predicted_us": None,
        "predicted_range_us": None,
        "bound": "",
        "operations": work,
        "multiplies": [_multiplied(node, group) for node in nodes if kind_of(node.op) is Kind.CONTRACTION],
        "instructions": sorted(group.instructions),
        "floats": list(group.floats),
        "bytes_read": bytes_read,
        "bytes_written": bytes_written,
        "unfused": _unfused(nodes),
        "sync": [],
        "segment": segment,
    }


def _multiplied(node: Node, group: Group) -> dict[str, Any]:
    """Return the data types that a contraction multiplies, and that of its result; and, where its weights prevent a
    faster instruction, their largest pair.
    """
    lowered = node.attrs.get("precision")
    operands = [lowered if lowered and value.dtype == "float32" else value.dtype for value in node.inputs[:2]]
    if node.op == "block_matmul":
        form = BlockFormat.of(node.attrs)
        operands = ["int8" if node.attrs.get("rounds") else operands[0], f"{form.codes} in blocks"]
    found = {"node": node.name, "onnx_nodes": list(node.origins), "operands": operands, "result": node.output.dtype}
    slow = "vpmaddwd" in group.instructions and not small_pairs(node)
    return {**found, "largest_pair": largest_pair(node)} if slow else found


def _traffic(group: Group, nodes: Sequence[Node], values: Mapping[str, Value]) -> tuple[int, int]:
    """Return the bytes that `nodes` of a group read and store, each once."""
    read = sum(footprint_bytes(values[v], nodes) for v in (*group.inputs, *group.constants))
    return read, bytes_of(values[v] for v in group.outputs)


def _unfused(nodes: Sequence[Node]) -> dict[str, int]:
    """Return the nodes' statistics as one kernel each; a reshape needs none."""
    alone = [n for n in nodes if n.op != "reshape"]
    read = sum(footprint_bytes(v, [n]) for n in alone for v in dict.fromkeys(n.inputs))
    written = bytes_of(o for n in alone for o in n.outputs)
    return {"kernels": len(alone), "bytes_read": read, "bytes_written": written}


def _part(part: Group, nodes: Sequence[Node], values: Mapping[str, Value]) -> dict[str, Any]:
    members = set(part.nodes)
    bytes_read, bytes_written = _traffic(part, [n for n in nodes if n.name in members], values)
    return {"name": part.name, "kind": part.kind.value, "bytes_read": bytes_read, "bytes_written": bytes_written}


def _host_step(graph: Graph, group: HostGroup, segment: int) -> dict[str, Any]:
    return {
        "name": group.name,
        "op": graph.node(group.name).op,
        "onnx_nodes": list(group.origins),
        "segment": segment,
    }


def _why(reason: WhyNot) -> dict[str, Any]:
    return {"rule": reason.rule, "reason": reason.reason}


def _slices(plan: StitchPlan) -> dict[str, Any] | None:
    """Return the kernels that process a few images of a batch at a time; 0: all of them."""
    if plan.slices is None:
        return None
    runs = [{"kernels": list(run.groups), "images": str(run.most)} for run in plan.slices.runs]
    return {"symbol": plan.slices.symbol, "runs": runs}


def _buffers(plan: StitchPlan) -> dict[str, Any]:
    return {
        "arena_bytes": plan.buffers.arena_bytes,
        "bytes_without_reuse": sum(b.nbytes for b in plan.buffers.buffers),
        "buffers": [
            {"value": b.value, "offset_bytes": b.offset_bytes, "nbytes": b.nbytes, "first": b.first, "last": b.last}
            for b in plan.buffers.buffers
        ],
        "aliases": dict(plan.buffers.aliases),
        "places": {part: [p.whole, p.offset_bytes] for part, p in plan.buffers.places.items()},
    }
