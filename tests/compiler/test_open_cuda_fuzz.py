"""Random models with open dimensions in CUDA kernels: compiled once, they equal ONNX Runtime at every size on the
emulated device.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from onnx import printer

from tests.compiled import assert_close
from tests.open_graphs import open_models
from tests.open_models.fixture import OpenFixture
from tests.open_models.sizes import spread
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.runtime import load

pytest.importorskip("onnxruntime")
if shutil.which("g++") is None:
    pytest.skip("the emulated device needs g++", allow_module_level=True)

POINTS = 4
GRAPHS = max(4, settings().max_examples // 20)


@given(fixture=open_models(), seed=st.integers(0, 99))
@settings(max_examples=GRAPHS, suppress_health_check=list(HealthCheck), deadline=None)
def test_one_artifact_agrees_at_all_sizes(fixture: OpenFixture, seed: int) -> None:
    note(printer.to_text(fixture.model))
    reference = rivals.onnxruntime(fixture.model, 1)
    compiled = compile_model(fixture.model, "emulator", dims=dict(fixture.ranges))
    with load(compiled.to_bytes(), device="emulator") as module:
        for number, sizes in enumerate(spread(fixture.ranges, POINTS)):
            note(str(sizes))
            feeds = fixture.feeds(sizes, np.random.default_rng(seed + number))
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS["float32"])
