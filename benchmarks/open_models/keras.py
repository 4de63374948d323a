"""A network of MobileNet's size as converters of Keras write it for operator set 9."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import onnx

from benchmarks.open_models.model import OpenModel
from tests.open_models.keras import BATCH, images, keras_cnn

SIDE = 224
WIDTHS = (32, 64, 128, 256, 512)


def write(path: Path, exporter: str) -> None:
    onnx.save(keras_cnn(WIDTHS, SIDE, units=64, classes=1000), path)


MODELS = {"keras_cnn": OpenModel(write, {BATCH: (1, 32)}, partial(images, SIDE), exporters=("keras",))}
