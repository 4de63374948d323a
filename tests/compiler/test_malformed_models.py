"""Malformed models are compiled or refused as the user's fault or as not supported, never with a trace or a crash.

60 by default; `make fuzz` makes 20 times as many.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from onnx import save

from tests.models import cnn, transformer
from tests.mutants import bases
from tests.mutants.isolation import failures
from tests.mutants.run_models import check

MANY = max(1, settings().max_examples // 100)
SHARDS = 4
EACH = 15 * MANY
MODELS = {"steps": bases.steps, "control": bases.control, "cnn": cnn, "transformer": transformer}


@pytest.mark.parametrize("shard", range(SHARDS))
def test_mutants_are_compiled_or_refused(shard: int, tmp_path: Path) -> None:
    for name, model in MODELS.items():
        save(model(), tmp_path / f"{name}.onnx")
    assert failures("tests.mutants.run_models", [str(tmp_path)], shard * EACH, EACH, seconds=60) == {}


@pytest.mark.parametrize("name", MODELS)
def test_the_models_that_mutants_are_made_of_compile(name: str) -> None:
    check(MODELS[name]())
