"""Random models with open dimensions: compiled once and run at six sizes, they equal ONNX Runtime and what is compiled
for one of these sizes; at four sizes, they do so on the emulated GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from onnx import printer

from tests.compiled import assert_close
from tests.guarded import run_guarded
from tests.open_graphs import open_models
from tests.open_models.fixture import OpenFixture
from tests.open_models.sizes import Feeds, spread
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.runtime import load

pytest.importorskip("onnxruntime")

SHARDS = 8
"""Parts of the fuzzing, for the processes that tests run in."""
POINTS = 6
GPU_POINTS = 4
GRAPHS = max(9, settings().max_examples // SHARDS)
"""Models of each part."""
EMULATED_GRAPHS = max(5, GRAPHS // 2)


def check(actual: Sequence[Any], expected: Sequence[Any]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other, MODELS["float32"])


def outputs(artifact: bytes, feeds: Feeds) -> list[Any]:
    with load(artifact, num_threads=2) as module:
        return list(module.run(feeds).values())


@pytest.mark.parametrize("shard", range(SHARDS))
@given(fixture=open_models(), favoured=st.integers(0, POINTS - 1), seed=st.integers(0, 99))
@settings(max_examples=GRAPHS, suppress_health_check=list(HealthCheck), deadline=None)
def test_one_artifact_agrees_at_all_sizes(shard: int, fixture: OpenFixture, favoured: int, seed: int) -> None:
    note(printer.to_text(fixture.model))
    reference = rivals.onnxruntime(fixture.model, 1)
    with load(compile_model(fixture.model, dims=dict(fixture.ranges)).to_bytes(), num_threads=2) as module:
        for number, sizes in enumerate(spread(fixture.ranges, POINTS)):
            note(str(sizes))
            feeds = fixture.feeds(sizes, np.random.default_rng(seed + number))
            expected, actual = reference(feeds), list(run_guarded(module, feeds).values())
            check(actual, expected)
            if number == favoured:
                shapes = {name: array.shape for name, array in feeds.items()}
                static = outputs(compile_model(fixture.model, shapes=shapes).to_bytes(), feeds)
                check(static, expected)
                check(actual, static)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulated device needs g++")
@pytest.mark.parametrize("shard", range(SHARDS))
@given(fixture=open_models(), is_given=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=EMULATED_GRAPHS, suppress_health_check=list(HealthCheck), deadline=None)
def test_one_artifact_agrees_at_all_sizes_on_the_emulated_device(
    shard: int, fixture: OpenFixture, is_given: bool, seed: int
) -> None:
    """Compiled for its ranges, or for those that it has where none is given."""
    note(printer.to_text(fixture.model))
    reference = rivals.onnxruntime(fixture.model, 1)
    compiled = compile_model(fixture.model, "emulator", dims=dict(fixture.ranges) if is_given else None)
    with load(compiled.to_bytes(), device="emulator") as module:
        for number, sizes in enumerate(spread(fixture.ranges, GPU_POINTS)):
            note(str(sizes))
            feeds = fixture.feeds(sizes, np.random.default_rng(seed + number))
            check(list(module.run(feeds).values()), reference(feeds))
