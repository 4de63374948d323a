"""A small model with open dimensions, as exporters write it, and inputs for it of any size."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import ModelProto

from tests.open_models.sizes import MakeFeeds, Ranges


@dataclass(frozen=True)
class OpenFixture:
    model: ModelProto
    ranges: Ranges
    feeds: MakeFeeds
