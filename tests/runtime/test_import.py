"""The runtime stays thin: what it imports, and how long that takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.programs import contents, increment_program
from tilestitch.runtime.artifact import write_artifact

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
