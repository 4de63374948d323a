"""The figures of docs/tile_sync.md are those of the results that lie beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import cusync

PAGE = (Path(__file__).parents[2] / "docs" / "tile_sync.md").read_text()


@pytest.mark.parametrize("name", cusync.MEASURED)
def test_the_tables_of_cusync_are_what_is_predicted_and_was_measured(name: str) -> None:
    rows = json.loads(cusync.RESULT.read_text())
    assert cusync.table(rows, name) in PAGE
    ours, theirs = cusync.correlations(rows, name)
    assert f"{ours:.2f} as our planner has it, {theirs:.2f} with their tiles" in PAGE
