"""Plans of models with a batch of known size: whether its images go through the launches a few at a time."""

from __future__ import annotations

from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.ir.types import is_static_tensor
from tilestitch.cost_model.cpu import CpuDevice

from .contract import PassContext
from .open.batches import batches_of, in_images
from .open.slices import Divided, divided
from .plan import StitchPlan
from .planner import make_plan, predicted_us
from .schedule.cpu.tiles import LAST_CACHE_BYTES
from .schedule.device import device_of

LEAST_GAIN = 0.1
"""Of the predicted time: kernels for any number of images may take so much longer than those for a known one."""


def plan_in_images(graph: Graph, plan: StitchPlan, context: PassContext) -> tuple[Graph, StitchPlan]:
    """A graph and its plan: the given ones, or with slices of a batch, where memory would move so much less by them
    that it pays.
    """
    device = device_of(context.target)
    if graph.symbols or not isinstance(device, CpuDevice) or _most_bytes(graph, plan) <= LAST_CACHE_BYTES:
        return graph, plan
    for batch in batches_of(graph):
        found = in_images(graph, batch)
        if found is None:
            continue
        opened, call = found
        saved_us = _saved_bytes(call, plan, batch) / device.dram_bytes_per_second * 1e6
        if saved_us > 0 and saved_us > LEAST_GAIN * predicted_us(plan, graph, context):
            return opened, make_plan(opened, context)
    return graph, plan


def _most_bytes(graph: Graph, plan: StitchPlan) -> int:
    """What a kernel of the plan reads and stores at most, weights left out."""
    values = {value.name: value for value in (*graph.inputs, *(v for node in graph.nodes for v in node.outputs))}
    sized = {name: value.tensor_type.nbytes for name, value in values.items() if is_static_tensor(value.type)}
    touched = (sum(sized.get(name, 0) for name in (*g.inputs, *g.outputs)) for g in plan.groups)
    return max(touched, default=0)


def _saved_bytes(call: Node, plan: StitchPlan, batch: int) -> float:
    """What memory moves less if the kernels of the plan go through the images a few at a time."""
    body = call.attrs["body"]
    (symbol,) = body.symbols
    sizes = {symbol.name: batch}
    found = divided(body, symbol, plan.groups, plan.segments, plan.buffers.aliases, sizes, batch)
    return found.saved_bytes * batch if isinstance(found, Divided) else 0.0


def as_planned(graph: Graph, plan: StitchPlan) -> Graph:
    """The graph that a plan to be replayed is for: with the batch that it goes through, if there is one."""
    counted = [symbol.high for body in plan.bodies.values() if body.slices for symbol in body.symbols]
    if graph.symbols or len(counted) != 1:
        return graph
    found = in_images(graph, counted[0])
    return graph if found is None else found[0]
