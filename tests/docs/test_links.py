"""Links between pages lead to files, and to headings, that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "benchmarks").rglob("README.md")])

_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in _HEADING.findall(_BLOCK.sub("", text)))
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def broken(page: Path, text: str) -> list[str]:
    """Return the links of a page that lead nowhere."""
    found = []
    for link in (link for link in _LINK.findall(_BLOCK.sub("", text)) if "://" not in link):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        there = not name or target.exists()
        if not there or (anchor and anchor not in anchors(target.read_text(encoding="utf-8") if name else text)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_broken_links_are_found() -> None:
    text = "# Here\n\n[a](#here) [b](#there) [c](plans.md#schedules) [d](plans.md#gone) [e](gone.md) [f](https://x.y/z)"
    assert broken(ROOT / "docs" / "page.md", text) == ["#there", "plans.md#gone", "gone.md"]
