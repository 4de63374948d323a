"""Steps whose launches go through the images of a batch a few at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.programs import contents, module
from tests.runtime.test_sizing import SHAPES, check, increment, rows_program
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.errors import ArtifactSchemaError
from tilestitch.runtime.program import Arena, Heap, NativeStep, Program, TensorType, ValueSpec
from tilestitch.runtime.slices import Slices

RUNS = [((3, 4),), ((1, 4), (2, 8)), ((1, 0), (2, 4)), ((2, "4*seq"), (1, "8")), ((1, 100), (1, 4), (1, 0))]


def sliced(*runs: Any, symbol: str = "batch") -> Program:
    program = rows_program()
    (step,) = program.steps
    assert isinstance(step, NativeStep)
    return replace(program, steps=(replace(step, slices=Slices(symbol, runs)),))


@pytest.mark.parametrize("runs", RUNS, ids=str)
def test_results_are_those_of_all_images_at_a_time(tmp_path: Path, runs: tuple[Any, ...]) -> None:
    with module(tmp_path, sliced(*runs), threads=2) as loaded:
        for batch, seq in [*SHAPES, (4, 7), (5, 7), (8, 7), (9, 1), (63, 5), (5, 7)]:
            check(loaded, batch, seq)
            check(loaded, batch, seq)


def test_a_profile_has_each_launch_once(tmp_path: Path) -> None:
    with module(tmp_path, sliced((1, 4), (2, 8))) as loaded:
        for batch in (2, 30):
            launches = loaded.profile({"x": np.ones((batch, 16), np.float32)})
            assert [launch.origins for launch in launches] == [("add",), ("reverse",), ("add",)]
            assert all(launch.microseconds > 0 for launch in launches)


def test_what_stays_in_a_run_is_overwritten_by_the_next_slice(tmp_path: Path) -> None:
    """`v` has room for 64 rows, of which the first 4 are used."""
    program = sliced((3, 4))
    values = [replace(value, location=Heap()) if value.name == "u" else value for value in program.values]
    values[3] = replace(values[3], location=Arena(0, "4*batch*seq"))
    program = replace(program, values=tuple(values), arena_bytes="4*batch*seq")
    with module(tmp_path, program) as loaded:
        bound = loaded._reader.read({"x": np.ones((64, 16), np.float32)}, None)[0].bound
        check(loaded, 64, 16)
        (context,) = loaded._pool._idle
        memory = context.execution(0, bound)._memory._arena.raw.view(np.float32)
        memory[...] = 12345
        check(loaded, 64, 16)
        assert 12345 not in memory[: 4 * 16] and set(memory[4 * 16 : 64 * 16]) == {12345}


def test_slices_begin_where_kernels_take_values(tmp_path: Path) -> None:
    """Two rows of seven floats are 56 bytes."""
    with module(tmp_path, sliced((3, 2))) as loaded:
        check(loaded, 2, 7)
        check(loaded, 5, 8)
        with pytest.raises(ArtifactSchemaError, match="slices of 2 images of 'u' begin where no kernel"):
            check(loaded, 5, 7)


def test_a_value_has_one_image_after_the_other(tmp_path: Path) -> None:
    program = sliced((1, 4), (2, 4))
    odd = ValueSpec("v", TensorType("float32", ("batch + 4", "seq")), Arena("4*batch*seq + 64", "4*(batch + 4)*seq"))
    program = replace(
        program, values=(*program.values[:3], odd, *program.values[4:]), arena_bytes="4*(2*batch + 8)*seq + 64"
    )
    with module(tmp_path, program) as loaded, pytest.raises(ArtifactSchemaError, match="has not one of 8 images"):
        loaded.run({"x": np.ones((8, 16), np.float32)})


@pytest.mark.parametrize(
    ("runs", "symbol", "problem"),
    [
        (((3, 4),), "rows", "no symbol"),
        (((2, 4),), "batch", "2 launches, but there are 3"),
        (((2, 4), (2, 4)), "batch", "4 launches, but there are 3"),
        (((3, "rows"),), "batch", "rows"),
        (((3, -1),), "batch", "-1"),
    ],
)
def test_other_slices_are_refused(runs: tuple[Any, ...], symbol: str, problem: str) -> None:
    with pytest.raises(ArtifactSchemaError, match=problem):
        read_artifact(artifact_bytes(contents(sliced(*runs, symbol=symbol))))


def test_launches_that_are_packed_are_in_one_run() -> None:
    program = sliced((1, 4), (2, 4))
    (step,) = program.steps
    assert isinstance(step, NativeStep)
    packed = replace(step, launches=(increment(0, 1, 2), increment(0, 1, 3, packed=True), step.launches[2]))
    with pytest.raises(ArtifactSchemaError, match="packed with the one before"):
        read_artifact(artifact_bytes(contents(replace(program, steps=(packed,)))))


def test_slices_are_read_as_they_are_written() -> None:
    program = sliced((1, 0), (2, "4*seq"))
    assert Program.from_json(program.to_json()) == program
