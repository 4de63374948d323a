"""The page of plans lists every template that a plan may name."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from tilestitch.passes.plan.gemm.tiles import Tile
from tilestitch.passes.plan.schedules import Schedule

PAGE = Path(__file__).parents[2] / "docs" / "plans.md"


def test_every_template_is_on_it() -> None:
    text = PAGE.read_text(encoding="utf-8")
    templates = [kind.template for kind in (*get_args(Schedule), *get_args(Tile))]
    assert [name for name in templates if f"`{name}`" not in text] == []
