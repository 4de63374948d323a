"""The runtime stays thin: what it imports, and how long that takes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.programs import contents, increment_program
from tilestitch.runtime.artifact_writer import write_artifact
from tilestitch.runtime.program import Arena, Constant, HostStep, Program, Step, TensorType, ValueSpec

HEAVY = ("tvm", "tvm_ffi", "onnx", "onnxruntime", "networkx", "xgboost", "torch", "ml_dtypes", "scipy", "cuda")

LOAD_AND_RUN = """
import json, sys
import numpy as np
from tilestitch.runtime import load
with load(sys.argv[1], num_threads=2) as module:
    module.run({"x": np.zeros(4, np.float32)})
    module.profile({"x": np.zeros(4, np.float32)})
print(json.dumps(sorted(sys.modules)))
"""


def run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("import") / "m.tsm"
    write_artifact(path, contents(increment_program(), weights={"w": np.zeros(4, np.float32)}))
    return path


def test_loading_and_running_import_nothing_heavy(artifact: Path) -> None:
    modules = json.loads(run(LOAD_AND_RUN, str(artifact)))
    assert [name for name in modules if name.split(".")[0] in HEAVY] == []
    ours = {name.split(".")[1] for name in modules if name.startswith("tilestitch.")}
    assert ours == {"runtime"}


WITHOUT_ML_DTYPES = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np
from tilestitch.runtime import load
print(load(sys.argv[1]).run({"x": np.arange(4, dtype=np.float32)})["u"].tolist())
"""


def of_bfloat16(*steps: Step) -> Program:
    """u = (x + 1) + 1; kernels leave the sum between as eight values of bfloat16."""
    x, _, u, _ = increment_program().values
    y = ValueSpec("y", TensorType("bfloat16", (8,)), Arena(0, 16))
    w = ValueSpec("w", TensorType("bfloat16", (8,)), Constant("w"))
    f = ValueSpec("f", TensorType("float32", (8,)))
    program = increment_program()
    return replace(program, values=(x, y, u, w, f), outputs=(2,), steps=(*program.steps, *steps))


def test_kernels_take_types_that_numpy_lacks_without_ml_dtypes(tmp_path: Path) -> None:
    weights = {"w": np.zeros(8, ml_dtypes.bfloat16)}
    write_artifact(tmp_path / "m.tsm", contents(of_bfloat16(), weights=weights))
    assert json.loads(run(WITHOUT_ML_DTYPES, str(tmp_path / "m.tsm"))) == [2, 3, 4, 5]


@pytest.mark.parametrize("operand", [1, 3])
def test_steps_on_the_host_need_ml_dtypes(tmp_path: Path, operand: int) -> None:
    cast = HostStep("cast", (operand,), (4,), {"to": "float32"}, ("cast_1",))
    write_artifact(tmp_path / "m.tsm", contents(of_bfloat16(cast), weights={"w": np.zeros(8, ml_dtypes.bfloat16)}))
    with pytest.raises(subprocess.CalledProcessError) as raised:
        run(WITHOUT_ML_DTYPES, str(tmp_path / "m.tsm"))
    told = raised.value.stderr.splitlines()[-1]
    assert "cast_1 (cast)" in told and "bfloat16" in told and "pip install ml_dtypes" in told


def test_importing_takes_only_numpy_and_the_standard_library() -> None:
    modules = json.loads(run("import json, sys, tilestitch.runtime; print(json.dumps(sorted(sys.modules)))"))
    roots = {name.partition(".")[0] for name in modules}
    foreign = roots - set(sys.stdlib_module_names) - {"numpy", "tilestitch", "__main__"}
    assert {name for name in foreign if not name.startswith(("_", "sitecustomize", "usercustomize"))} <= {
        "cython_runtime"
    }


def test_importing_uses_little_processor_time() -> None:
    program = "import time; s = time.process_time(); import tilestitch.runtime; print(time.process_time() - s)"
    assert min(float(run(program)) for _ in range(3)) < 0.150
