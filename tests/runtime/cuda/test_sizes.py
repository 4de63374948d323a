"""Programs with symbols on a GPU: a graph and memory for each of the shapes that were used last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.cuda.artifacts import module
from tilestitch.runtime.errors import InputError
from tilestitch.runtime.program import (
    Arena,
    Arg,
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
