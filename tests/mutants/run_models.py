"""Compiles malformed models: `python -m tests.mutants.run_models FOLDER FIRST COUNT`, FOLDER holding the models.

Each is compiled, or refused as the user's fault or as not supported.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from pathlib import Path

from onnx import ModelProto

from tests.mutants.isolation import work
from tests.mutants.models import mutant
from tilestitch.compiler.cli import errors, main


def check(model: ModelProto) -> None:
    complaint = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(complaint):
        path = Path(folder, "m.onnx")
        path.write_bytes(model.SerializeToString())
        with contextlib.redirect_stdout(io.StringIO()):
            code = main.main(["compile", str(path), "-o", str(Path(folder, "m.tsm")), "--threads", "1"])
        left = sorted(file.name for file in Path(folder).iterdir())
    said = complaint.getvalue()
    assert code in (errors.OK, errors.USER, errors.UNSUPPORTED), f"exit code {code}: {said}"
    assert "internal error" not in said, said
    assert "Traceback" not in said, said
    assert left == (["m.onnx", "m.tsm"] if code == errors.OK else ["m.onnx"]), left


if __name__ == "__main__":
    folder, first, count = sys.argv[1:]
    models = [ModelProto.FromString(path.read_bytes()) for path in sorted(Path(folder).glob("*.onnx"))]
    work(int(first), int(count), lambda: None, lambda seed: check(mutant(models[seed % len(models)], seed)))
