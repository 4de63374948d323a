"""The tutorial as a new user does it: its files are written and its commands run, in order, in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilestitch.compiler.cli.explain import read_explain

PAGE = Path(__file__).parents[2] / "docs" / "first_pass.md"
pytestmark = pytest.mark.slow
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# What the reader's environment has: commands of this one, and a site of its own for what the tutorial installs.
COMMANDS = {
    "tilestitch": [sys.executable, "-m", "tilestitch.compiler.cli"],
    "python": [sys.executable],
    "pip": [sys.executable, "-m", "pip", "--disable-pip-version-check"],
}


def blocks() -> Iterator[tuple[str, str, str]]:
    """Language, name of the file if it is one, and text of each block of code."""
    for match in _BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        yield match[1], match[2] or "", match[3]


def commands(text: str) -> list[str]:
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder in the end, and what each command said."""
    folder = tmp_path_factory.mktemp("tutorial")
    said: dict[str, str] = {}
    for language, file, text in blocks():
        if file:
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
        elif language == "console":
            for command in commands(text):
                said[command] = execute(command, folder)
    return folder, said


def execute(command: str, folder: Path) -> str:
    """Run one line, as a shell would with this environment's commands; installs go to a site of the folder's, and are
    built with what is here, for want of an index.
    """
    program, _, rest = command.partition(" ")
    if command == "pip install pytest":
        return ""  # it is what runs this
    site = folder / "site"
    line = " ".join([*COMMANDS[program], rest])
    if program == "pip":
        line += f" --quiet --no-index --no-build-isolation --no-deps --target {site}"
    environment = {"PYTHONPATH": f"{site}", "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_rewrite_leaves_its_note(tutorial: tuple[Path, dict[str, str]]) -> None:
    said = tutorial[1]["tilestitch explain capped.tsm"]
    assert "notes of passes:" in said
    assert "clipped_relu: capped maximum at 0.5" in said


def test_the_message_that_is_shown_is_the_one_that_is_given(tutorial: tuple[Path, dict[str, str]]) -> None:
    folder, _ = tutorial
    broken = (folder / "first.py").read_text().replace("result = node.output", 'result = node.attrs["axis"]')
    other = folder / "broken"
    other.mkdir()
    (other / "first.py").write_text(broken)
    command = [*COMMANDS["tilestitch"], "compile", "../model.onnx", "-o", "x.tsm", "--pass", "first:ClippedRelu"]
    done = subprocess.run(command, cwd=other, capture_output=True, text=True)
    (shown,) = (text for language, _, text in blocks() if language == "text")
    line = next(n for n, text in enumerate(broken.splitlines(), 1) if "attrs" in text)
    said = done.stderr.replace(f"{other}/first.py:{line}", "/home/you/first.py:19")
    assert re.sub(r"nodes: .*", "", said) == re.sub(r"nodes: .*", "", shown)
    assert "nodes: maximum (/Relu_" in said and "nodes: maximum (/Relu_" in shown


def test_installed_it_takes_part_and_is_recorded(tutorial: tuple[Path, dict[str, str]]) -> None:
    folder, _ = tutorial
    explained = read_explain(folder / "ours.tsm")
    recorded = {p["name"]: p["arguments"] for p in explained["plugins"]}
    assert recorded == {"keep_apart": "{node=/Add_1}", "own_bias": "{cpu=true}", "softmax_tail": ""}


def test_explain_shows_the_forbidden_edge_and_the_own_kernel(tutorial: tuple[Path, dict[str, str]]) -> None:
    said = tutorial[1]["tilestitch explain ours.tsm --node /Add_1 --launches"]
    assert "/Add_1 is to be alone [keep_apart]" in said
    assert "own_bias_" in said


def test_its_own_tests_pass(tutorial: tuple[Path, dict[str, str]]) -> None:
    assert "3 passed" in tutorial[1]["python -m pytest -q test_my_plugins.py"]
