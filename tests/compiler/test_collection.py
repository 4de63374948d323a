"""A compilation looks for cyclic garbage rarely, and leaves the collector as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from benchmarks.large_graphs import KINDS
from tilestitch.compiler import compile_model
from tilestitch.compiler.collection import RARE, rare_collections

USUAL = (701, 11, 13)


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)


def test_a_compilation_looks_for_garbage_rarely() -> None:
    found = set[tuple[int, ...]]()
    compile_model(KINDS["chain"](3), cache=False, progress=lambda *_: found.add(gc.get_threshold()))
    assert found == {RARE}
    assert gc.get_threshold() == USUAL


def test_thresholds_are_restored_after_an_error() -> None:
    with pytest.raises(KeyError), rare_collections():
        raise KeyError
    assert gc.get_threshold() == USUAL


def test_the_last_of_several_threads_restores_the_thresholds() -> None:
    inside, first_left = Barrier(2), Barrier(2)

    def block(leaves_first: bool) -> tuple[int, ...]:
        with rare_collections():
            inside.wait()
            if not leaves_first:
                first_left.wait()
        if leaves_first:
            seen = gc.get_threshold()
            first_left.wait()
            return seen
        return ()

    with ThreadPoolExecutor(2) as pool:
        seen = list(pool.map(block, (True, False)))
    assert seen[0] == RARE
    assert gc.get_threshold() == USUAL
