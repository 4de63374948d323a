"""Weights are read from external data when the artifact is written: from the file that was compiled, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tilestitch.compiler import compile_model
from tilestitch.compiler.errors import ChangedWeightsError
from tilestitch.runtime import load

WEIGHTS = np.random.default_rng(1).standard_normal((512, 700)).astype(np.float32)


def saved(folder: Path) -> Path:
    """A model whose matrix lies in `m.data`."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[3,512] x) => (float[3,700] y) { y = MatMul(x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(WEIGHTS, "w"))
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    return path


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(bytes(WEIGHTS.nbytes))
    other.replace(path)


@pytest.mark.parametrize("change", [Path.unlink, replaced], ids=["deleted", "replaced"])
def test_the_file_that_was_compiled_stays_there_as_long_as_it_is_mapped(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    compiled = compile_model(saved(tmp_path))
    change(tmp_path / "m.data")
    x = np.ones((3, 512), np.float32)
    with load(compiled.to_bytes()) as module:
        np.testing.assert_allclose(module.run({"x": x})["y"], x @ WEIGHTS, rtol=1e-4, atol=1e-4)


def shorter(path: Path) -> None:
    path.write_bytes(bytes(100))


def as_long(path: Path) -> None:
    path.write_bytes(bytes(WEIGHTS.nbytes))


def with_its_old_time(path: Path) -> None:
    """As `rsync --inplace --times` writes it."""
    before = path.stat()
    path.write_bytes(bytes(WEIGHTS.nbytes))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("write", [shorter, as_long, with_its_old_time])
def test_a_file_that_was_written_in_place_is_refused(write: Callable[[Path], None], tmp_path: Path) -> None:
    compiled = compile_model(saved(tmp_path))
    write(tmp_path / "m.data")
    with pytest.raises(ChangedWeightsError, match=r"m\.data: changed since .*; compile the model again"):
        compiled.to_bytes()
    with pytest.raises(ChangedWeightsError, match=r"m\.data"):
        compiled.save(tmp_path / "m.tsm")
    assert not (tmp_path / "m.tsm").exists()
