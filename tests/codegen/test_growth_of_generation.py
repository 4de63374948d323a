"""Generating kernels and writing the artifact takes a number of steps near linear in the number of nodes.

Steps are calls of functions and methods, of TVM's as well, from the first kernel on, which are nearly the same in every
run, unlike seconds.
"""

from __future__ import annotations

import cProfile
import pstats

import pytest

from benchmarks.large_graphs import KINDS
from tilestitch.compiler import compile_model

NODES = {"attention": 200, "residual_mlp": 200, "split": 100}
"""From so many on, the kernels of each kind are as large as they become."""
MOST_GROWTH = 2.5
"""Times the steps of twice the nodes: two for what is linear, four for what is quadratic. What all sizes take alike,
for kernels that are the same, is no part of it.
"""


def steps_of_generation(kind: str, nodes: int, target: str) -> int:
    profile = cProfile.Profile()

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "generate kernels" and not done:
            profile.enable()

    compile_model(KINDS[kind](nodes), target=target, num_threads=1, cache=False, progress=progress)
    profile.disable()
    calls: dict[tuple[str, int, str], tuple[int, int]] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    return sum(count[1] for count in calls.values())


@pytest.mark.parametrize("target", ["cpu", "emulator:sm_90a"])
@pytest.mark.parametrize("kind", NODES)
def test_kernels_of_twice_the_nodes_take_about_twice_the_steps(kind: str, target: str) -> None:
    steps_of_generation(kind, 20, target)  # the first one imports what it needs
    few, some, many = (steps_of_generation(kind, times * NODES[kind], target) for times in (1, 2, 4))
    assert 0 < many - some <= MOST_GROWTH * (some - few)
