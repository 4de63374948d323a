"""Attention groups on CUDA: which kernel computes one."""

from __future__ import annotations

from collections.abc import Sequence

from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.passes.plan.roles import Roles

from .abi import CudaLaunch
from .attention_mma import fits_mma, lower_mma
from .attention_operands import attended
from .attention_simt import lower_simt
from .surroundings import Anchored
from .target import CudaTarget


def lower_attention(
    nodes: Sequence[Node], roles: Roles, inputs: Sequence[Value], outputs: Sequence[Value], target: CudaTarget
) -> tuple[CudaLaunch, ...]:
    """The launches of an attention group, in order. Raises KernelError if no tile fits the target's shared memory."""
    group = Anchored(tuple(nodes), roles, tuple(inputs), tuple(outputs), target)
    what = attended(group)
    found = lower_mma(what) if fits_mma(what) else lower_simt(what)
    if found is None:
        origins = tuple(dict.fromkeys(o for node in nodes for o in node.origins))
        limit = target.device.shared_bytes_per_block
        raise KernelError(
            f"attention of width {what.width} and {what.columns} does not fit the {limit} bytes of shared memory of "
            f"{target.name}; compile with --planner injective",
            origins,
        )
    return found
