"""Which tiles depend on which: as the analysis says, and by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.sync.pairs import Pair, brute_force, random_pair
from tilestitch.passes.sync.dependence import _Sets, needs_of

PAIRS = 1000


def analysed(pair: Pair) -> dict[int, set[int]]:
    """What the analysis says; blocks that compute parts of one tile's sum are taken together."""
    first, second = pair.producer.relation, pair.consumer.relation
    needs = needs_of(first, second, [pair.between])
    names = [pair.producer.name(place) for place in first.grid.places()]
    found: dict[int, set[int]] = {}
    for block, place in enumerate(second.grid.places()):
        wanted = {names[other] for other in needs.of(block).tolist()}
        found.setdefault(pair.consumer.name(place), set()).update(wanted)
    return found


@pytest.mark.parametrize("kind", range(8))
def test_a_tile_needs_exactly_the_tiles_that_it_reads(kind: int) -> None:
    for seed in range(kind, PAIRS, 8):
        pair = random_pair(seed)
        assert analysed(pair) == brute_force(pair), (seed, str(pair.graph))


@pytest.mark.parametrize("step", [1, 3])
def test_blocks_are_looked_up_by_the_positions_that_they_store(step: int) -> None:
    """Thousands of rows stored by thousands of blocks: as much is kept as is stored, not a matrix of both."""
    rows = 6000
    each = [np.zeros(rows, np.uint8) for _ in range(rows // 2)]
    for block, own in enumerate(each):
        own[2 * block : 2 * block + 2] = 1
    sets = _Sets.of([own.tobytes() for own in each])
    assert len(sets.holders) == len(sets.positions) == rows
    taken = np.zeros(rows, np.uint8)
    taken[100:200:step] = 1
    assert sets.meeting(taken.tobytes()).tolist() == [bool((own & taken).any()) for own in each]
    assert not sets.meeting(bytes(rows)).any()
