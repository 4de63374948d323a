"""Programs with symbols on a GPU: a graph and memory for each of the shapes that were used last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.cuda.artifacts import module
from tests.runtime.signed import plain
from tilestitch.runtime.errors import ArtifactSchemaError, InputError
from tilestitch.runtime.program import (
    Arena,
    Arg,
    Cases,
    DeviceLaunch,
    DeviceStep,
    Heap,
    Input,
    Program,
    Sizes,
    Symbol,
    TensorType,
    ValueSpec,
)

ROWS = TensorType("float32", ("batch", "seq"))
CUBIN = {"kernels/sm_90a.cubin": b"fake:sized_increment"}


def rows_program(least: int = 1) -> Program:
    """y = x + 2 in two launches, with u = x + 1 in the arena."""
    values = (
        ValueSpec("x", ROWS, Input(0)), ValueSpec("sizes", TensorType("int64", (2,)), Sizes()),
        ValueSpec("u", ROWS, Arena("64*batch", "4*batch*seq")), ValueSpec("y", ROWS, Heap()),
    )  # fmt: skip
    grid = ("(batch*seq + 31)//32", 1, 1)
    launches = [
        DeviceLaunch("sized_increment", grid, (32, 1, 1), 0, tuple(map(Arg, args))) for args in ((0, 1, 2), (2, 1, 3))
    ]
    symbols = (Symbol("batch", least, 8), Symbol("seq", 1, 1000))
    return Program("rows", (0,), (3, 2), values, (DeviceStep(tuple(launches)),), "64*batch + 4*batch*seq", (), symbols)


def sample(batch: int, seq: int) -> np.ndarray:
    return np.random.default_rng(seq).normal(size=(batch, seq)).astype(np.float32)


def test_one_program_runs_at_all_sizes(fake: Any, tmp_path: Path) -> None:
    with module(tmp_path, rows_program(), kernels=CUBIN, weights={}) as loaded:
        for batch, seq in [(1, 1), (8, 1000), (3, 7), (1, 1), (8, 1000)]:
            x = sample(batch, seq)
            results = loaded.run({"x": x})
            np.testing.assert_array_equal(results["y"], x + 1 + 1)
            np.testing.assert_array_equal(results["u"], x + 1)
        with pytest.raises(InputError, match="batch, which must be from 1 to 8"):
            loaded.run({"x": sample(9, 1)})


def test_a_grid_without_blocks_is_not_launched(fake: Any, tmp_path: Path) -> None:
    """In a graph of its own, in one that had blocks before, alone, and as often as shapes take turns."""
    with module(tmp_path, rows_program(least=0), kernels=CUBIN, weights={}) as loaded:
        for batch, seq in [(0, 5), (2, 5), (0, 5), *((batch, seq) for seq in range(1, 12) for batch in (0, 3)), (0, 5)]:
            x = sample(batch, seq)
            results = loaded.run({"x": x})
            np.testing.assert_array_equal(results["y"], x + 1 + 1)
            np.testing.assert_array_equal(results["u"], x + 1)
            assert len(loaded.profile({"x": x})) == (2 if batch else 0)
        assert fake.leaks()["exec"] == 8


def test_a_shape_that_was_used_lately_has_its_graph(fake: Any, tmp_path: Path) -> None:
    with module(tmp_path, rows_program(), kernels=CUBIN, weights={}) as loaded:
        for seq in (5, 6, 5, 6, 5):
            loaded.run({"x": sample(2, seq)})
        assert len(fake.named("cuGraphInstantiate")) == 2


def test_a_new_shape_takes_the_graph_that_was_not_used_for_longest(fake: Any, tmp_path: Path) -> None:
    """Its launches get other grids and pointers; none is made anew, and no memory is asked for."""
    with module(tmp_path, rows_program(), kernels=CUBIN, weights={}) as loaded:
        for seq in range(1, 16):
            x = sample(2, seq)
            np.testing.assert_array_equal(loaded.run({"x": x})["y"], x + 1 + 1)
            if seq == 8:
                allocated = fake.leaks()
        assert fake.leaks() == allocated
        assert len(fake.named("cuGraphInstantiate")) == 8
        assert (fake.leaks()["exec"], fake.leaks()["graph"]) == (8, 8)


def test_a_new_shape_updates_each_launch_once_wherever_its_results_lie(fake: Any, tmp_path: Path) -> None:
    with module(tmp_path, rows_program(), kernels=CUBIN, weights={}) as loaded:
        kept = [loaded.run({"x": sample(2, seq)}, on_device=True) for seq in range(40, 48)]
        before = len(fake.named("cuGraphExecKernelNodeSetParams"))
        results = loaded.run({"x": sample(2, 20)}, on_device=True)
        assert len(fake.named("cuGraphExecKernelNodeSetParams")) == before + 2
        np.testing.assert_array_equal(results["y"].numpy(), sample(2, 20) + 1 + 1)
        del kept, results


def cased_program() -> Program:
    """y = x + 2 up to 40 elements, 2 (x + 1) up to 100, and x + 2 again from there on."""
    program = rows_program()
    (step,) = program.steps
    assert isinstance(step, DeviceStep)
    first, second = step.launches
    wide = replace(
        second, symbol="sized_double", grid=("(batch*seq + 63)//64", 1, 1), block=(64, 1, 1), shared_bytes=16
    )
    cases = Cases("batch*seq", (41, 101), (wide, second))
    return replace(program, steps=(replace(step, launches=(first, replace(second, cases=cases))),))


def test_a_graph_has_the_kernel_of_the_region_that_sizes_are_in(fake: Any, tmp_path: Path) -> None:
    """In graphs that are made for a shape, and in those that another shape takes over."""
    cubin = {"kernels/sm_90a.cubin": b"fake:sized_increment,sized_double"}
    with module(tmp_path, cased_program(), kernels=cubin, weights={}) as loaded:
        for seq in (20, 21, 50, 51, *range(1, 30), *range(40, 60), 21, 20, 51, 50, 999):
            x = sample(2, seq)
            expected = (x + 1) * 2 if 41 <= 2 * seq < 101 else x + 1 + 1
            np.testing.assert_array_equal(loaded.run({"x": x})["y"], expected)
            named = [plain(timed.symbol) for timed in loaded.profile({"x": x})]
            assert named == ["sized_increment", "sized_double" if 41 <= 2 * seq < 101 else "sized_increment"]
        assert fake.leaks()["exec"] == 8


@pytest.mark.parametrize(
    "changes",
    [{"cluster": (2, 1, 1), "grid": ("batch*2", 1, 1)}, {"cooperative": True}],
    ids=["cluster", "cooperative"],
)
def test_what_a_graph_cannot_change_is_no_case(changes: dict[str, Any], fake: Any, tmp_path: Path) -> None:
    program = cased_program()
    (step,) = program.steps
    assert isinstance(step, DeviceStep)
    first, second = step.launches
    assert second.cases is not None
    odd = replace(second.cases, launches=tuple(replace(one, **changes) for one in second.cases.launches))
    forged = replace(program, steps=(replace(step, launches=(first, replace(second, cases=odd))),))
    with pytest.raises(ArtifactSchemaError, match="differ in their clusters, or in whether their blocks are resident"):
        module(tmp_path, forged, kernels=CUBIN, weights={})


def test_memory_grows_where_a_shape_needs_more(fake: Any, tmp_path: Path) -> None:
    """By half at least: a cache that is one longer each time has a new place seldom."""
    with module(tmp_path, rows_program(), kernels=CUBIN, weights={}) as loaded:
        for seq in range(1, 1001):
            x = sample(8, seq)
            np.testing.assert_array_equal(loaded.run({"x": x})["y"], x + 1 + 1)
        assert len(fake.named("cuGraphInstantiate")) < 100
        assert fake.leaks()["exec"] == 8


def test_results_stay_on_the_device(fake: Any, tmp_path: Path) -> None:
    with module(tmp_path, rows_program(), kernels=CUBIN, weights={}) as loaded:
        kept = [(seq, loaded.run({"x": sample(2, seq)}, on_device=True)) for seq in range(1, 14)]
        for seq, results in kept:
            np.testing.assert_array_equal(results["y"].numpy(), sample(2, seq) + 1 + 1)
            np.testing.assert_array_equal(results["u"].numpy(), sample(2, seq) + 1)
        del kept, results
