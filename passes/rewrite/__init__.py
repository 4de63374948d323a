"""Graph rewrites, one per module. `REWRITES` lists them by name."""

from .algebra import Algebra
from .batch_loops import BatchLoops
from .canonicalise import Canonicalise
from .channels_last import ChannelsLast, Pointwise
from .cse import CommonSubexpressions, DeadCode
from .dead_branches import DeadBranches
from .float8 import Float8
from .fold_constants import FoldConstants
from .fold_scale_shift import FoldScaleShift
from .fold_transposes import FoldTransposes
from .integers import Integers
from .merge_gemms import MergeGemms
from .precision import Precision
from .refine_axes import RefineAxes
from .requantise import Requantise
from .reshape_motion import ReshapeMotion
from .rounded_products import RoundedProducts
from .split_columns import SplitColumns
from .split_pools import SplitPools
from .tables import Tables
from .transpose_motion import TransposeMotion
from .unroll import Unroll
from .weight_only import WeightOnly

REWRITES: dict[str, type] = {
    cls.name: cls
    for cls in (
        Algebra, Canonicalise, ChannelsLast, CommonSubexpressions, DeadBranches, DeadCode, Float8, FoldConstants,
        FoldScaleShift, FoldTransposes, BatchLoops, Integers, MergeGemms, Pointwise, Precision, RefineAxes,
        Requantise, ReshapeMotion, RoundedProducts, SplitColumns, SplitPools, Tables, TransposeMotion, Unroll,
        WeightOnly,
    )
}  # fmt: skip

__all__ = ["REWRITES"]
