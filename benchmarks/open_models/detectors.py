"""Detectors of torchvision with random weights: how many boxes they find depends on the image."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.models import randomise
from benchmarks.open_models.model import Axes, OpenModel
from benchmarks.open_models.torch_export import exported
from benchmarks.zoo.sample import optional
from benchmarks.zoo.vision import Detector
from tests.open_models.sizes import Feeds, Sizes

SIDES = (160, 400)
LAST_LAYERS = re.compile(r"(cls_logits|cls_score|classification_head\.module_list\.\d+\.1)\.weight$")
SHARPER = 12.0
"""How much larger the weights of the last layer for classes are, so that scores are far apart."""


def picture(sizes: Sizes, random: np.random.Generator) -> Feeds:
    return {"image": random.random((3, sizes["height"], sizes["width"]), np.float32)}


def factory(name: str, **fields: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        detection = optional("torchvision").models.detection
        return Detector(getattr(detection, name)(weights=None, weights_backbone=None, **fields))

    return build


def as_if_trained(module: nn.Module) -> None:
    """Statistics as of a trained network, without which scores of all boxes of all images are the same."""
    randomise(module)
    detector: Any = module.get_submodule("model")
    for layer in detector.backbone.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # a plain average: of the one batch below
    with torch.no_grad():
        detector.backbone.train()(torch.randn(2, 3, 256, 256))
        for name, parameter in detector.named_parameters():
            if LAST_LAYERS.search(name):
                parameter *= SHARPER
    module.eval()


def detector(name: str, outputs: Axes, **fields: Any) -> OpenModel:
    return exported(
        factory(name, **fields), {"image": {1: "height", 2: "width"}}, {"height": SIDES, "width": SIDES}, picture,
        {"height": 224, "width": 256}, outputs, exporters=("script",), prepare=as_if_trained,
    )  # fmt: skip


BOXES, SCORES, LABELS = ({name: {0: "found"}} for name in ("boxes", "scores", "labels"))
RESIZED = {"min_size": 256, "max_size": 512}

MODELS = {
    "ssdlite": detector(
        "ssdlite320_mobilenet_v3_large", BOXES | SCORES | LABELS, num_classes=21, score_thresh=0.22
    ),
    "retinanet": detector(
        "retinanet_resnet50_fpn", BOXES | SCORES | LABELS, num_classes=21, score_thresh=0.78, **RESIZED
    ),
    "faster_rcnn": detector(
        "fasterrcnn_resnet50_fpn", BOXES | LABELS | SCORES, num_classes=21, box_score_thresh=0.95, **RESIZED
    ),
}  # fmt: skip
"""Their thresholds leave some of the boxes, and not the same number for every image."""
