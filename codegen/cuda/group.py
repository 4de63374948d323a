"""From a group of the plan to CUDA launches: chooses the template and lists the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilestitch.codegen.errors import KernelError
from tilestitch.codegen.groups import GroupView, roles_in, view_group
from tilestitch.compiler.ir.graph import Graph, Value
from tilestitch.passes.plan import Group, GroupKind

from .abi import CudaLaunch
from .checks import lower_index_checks
from .injective import lower_injective, value_args
from .rows import lower_rowwise
from .scan import lower_cumulative
from .scatter import lower_scatter
from .sort import lower_top_k
from .stitched import lower_stages, private
from .target import CudaTarget
from .turned import lower_turned, plan_turn
from .window import lower_window


def lower_group(graph: Graph, group: Group, target: CudaTarget) -> tuple[CudaLaunch, ...]:
    """The launches of a group, in order; none if its outputs have no elements.

    Raises KernelError, naming the ONNX nodes, for a group that no template fits.
    """
    if group.tie == "band":
        return _banded(graph, group, target)
    if group.stages:
        return _stitched(graph, group, target)
    view = view_group(graph, group)
    outputs = tuple(v for v in view.outputs if v.tensor_type.num_elements)
    if not outputs:
        return ()
    checks = () if group.kind is GroupKind.OPAQUE else lower_index_checks(view.nodes, view.inputs)
    return (*checks, *_template(view, group.kind, outputs, target))


def _stitched(graph: Graph, group: Group, target: CudaTarget) -> tuple[CudaLaunch, ...]:
    """Checks of indices run before; they are of the first stage's."""
    checks: list[CudaLaunch] = []
    stages: list[list[tuple[CudaLaunch, ...]]] = []
    inner: dict[str, int] = {}
    for stage in group.stages:
        stages.append([])
        for part in stage:
            view = view_group(graph, part)
            outputs = tuple(v for v in view.outputs if v.tensor_type.num_elements)
            inner.update((v.name, v.tensor_type.nbytes) for v in outputs if v.name not in group.outputs)
            if outputs:
                checks += lower_index_checks(view.nodes, view.inputs)
                stages[-1].append(_template(view, part.kind, outputs, target))
    stages = [stage for stage in stages if stage]
    origins = view_group(graph, group).origins
    return (*checks, *(lower_stages(stages, inner, origins, target) if stages else ()))


def _banded(graph: Graph, group: Group, target: CudaTarget) -> tuple[CudaLaunch, ...]:
    from .contraction import lower_contraction

    product, behind = (view_group(graph, part) for part in group.parts)
    stored = {v.name: v.tensor_type.nbytes for v in (*product.outputs, *behind.outputs)}
    inner = {name: nbytes for name, nbytes in stored.items() if name not in group.outputs}
    checks = lower_index_checks(product.nodes, product.inputs)
    launches = lower_contraction(product.nodes, roles_in(product), product.inputs, product.outputs, target, behind)
    origins = view_group(graph, group).origins
    return (*checks, *(replace(private(launch, inner), origins=origins) for launch in launches))


def _template(view: GroupView, kind: GroupKind, outputs: Sequence[Value], target: CudaTarget) -> tuple[CudaLaunch, ...]:
    if kind is GroupKind.INJECTIVE:
        args = value_args(view.inputs, outputs)
        turn = plan_turn(view.nodes, view.inputs, outputs)
        if turn is not None:
            return (lower_turned(turn, view.inputs, outputs, args, view.origins),)
        return (lower_injective(view.nodes, view.inputs, outputs, target, args, view.origins),)
    if kind is GroupKind.ROWWISE:
        return lower_rowwise(view, roles_in(view), outputs, target)
    if kind is GroupKind.CONTRACTION:
        from .contraction import lower_contraction

        return tuple(lower_contraction(view.nodes, roles_in(view), view.inputs, outputs, target))
    if kind is GroupKind.ATTENTION:
        from .attention import lower_attention

        return lower_attention(view.nodes, roles_in(view), view.inputs, outputs, target)
    return _opaque(view, outputs, target)


def _opaque(view: GroupView, outputs: Sequence[Value], target: CudaTarget) -> tuple[CudaLaunch, ...]:
    anchor = view.anchor
    assert anchor is not None
    if anchor.op == "window_reduce":
        return (lower_window(view, roles_in(view), outputs),)
    if anchor.op == "cumulative":
        return (lower_cumulative(anchor),)
    if anchor.op == "top_k":
        return (lower_top_k(anchor, target),)
    if anchor.op in ("scatter_elements", "scatter_nd"):
        return lower_scatter(anchor)
    raise KernelError(f"group {view.name}: {anchor.op} has no kernel template; make it a host step", view.origins)
