"""Tables of what the queue measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.device import render
from benchmarks.device.case import Case
from benchmarks.device.journal import Journal
from benchmarks.device.processes import Outcome


def test_tables(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "sources")
    journal.call({"date": "2026-01-01", "python": "3", "packages": {"torch": "2", "jax": None}, "gpu": {"name": "G"}})
    journal.end(Outcome(Case("A1", {"what": "copy", "MiB": 4}, dict), "measured", 1.0, {"GB_per_s": 4123.4}))
    row = {"us": 12.3456, "right": True, "profile": [["k", 1.0]]}
    journal.end(Outcome(Case("A1", {"what": "gemm | tf32", "shape": [2, 3]}, dict), "measured", 1.0, row))
    journal.end(Outcome(Case("A2", {"what": "stream"}, dict), "hung", 25.0, {}, "took longer than 25 s"))
    journal.start(Case("A2", {"what": "under way"}, dict))
    text = render.text(tmp_path)
    assert "== A1 ==" in text
    assert "4,123" in text
    markdown = render.markdown(tmp_path)
    assert "* 2026-01-01: G, Python 3, torch 2\n" in markdown
    assert "| what | MiB | GB_per_s | shape | us | right |" in markdown
    assert "| gemm / tf32 |  |  | 2x3 | 12.35 | yes |" in markdown
    assert "| stream | hung: took longer than 25 s |" in markdown
    assert "| under way | interrupted: the call ended meanwhile |" in markdown
    assert render.text(tmp_path / "nowhere") == "nothing was measured yet"
