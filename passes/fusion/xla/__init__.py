"""XLA:GPU's fusion as rules over our graph: the baseline for stitching.

The rules follow openxla/xla as of 2026-08-22 (docs/baselines.md names the commit, the files, and what is left out). In
the order in which XLA runs its passes:

- `LibraryCalls`: cuBLAS, cuDNN and Triton GEMMs with their epilogues (gemm_rewriter, gemm_fusion,
  cudnn_fused_conv_rewriter);
- `DotMerger`: GEMMs of one operand (dot_merger);
- `Normalisations`: a row reduced and combined with its reduction is one Triton kernel (softmax_rewriter_triton);
- `PriorityFusion`: a producer into all of its consumers, the most profitable first (priority_fusion);
- `MultiOutputFusion`: siblings, and a producer that is stored as well (multi_output_fusion).

`KernelLimits` forbids what XLA does not emit as one kernel.
"""

from .diamonds import Normalisations
from .kernels import KernelLimits
from .libraries import DotMerger, LibraryCalls
from .multi_output import MultiOutputFusion
from .priority import PriorityFusion

__all__ = ["DotMerger", "KernelLimits", "LibraryCalls", "MultiOutputFusion", "Normalisations", "PriorityFusion"]
