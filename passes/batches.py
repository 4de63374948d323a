"""Plans of models with a batch of known size: whether the launches process a few of its images at a time."""

from tilestitch.compiler.ir import Graph, Node
from tilestitch.compiler.ir.sizes import at, bounds_of
from tilestitch.compiler.ir.types import is_static_tensor
from tilestitch.cost_model.devices import CpuDevice
from tilestitch.cost_model.records import RecordedModel

from .contract import PassContext
from .open.batches import batches_of, body_name, in_images
from .open.slices import Divided, divided
from .plan import StitchPlan
from .planner import make_plan, predicted_us
from .schedule.cpu.tiles import LAST_CACHE_BYTES
from .schedule.device import device_of

LEAST_GAIN = 0.1
"""Least gain, relative to the predicted time: kernels for any number of images may be slower by so much than those for
a known one.
"""


def plan_in_images(graph: Graph, plan: StitchPlan, context: PassContext) -> tuple[Graph, StitchPlan]:
    """Return a graph and its plan: the given ones, or with slices of a batch, if the reduction in memory traffic pays.
    Kernels of plug-ins and measured schedules are for the model's own sizes.
    """
    device = device_of(context.target)
    if graph.symbols or not isinstance(device, CpuDevice) or _most_bytes(graph, plan) <= LAST_CACHE_BYTES:
        return graph, plan
    if isinstance(context.cost_model, RecordedModel) or any(context.kernels_of(graph, g) for g in plan.groups):
        return graph, plan
    least_us = LEAST_GAIN * predicted_us(plan, graph, context)
    for batch in batches_of(graph):
        found = in_images(graph, batch)
        if found is None:
            continue
        opened, call = found
        if _saved_bytes(call, plan, batch) / device.dram_bytes_per_second * 1e6 > least_us:
            planned = make_plan(opened, context)
            if _has_slices(planned, plan, call, batch, context.target.threads):
                return opened, planned
    return graph, plan


def _most_bytes(graph: Graph, plan: StitchPlan) -> int:
    """Return the most bytes that a kernel of the plan reads and stores, without weights."""
    values = {value.name: value for value in (*graph.inputs, *(v for node in graph.nodes for v in node.outputs))}
    sized = {name: value.tensor_type.nbytes for name, value in values.items() if is_static_tensor(value.type)}
    touched = (sum(sized.get(name, 0) for name in (*g.inputs, *g.outputs)) for g in plan.groups)
    return max(touched, default=0)


def _saved_bytes(call: Node, plan: StitchPlan, batch: int) -> float:
    """Return the memory traffic saved if the plan's kernels process a few images at a time."""
    body = call.attrs["body"]
    (symbol,) = body.symbols
    sizes = {symbol.name: batch}
    found = divided(body, symbol, plan.groups, plan.segments, plan.buffers.aliases, sizes, batch)
    return found.saved_bytes * batch if isinstance(found, Divided) else 0.0


def _has_slices(planned: StitchPlan, known: StitchPlan, call: Node, batch: int, threads: int) -> bool:
    """Return whether the body of a call has slices, each with tasks for all threads if all images together have as
    many, and leaves no more to the host than a plan of known sizes.
    """
    body = planned.bodies[f"{call.name}.body"]
    hosts = {group.name for plan in (planned, body) for group in plan.host_groups} - {call.name}
    if body.slices is None or not hosts <= {group.name for group in known.host_groups}:
        return False
    most = {group: bounds_of(run.most)[0] for run in body.slices.runs for group in run.groups}
    for launch in body.launches or ():
        counts = (batch, min(batch, most[launch.group] or batch))
        whole, some = (bounds_of(at(launch.grid[0], {body.slices.symbol: count}))[1] for count in counts)
        if some < min(threads, whole):
            return False
    return True


def as_planned(graph: Graph, plan: StitchPlan) -> Graph:
    """Return the graph that a plan to be replayed is for: with its batch sliced, if it is."""
    counted = [s.high for body in plan.bodies.values() if body.graph == body_name(graph) for s in body.symbols]
    if graph.symbols or len(counted) != 1:
        return graph
    found = in_images(graph, counted[0])
    return graph if found is None else found[0]
