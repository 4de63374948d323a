"""Every open model by name."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.open_models import detectors, keras, language, tables, vision
from benchmarks.open_models.model import OpenModel

MODELS: Mapping[str, OpenModel] = {
    **vision.MODELS, **language.MODELS, **keras.MODELS, **tables.MODELS, **detectors.MODELS
}  # fmt: skip
