"""A second compile takes machine code from the cache, and the artifact is the one of a compile without."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilestitch.codegen.cpu.toolchain import build
from tilestitch.compiler import compile_model
from tilestitch.compiler.errors import CacheWarning, OptionError


def model(width: int = 24) -> onnx.ModelProto:
    """A GEMM, whose width can be changed, and softmax."""
    weights = np.linspace(-1, 1, 16 * width, dtype=np.float32).reshape(16, width)
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, width])],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The symbols of kernels that LLVM compiles from now on."""
    found: list[str] = []
    lower = build.lower

    def counted(func: object, symbol: str, target: object) -> object:
        found.append(symbol)
        return lower(func, symbol, target)

    monkeypatch.setattr(build, "lower", counted)
    return found


def artifact(cache: Path | bool, width: int = 24, target: str = "cpu", **options: bool) -> bytes:
    return compile_model(model(width), target, planner="none", num_threads=2, cache=cache, **options).to_bytes()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_artifact_is_the_same_without_a_cache_and_from_one(tmp_path: Path, compiled: list[str]) -> None:
    without = artifact(False)
    count = len(compiled)
    assert count >= 2
    first, second = artifact(tmp_path), artifact(tmp_path)
    assert len(compiled) == 2 * count  # nothing the third time
    assert without == first == second


def test_a_changed_model_compiles_what_changed(tmp_path: Path, compiled: list[str]) -> None:
    artifact(tmp_path)
    compiled.clear()
    changed = artifact(tmp_path, width=40)
    assert len(compiled) == 1 and compiled[0].startswith("matmul_")
    assert changed == artifact(False, width=40)


def test_a_damaged_kernel_is_compiled_again(tmp_path: Path, compiled: list[str]) -> None:
    whole = artifact(tmp_path)
    compiled.clear()
    damaged = files(tmp_path)[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert artifact(tmp_path) == whole and len(compiled) == 1


def test_kernels_of_another_processor_are_others(tmp_path: Path, compiled: list[str]) -> None:
    artifact(tmp_path, target="cpu:x86-64-v3")
    compiled.clear()
    artifact(tmp_path, target="cpu:x86-64-v3,-fma")
    assert compiled


def test_other_code_generators_compile_again(
    tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact(tmp_path)
    compiled.clear()
    monkeypatch.setattr(build, "code_generator", lambda: "another")
    artifact(tmp_path)
    assert compiled


def test_sources_that_are_kept_are_there_whatever_the_cache_has(tmp_path: Path) -> None:
    """And nothing in them depends on the process."""
    assert artifact(tmp_path) != artifact(tmp_path, keep_source=True) == artifact(False, keep_source=True)


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.warns(CacheWarning, match=r"not kept: the folder .*file/below cannot be made.*--cache DIR"):
        artifact(file / "below")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("there is no home directory")))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.warns(CacheWarning, match="not kept: there is no home directory"):
        artifact(True)


@pytest.mark.parametrize("cache", ["", "off", None, 3, "a\0b", os.fsencode("bytes")])
def test_what_names_no_folder_is_refused(cache: object) -> None:
    with pytest.raises(
        OptionError, match=r"cache is .*; name a folder, or give True for the usual one or False for none"
    ):
        compile_model(model(), cache=cache)  # type: ignore[arg-type]
