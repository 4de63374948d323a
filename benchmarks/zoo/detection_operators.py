"""torchvision without its compiled operators.

A torchvision that was built for another torch does not load its library, and then fails to import at all because the
operators are not declared. Declared here, its models can be built; of the operators, `nms` and `roi_align` can be run.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch


@functools.cache
def declare_operators() -> torch.library.Library | None:
    """Declares the operators if torchvision is there without them. The declarations live as long as the result."""
    try:
        importlib.import_module("torchvision")
        return None
    except ImportError:
        return None
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
        " int sampling_ratio, bool aligned) -> Tensor"
    )
    for name in ("deform_conv2d", "qroi_align", "ps_roi_align", "roi_pool", "ps_roi_pool"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.define(f"_{name}_backward(Tensor x) -> Tensor")
    library.define("_roi_align_backward(Tensor x) -> Tensor")
    library.define("_cuda_version() -> int")
    library.impl("_cuda_version", lambda: -1, "CompositeImplicitAutograd")
    library.impl("nms", _nms, "CPU")
    extension: Any = importlib.import_module("torchvision.extension")
    extension._has_ops = _has_operators
    library.impl("roi_align", importlib.import_module("torchvision.ops.roi_align")._roi_align, "CPU")
    return library


def _has_operators() -> bool:
    """A function of its own, because the older exporter compiles what calls it, from its text."""
    return True


def _nms(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    order, kept = scores.argsort(descending=True), []
    while order.numel():
        first, order = order[0], order[1:]
        kept.append(first)
        low = torch.maximum(boxes[first, :2], boxes[order, :2])
        high = torch.minimum(boxes[first, 2:], boxes[order, 2:])
        common = (high - low).clamp(min=0).prod(1)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        order = order[common / (areas[first] + areas[order] - common) <= threshold]
    return torch.stack(kept) if kept else torch.zeros(0, dtype=torch.int64)
