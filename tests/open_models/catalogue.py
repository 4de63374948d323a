"""Every small open model by name, in the style of each exporter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

from tests.open_models import decoders, detectors, tables, transformers, vision
from tests.open_models.fixture import OpenFixture
from tests.open_models.keras import BATCH, keras_cnn, small_images
from tests.open_models.styles import STYLES, Style

STYLED: Mapping[str, Callable[[type[Style]], OpenFixture]] = {
    "resnet": partial(vision.residual_network, open_sides=False),
    "resnet_sides": partial(vision.residual_network, open_sides=True),
    "mobilenet": partial(vision.inverted_residuals, open_sides=False),
    "mobilenet_sides": partial(vision.inverted_residuals, open_sides=True),
    "encoder": transformers.sentence_encoder,
    "llama": decoders.llama,
    "gpt2": decoders.gpt2,
    "whisper": decoders.whisper_decoder,
    "dlrm": tables.recommender,
    "tagger": tables.tagger,
}


def keras() -> OpenFixture:
    return OpenFixture(keras_cnn(), {BATCH: (1, 9)}, small_images)


BUILDERS: Mapping[str, Callable[[], OpenFixture]] = {
    **{f"{name}.{style.name}": partial(build, style) for name, build in STYLED.items() for style in STYLES},
    "older_decoder.script": decoders.older_decoder,
    "one_stage.script": detectors.one_stage,
    "two_stage.script": detectors.two_stage,
    "keras_cnn.keras": keras,
}


@cache
def fixture_of(name: str) -> OpenFixture:
    return BUILDERS[name]()
