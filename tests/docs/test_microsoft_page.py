"""The page of ONNX Runtime's operators says what the converters' tables say."""

from __future__ import annotations

from pathlib import Path

from tilestitch.compiler.frontend.converters.microsoft import OPERATORS
from tilestitch.compiler.pages.microsoft import page

PAGE = Path(__file__).parents[2] / "docs" / "microsoft.md"


def test_the_page_is_current() -> None:
    command = "python -m tilestitch.compiler.pages.microsoft > docs/microsoft.md"
    assert PAGE.read_text(encoding="utf-8") == page(), command


def test_every_operator_is_on_it() -> None:
    assert all(f"\n| `{name}` |" in page() for name in OPERATORS)
