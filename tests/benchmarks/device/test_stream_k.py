"""Stream-K GEMMs, a peer of the tied ones: every program has its share, and what is shared is added up."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from benchmarks.device.stream_k import streamed_tiles


@pytest.mark.skipif(not (find_spec("torch") and find_spec("triton")), reason="PyTorch or Triton is not installed")
def test_it_multiplies_with_any_number_of_programs_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "tests.benchmarks.device.interpreted_stream_k"]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("tiles", "programs", "streamed"), [(264, 132, 0), (300, 132, 168), (96, 132, 96), (1, 1, 0)])
def test_what_whole_waves_leave_over_is_shared(tiles: int, programs: int, streamed: int) -> None:
    assert streamed_tiles(tiles, programs) == streamed
