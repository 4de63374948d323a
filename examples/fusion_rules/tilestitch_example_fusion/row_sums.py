"""A schedule: kernels of one's own for sums of rows, CUDA text for GPUs and C text for CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tilestitch.passes.api import CKernel, CudaKernel, Graph, Group, KernelTarget, Schedule

WARPS = 8
CUDA, C = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("row_sums.cu", "row_sums.c"))


@dataclass(frozen=True)
class OwnRowSums(Schedule):
    """Sums float32 rows of at least `least` elements: a warp a row on GPUs, a task a row on CPUs. All other groups are
    left to tilestitch, and so are CPUs unless `cpu` is set: that takes a C compiler.

    Equal groups are asked for once, so the answer may depend on nothing but the group itself.
    """

    least: int = 64
    cpu: bool = False
    name: ClassVar[str] = "own_row_sums"
    api_version: ClassVar[int] = 1

    def schedule(self, graph: Graph, group: Group, target: KernelTarget) -> Sequence[CudaKernel | CKernel] | None:
        if len(group.nodes) != 1 or (target.kind == "cpu" and not self.cpu):
            return None
        node = graph.node(group.nodes[0])
        if node.op != "reduce_sum" or node.inputs[0].dtype != "float32" or node.inputs[0].is_constant:
            return None
        x, y = node.inputs[0], node.outputs[0]
        last = len(x.shape) - 1
        length = x.shape[last]
        if tuple(node.attrs["axes"]) != (last,) or length < self.least:
            return None
        rows = y.tensor_type.num_elements
        sizes = f"#define ROWS {rows}\n#define LENGTH {length}\n"
        if target.kind == "cpu":
            return [CKernel(sizes + C, (x.name, y.name), tasks=rows)]
        return [CudaKernel(sizes + CUDA, (-(-rows // WARPS), 1, 1), (32 * WARPS, 1, 1), (x.name, y.name))]
