"""The report of a compilation: one HTML file without references to anything outside itself."""

import html
import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from tilestitch.runtime.archive import atomic_file


def write_report(path: str | os.PathLike[str], explain: Mapping[str, Any]) -> Path:
    """Write EXPLAIN (`CompiledModel.explain()`) as an HTML page to PATH, atomically.

    Besides the keys of `explain --json`, these are shown if present: `model` (a name), `facts` (label to value), and in
    each kernel `measured_us`, `inputs` and `outputs` (names of values, from which the graph's edges are drawn). Raises
    ArtifactWriteError when PATH cannot be written, and ValueError or TypeError when EXPLAIN is not JSON data.
    """
    page = render(explain).encode(errors="backslashreplace")  # names of files need not be valid Unicode
    with atomic_file(path) as file:
        file.write(page)
    return Path(path)


def render(explain: Mapping[str, Any]) -> str:
    """Return the page as text."""
    template = resources.files("tilestitch.compiler").joinpath("report.html").read_text(encoding="utf-8")
    title = html.escape(f"tilestitch: {explain['model']}" if explain.get("model") else "tilestitch report")
    # Inside a script element only `</` and `<!--` would be read as markup.
    data = json.dumps(explain, allow_nan=False).replace("<", "\\u003c")
    return template.replace("@TITLE@", title).replace("@DATA@", data)
