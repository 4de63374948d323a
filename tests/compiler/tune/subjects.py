"""Models with their tasks, as tuning gets them."""

from __future__ import annotations

from typing import Any

import onnx

from tilestitch.compiler import compile_model
from tilestitch.compiler.tune.machine import Builds, Cpu
from tilestitch.compiler.tune.subject import Subject
from tilestitch.cost_model.analytical import ANALYTICAL


def subject(model: onnx.ModelProto, **options: Any) -> Subject:
    """Return the subject of a model of known sizes, with random inputs."""
    found = compile_model(model, num_threads=1, **options).specialisations[0]
    return Subject.of(found.graph, found.plan, Cpu(Builds("cpu"), 1), ANALYTICAL, {}, 0)
