"""Convolutional networks with open batch, and with open batch, height and width."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import nn

from benchmarks.models import mobilenetv2, resnet50
from benchmarks.open_models.model import OpenModel
from benchmarks.open_models.torch_export import exported
from tests.open_models.sizes import Feeds, Sizes

SIDE = 224
BATCH = (1, 64)
SIDES = (64, 320)


def images(sizes: Sizes, random: np.random.Generator) -> Feeds:
    shape = (sizes["batch"], 3, sizes.get("height", SIDE), sizes.get("width", SIDE))
    return {"image": random.standard_normal(shape, np.float32)}


def open_batch(build: Callable[[], nn.Module]) -> OpenModel:
    return exported(
        build, {"image": {0: "batch"}}, {"batch": BATCH}, images, {"batch": 2}, {"logits": {0: "batch"}}
    )  # fmt: skip


def open_sides(build: Callable[[], nn.Module]) -> OpenModel:
    return exported(
        build, {"image": {0: "batch", 2: "height", 3: "width"}},
        {"batch": (1, 8), "height": SIDES, "width": SIDES}, images, {"batch": 2, "height": 224, "width": 192},
        {"logits": {0: "batch"}},
    )  # fmt: skip


MODELS = {
    "resnet50": open_batch(resnet50),
    "mobilenetv2": open_batch(mobilenetv2),
    "resnet50_sides": open_sides(resnet50),
    "mobilenetv2_sides": open_sides(mobilenetv2),
}
