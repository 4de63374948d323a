"""Which tiles depend on which: as the analysis says, and by brute force."""

from __future__ import annotations

import pytest

from tests.passes.sync.pairs import Pair, brute_force, random_pair
from tilestitch.passes.sync.dependence import needs_of

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
