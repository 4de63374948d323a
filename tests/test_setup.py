"""What `make` says while it sets up its environment, and which package indices it needs. Pip is a stand-in here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UNREACHABLE = "http://127.0.0.1:9/simple"

STAND_IN = f"""\
#!/bin/sh
if [ "$2" = pip ]; then
  echo "$@" >> "$(dirname "$0")/calls"
  echo "WARNING: an extra index cannot be reached" >&2
  [ ! -e "$(dirname "$0")/broken" ] || {{ echo "ERROR: no matching distribution" >&2; exit 1; }}
  exit 0
fi
exec {sys.executable} "$@"
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text(STAND_IN)
    (folder / "bin" / "python").chmod(0o755)
    return folder


def make(venv: Path, target: str, *variables: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", f"VENV={venv}", *variables, f"{venv}/.stamps/{target}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_set_up_says_what_it_does_and_nothing_of_what_pip_says(venv: Path) -> None:
    done = make(venv, "dev", f"PYTHON={sys.executable}")
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    assert "installing tilestitch" in done.stdout


def test_what_pip_says_is_shown_when_it_fails(venv: Path) -> None:
    (venv / "bin" / "broken").touch()
    done = make(venv, "dev", f"PYTHON={sys.executable}")
    assert done.returncode != 0
    assert "ERROR: no matching distribution" in done.stderr


def test_an_index_that_cannot_be_reached_is_not_asked(venv: Path) -> None:
    done = make(venv, "bench", f"PYTHON={sys.executable}", f"TORCH_INDEX={UNREACHABLE}")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "--extra-index-url" not in (venv / "bin" / "calls").read_text()
