"""The figures of docs/measurements/tile_sync.md are those of the results in benchmarks/results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import cusync, tied, tied_emulated, tied_models
from benchmarks.replay.catalogue import MODELS

PAGE = (Path(__file__).parents[2] / "docs" / "measurements" / "tile_sync.md").read_text()


def test_the_table_of_chains_is_what_was_compiled() -> None:
    rows = json.loads(tied.RESULT.read_text())
    assert tied.table(rows) in PAGE


def test_auto_is_never_predicted_to_be_slower() -> None:
    rows = [row for row in json.loads(tied.RESULT.read_text()) if row["sync"] == "auto"]
    assert all(row["predicted_us"] <= row["predicted_apart_us"] for row in rows)


@pytest.mark.parametrize("name", cusync.MEASURED)
def test_the_tables_of_cusync_are_what_is_predicted_and_was_measured(name: str) -> None:
    rows = json.loads(cusync.RESULT.read_text())
    assert cusync.table(rows, name) in PAGE
    ours, theirs = cusync.correlations(rows, name)
    assert f"{ours:.2f} as our planner has it, {theirs:.2f} with their tiles" in PAGE


def test_every_chain_was_emulated_in_five_orders_and_both_forms() -> None:
    rows = json.loads(tied_emulated.RESULT.read_text())
    assert {(row["chain"], row["form"]) for row in rows} == {
        (chain, form) for chain in tied_emulated.CHAINS for form in tied_emulated.FORMS
    }
    assert all(len(set(row["orders"])) >= 5 for row in rows)


def test_every_model_was_planned_in_every_way_and_auto_never_loses() -> None:
    rows = json.loads(tied_models.RESULT.read_text())["results"]
    assert {(row["model"], row["target"], row["sync"]) for row in rows} == {
        (model, target, sync) for model in MODELS for target, syncs in tied_models.SYNCS.items() for sync in syncs
    }
    assert f"none of the {len(rows)} plans is refused" in " ".join(PAGE.split())
    auto = [row for row in rows if row["sync"].startswith("auto")]
    assert all(row["predicted_us"] <= tied_models.SLACK * row["predicted_apart_us"] for row in auto)
