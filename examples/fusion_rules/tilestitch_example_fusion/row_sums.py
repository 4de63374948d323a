"""A schedule: a CUDA kernel of one's own for sums of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tilestitch.codegen.cuda.abi import SYMBOL, CudaLaunch, ValueArg
from tilestitch.codegen.cuda.target import CudaTarget
from tilestitch.compiler.ir import Graph
from tilestitch.passes import Group

WARPS = 8

KERNEL = """\
extern "C" __global__ void __launch_bounds__({threads}) {symbol}(const float *__restrict__ x, float *__restrict__ y) {{
  int row = blockIdx.x * {warps} + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= {rows}) return;
  float sum = 0.0f;
  for (int i = lane; i < {length}; i += 32) sum += x[(long long)row * {length} + i];
  for (int distance = 16; distance; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (lane == 0) y[row] = sum;
}}
"""


@dataclass(frozen=True)
class OwnRowSums:
    """Sums float32 rows of at least `least` elements with a warp a row. All other groups are left to tilestitch.

    Equal groups are asked for once, so the answer may depend on nothing but the group itself.
    """

    least: int = 64
    name: ClassVar[str] = "own_row_sums"

    def schedule(self, graph: Graph, group: Group, target: Any) -> Sequence[CudaLaunch] | None:
        if not isinstance(target, CudaTarget) or len(group.nodes) != 1:
            return None
        node = graph.node(group.nodes[0])
        x, y = node.inputs[0], node.outputs[0]
        last = len(x.shape) - 1
        if node.op != "reduce_sum" or tuple(node.attrs["axes"]) != (last,) or x.dtype != "float32":
            return None
        rows, length = y.tensor_type.num_elements, x.shape[last]
        if not rows or length < self.least or x.is_constant:
            return None
        text = KERNEL.format(symbol=SYMBOL, threads=32 * WARPS, warps=WARPS, rows=rows, length=length)
        grid, block = (-(-rows // WARPS), 1, 1), (32 * WARPS, 1, 1)
        return [CudaLaunch(self.name, text, grid, block, (ValueArg(x.name), ValueArg(y.name)), group.origins)]
