"""Pages name files and folders of this tree as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("benchmarks", "codegen", "compiler", "cost_model", "examples", "package", "passes", "runtime", "tests")
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_NAMED_BLOCK = re.compile(r"^```\w+ (\S+)$", re.MULTILINE)
_FILE = re.compile(r"`((?:\w+/)*\w+\.(?:py|cuh))`")
_HOUSE = ("codegen", "compiler", "cost_model", "package", "passes", "runtime")
# A path from the root, or one name; others are folders of users' data.
_FOLDER = re.compile(rf"`((?:{'|'.join(_HOUSE)})/(?:\w+/)*|\w+/)`")


def tree() -> tuple[set[str], set[str]]:
    """Files and folders of the packages, from the root."""
    found = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*")]
    files = {path.as_posix() for path in found if path.suffix in (".py", ".cuh", ".cc", ".c", ".h")}
    return files, {parent.as_posix() for file in files for parent in Path(file).parents}


FILES, FOLDERS = tree()


def missing(text: str) -> list[str]:
    """What a page names and the tree has not: as a whole path, or as the end of one."""
    own = set(_NAMED_BLOCK.findall(text))
    prose = _BLOCK.sub("", text)
    files = [f for f in _FILE.findall(prose) if f not in own and not any(_ends(p, f) for p in FILES)]
    folders = [f for f in _FOLDER.findall(prose) if not any(_ends(p, f.rstrip("/")) for p in FOLDERS)]
    return files + folders


def _ends(path: str, end: str) -> bool:
    return path == end or path.endswith("/" + end)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_name_what_is_there(page: Path) -> None:
    assert missing(page.read_text(encoding="utf-8")) == []


def test_what_is_not_there_is_found() -> None:
    assert missing("see `passes/plan/cpu/gone.py` and `passes/gone/`, not `passes/plan/roles.py`") == [
        "passes/plan/cpu/gone.py", "passes/gone/",
    ]  # fmt: skip


def test_the_page_of_the_house_has_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {f for f in FOLDERS if f.split("/")[0] in _HOUSE and f"{f}/__init__.py" in FILES}
    named = set(re.findall(r"`((?:\w+/)+)`", text))
    assert sorted(r for r in rooms if not any(_ends(r, n.rstrip("/")) for n in named)) == []
