"""Runs a StitchPlan with numpy, group by group, with all arena values in one block of bytes: the plan's oracle."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilestitch.compiler.ir import Graph, Value, reference
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.passes.plan import StitchPlan


def simulate(plan: StitchPlan, graph: Graph, feeds: dict[str, Any]) -> list[Any]:
    """Outputs of `graph`, computed from what the plan stores where. Each group sees nothing but its inputs."""
    run = _Run(plan, graph, feeds)
    for name in plan.launch_order:
        run.launch(name)
    return [run.read(v) for v in graph.outputs]


class _Run:
    def __init__(self, plan: StitchPlan, graph: Graph, feeds: dict[str, Any]) -> None:
        self.plan, self.graph = plan, graph
        self.arena = np.full(plan.buffers.arena_bytes, 0xA5, np.uint8)
        self.buffers = {b.value: b for b in plan.buffers.buffers}
        self.heap: dict[str, Any] = dict(feeds)
        self.nodes = {n.name: n for n in graph.nodes}
        self.values = {o.name: o for n in graph.nodes for o in n.outputs}
        self.values.update((v.name, v) for v in graph.inputs)

    def read(self, value: Value) -> Any:
        if value.is_constant:
            return value.data
        name = self.plan.buffers.aliases.get(value.name, value.name)
        start = self.start_of(name)
        if start is None:
            data = self.heap[name]
            return data.reshape(value.shape) if name != value.name else data
        raw = self.arena[start : start + value.tensor_type.nbytes]
        return raw.view(to_numpy_dtype(value.dtype)).reshape(value.shape).copy()

    def write(self, name: str, data: Any) -> None:
        start = self.start_of(name)
        if start is None:
            self.heap[name] = data
            return
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.arena[start : start + raw.size] = raw

    def start_of(self, name: str) -> int | None:
        """Where a value lies in the arena, None if it does not."""
        place = self.plan.buffers.places.get(name)
        if place is not None:
            return self.buffers[place.whole].offset_bytes + place.offset_bytes
        return self.buffers[name].offset_bytes if name in self.buffers else None

    def launch(self, name: str) -> None:
        host = {g.name: g for g in self.plan.host_groups}
        if name in host:
            self._run_nodes((name,), host[name].inputs, host[name].outputs)
            return
        group = self.plan.group(name)
        self._run_nodes(group.nodes, group.inputs, group.outputs)

    def _run_nodes(self, nodes: tuple[str, ...], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        local = {i: self.read(self.values[i]) for i in inputs}
        for node in (self.nodes[n] for n in nodes):
            operands = [v.data if v.is_constant else local[v.name] for v in node.inputs]
            if any(isinstance(a, Graph) for a in node.attrs.values()):
                results = _run_control(node, operands)
            else:
                with np.errstate(all="ignore"):
                    results = reference(node.op)(operands, node.attrs)
            local.update((o.name, r) for o, r in zip(node.outputs, results, strict=True))
        for name in outputs:
            self.write(name, local[name])


def _run_control(node: Any, operands: list[Any]) -> list[Any]:
    graph = Graph("one")
    inputs = [graph.add_input(f"x{i}", v.type) for i, v in enumerate(node.inputs)]
    made = graph.add(node.op, inputs, node.attrs, types=[o.type for o in node.outputs])
    graph.outputs = list(made.outputs)
    return evaluate(graph, operands)
