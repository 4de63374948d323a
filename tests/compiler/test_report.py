"""The HTML report: self-contained, complete, and safe whatever the names in the model are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tilestitch.compiler.report import render, write_report

KERNEL = {
    "name": "k0", "kind": "contraction", "memory_bound": False, "onnx_nodes": ["/conv", "/relu"],
    "composition": ["epilogue"], "predicted_us": None, "bytes_read": 1024, "bytes_written": 512, "sync": None,
}  # fmt: skip
REFUSAL = {"subject": "a -> b", "rule": "epilogue", "reason": "shapes differ", "numbers": {"elements": 3}}


def explained(**changes: Any) -> dict[str, Any]:
    return {"target": "cpu", "planner": "stitch", "kernels": [KERNEL], "refusals": [REFUSAL], "buffers": [], **changes}


def embedded(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_page_holds_what_was_explained() -> None:
    assert embedded(render(explained())) == explained()


def test_page_refers_to_nothing_outside() -> None:
    page = render(explained())
    addresses = set(re.findall(r"""https?://[^\s"']+""", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not a place to load from
    assert not re.search(r"<(link|img|iframe)\b|@import|\bsrc=", page)


@pytest.mark.parametrize("name", ["</script><script>alert(1)</script>", "<!--<script>", "@DATA@", "ünï\u2028code"])
def test_names_cannot_break_out_of_the_data(name: str) -> None:
    page = render(explained(model=name, kernels=[{**KERNEL, "onnx_nodes": [name]}]))
    assert embedded(page)["kernels"][0]["onnx_nodes"] == [name]
    assert page.count("</script>") == 2


def test_file_is_whole_or_absent(tmp_path: Path) -> None:
    path = write_report(tmp_path / "report.html", explained())
    assert path.read_text().endswith("</html>\n")
    with pytest.raises(TypeError):
        write_report(tmp_path / "other.html", explained(buffers=object()))
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("kernels", [[], [KERNEL] * 3])
def test_any_number_of_kernels(kernels: list[dict[str, Any]]) -> None:
    assert embedded(render(explained(kernels=kernels, refusals=[])))["kernels"] == kernels


def test_tiles_that_wait_for_tiles_are_drawn() -> None:
    """With them and without, from what `explain` says of a kernel."""
    page = render(explained())
    assert '<div id="tied"></div>' in page and "tied();" in page
    drawing = page[page.index("function tied()") : page.index("// Rows of equal height; an arc")]
    for key in ("timeline", "tied_us", "apart_us", "waves_together", "saved_us", "semaphores", "policy"):
        assert f".{key}" in drawing
