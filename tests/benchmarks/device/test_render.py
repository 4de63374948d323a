"""Tables of what the queue measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.device import render
from benchmarks.device.case import Case
from benchmarks.device.compare import beside
from benchmarks.device.journal import Journal
from benchmarks.device.processes import Outcome
from benchmarks.device.render import rows_by_part


def test_tables(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "sources")
    journal.call({"date": "2026-01-01", "python": "3", "packages": {"torch": "2", "jax": None}, "gpu": {"name": "G"}})
    journal.end(Outcome(Case("A1", {"what": "copy", "MiB": 4}, dict), "measured", 1.0, {"GB_per_s": 4123.4}))
    row = {"us": 12.3456, "right": True, "profile": [["k", 1.0]]}
    journal.end(Outcome(Case("A1", {"what": "gemm | tf32", "shape": [2, 3]}, dict), "measured", 1.0, row))
    journal.end(Outcome(Case("A2", {"what": "stream"}, dict), "hung", 25.0, {}, "took longer than 25 s"))
    journal.start(Case("A2", {"what": "under way"}, dict))
    markdown = render.markdown(tmp_path)
    assert "* 2026-01-01: G, Python 3, torch 2\n" in markdown
    assert "| what | MiB | GB_per_s | shape | us | right |" in markdown
    assert "| gemm / tf32 |  |  | 2x3 | 12.35 | yes |" in markdown
    assert "| stream | hung: took longer than 25 s |" in markdown
    assert "| under way | interrupted: the call ended meanwhile |" in markdown
    assert "4,123" in markdown


def test_ours_are_shown_beside_others(tmp_path: Path) -> None:
    """Engines are measured in processes of their own, and meet in the table; what is missing is empty."""
    journal = Journal(tmp_path, "sources")
    key = {"operator": "softmax", "shape": [8, 4], "dtype": "float32"}
    for part, by, us in (("D1", "tilestitch", 10.0), ("D2", "torch", 25.0)):
        journal.end(Outcome(Case(part, {**key, "by": by}, dict), "measured", 1.0, {"device_us": us}))
    other = {**key, "operator": "add", "by": "tilestitch"}
    journal.end(Outcome(Case("D1", other, dict), "measured", 1.0, {"device_us": 7.0}))
    planned = {"shape": "square", "kernel": "gemm_wgmma", "bm": 128, "planned": True}
    journal.end(Outcome(Case("B3", planned, dict), "measured", 1.0, {"device_us": 30.0}))
    elsewhere = {"device_us": 20.0, "planned": False}  # what the compiler takes for another card
    journal.end(Outcome(Case("B3", {"shape": "square", "bm": 64}, dict), "measured", 1.0, elsewhere))
    journal.end(Outcome(Case("B4", {"shape": "square", "by": "torch"}, dict), "measured", 1.0, {"device_us": 15.0}))
    tables = beside(rows_by_part(tmp_path))
    assert tables["operators"] == [
        {**key, "tilestitch": 10.0, "torch": 25.0, "others_over_ours": 2.5},
        {**key, "operator": "add", "tilestitch": 7.0},
    ]
    assert tables["GEMMs and convolutions"] == [
        {"shape": "square", "tilestitch": 30.0, "torch": 15.0, "others_over_ours": 0.5}
    ]
