"""The README as a new user pastes it: every command and every piece of Python, in order, in a bare environment that has
nothing but what the README installs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def pieces() -> Iterator[tuple[str, str]]:
    """Pieces of shell, a line each, and of Python: blocks that follow one another are one session."""
    found = _BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    for language, blocks in groupby(found, key=lambda block: block[0]):
        text = "\n".join(text for _, text in blocks)
        if language == "python":
            yield language, text
        else:
            yield from (("shell", line) for line in text.splitlines() if line and not line.startswith("make "))


def made() -> list[str]:
    lines = [
        line
        for _, text in _BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
        for line in text.splitlines()
    ]
    return [line.split()[1] for line in lines if line.startswith("make ")]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of its own: what git tracks, and what is not tracked yet."""
    folder = tmp_path_factory.mktemp("checkout")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A bare virtual environment, activated. Skips where no package can be had."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "http", "no_proxy"))}
    environment = {
        **kept, "PATH": f"{folder}/venv/bin:/usr/local/bin:/usr/bin:/bin", "HOME": str(folder),
        "ORT_DISABLE_TELEMETRY": "1", "ORT_TELEMETRY_DISABLED": "1",
        "PIP_NO_COMPILE": "false",  # pip's way to say that it is not to compile; what is imported is compiled then
    }  # fmt: skip
    probe = ["pip", "download", "--quiet", "--no-deps", "--dest", str(folder / "probe"), "flatbuffers"]
    if subprocess.run(probe, env=environment, capture_output=True, timeout=300).returncode:
        pytest.skip("no package index can be reached")
    return environment


@pytest.mark.slow
def test_every_command_works_in_a_bare_environment(checkout: Path, environment: dict[str, str]) -> None:
    said = {}
    for language, piece in pieces():
        # A hundred rounds take a fifth of the CPU time of all this, and tuning as long as it is told to.
        piece = piece.replace("tilestitch bench", "tilestitch bench --rounds 5").replace("--seconds 300", "--seconds 5")
        command = ["python", "-c", piece] if language == "python" else ["bash", "-c", piece]
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{piece}\n{done.stdout}{done.stderr}"
        said[piece.partition("  ")[0]] = done.stdout
    assert "separate_softmax" in said["tilestitch explain small.tsm"]


def test_every_target_of_make_that_it_names_exists() -> None:
    assert {"demo", "test", "bench"} >= set(made()) != set()
    for target in made():
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_every_file_that_it_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []
