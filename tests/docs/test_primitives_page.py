"""The page of the primitives says what the operator table says."""

from __future__ import annotations

from pathlib import Path

from tilestitch.compiler.ir import OPS
from tilestitch.compiler.pages.primitives import ATTRIBUTES, MEANINGS, OPERANDS, page

PAGE = Path(__file__).parents[2] / "docs" / "primitives.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "python -m tilestitch.compiler.pages.primitives > docs/primitives.md"
    )


def test_every_operator_and_every_attribute_is_on_it_and_nothing_else() -> None:
    assert all(f"\n| `{name}`" in page() for name in OPS)
    assert {name for spec in OPS.values() for name in spec.attrs} == set(ATTRIBUTES)
    assert {*OPERANDS, *MEANINGS} <= set(OPS)
