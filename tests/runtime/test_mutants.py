"""Artifacts that were damaged or forged run within their limits or are refused; none crashes, hangs or takes all
memory.

100 mutants of each artifact on the CPU and 20 on the emulated GPU; `make fuzz` makes 20 times as many.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from onnx import ModelProto

from tests.mutants import bases
from tests.mutants.isolation import failures
from tests.mutants.run_artifacts import execute
from tests.runtime.programs import contents
from tests.runtime.test_sizing import rows_program
from tilestitch.compiler.driver import compile_model
from tilestitch.runtime.artifact_writer import write_artifact

MANY = max(1, settings().max_examples // 100)
SHARDS = 4


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize(
    ("model", "device", "count"),
    [(bases.steps, "cpu", 100), (bases.control, "cpu", 100), (bases.small, "emulator", 20)],
    ids=["steps", "control", "emulator"],
)
def test_mutants_run_or_are_refused(
    model: Callable[[], ModelProto], device: str, count: int, shard: int, tmp_path: Path
) -> None:
    path = tmp_path / "m.tsm"
    compile_model(model(), device, num_threads=2).save(path)
    execute(path.read_bytes(), device)
    each = count * MANY // SHARDS
    found = failures("tests.mutants.run_artifacts", [str(path), device], shard * each, each, seconds=60)
    assert found == {}


@pytest.mark.parametrize("shard", range(SHARDS))
def test_mutants_with_symbols_run_or_are_refused(shard: int, tmp_path: Path) -> None:
    path = tmp_path / "m.tsm"
    write_artifact(path, contents(rows_program(), extra={"explain.json": b"{}"}))
    execute(path.read_bytes(), "cpu")
    each = 400 * MANY // SHARDS
    found = failures("tests.mutants.run_artifacts", [str(path), "cpu"], shard * each, each, seconds=60)
    assert found == {}
