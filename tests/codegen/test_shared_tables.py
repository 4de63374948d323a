"""A table of which rows are gathered, and by whose transpose something is multiplied, is stored once."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tilestitch.codegen.cpu.contraction.panels import pack
from tilestitch.compiler import compile_model
from tilestitch.passes.plan.cpu.packing import DotPacking, Packing
from tilestitch.runtime import load

ROWS, WIDTH = 4099, 131
IDS = np.array([[0, ROWS - 1, -1, 17, -ROWS], [5, 5, 2048, 4095, 4096]])
TOLERANCES = {"float32": 1e-5, "float16": 2e-3}
OPEN = ("b", "s")


def tied(dtype: str, ids: Any, *, transposed: bool = True, further: str = "") -> ModelProto:
    """logits = tanh(E[ids]) @ E^T, E of [ROWS, WIDTH]."""
    table = (np.random.default_rng(0).standard_normal((ROWS, WIDTH)) / 8).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [helper.make_node("Gather", ["E", "ids"], ["rows"]), helper.make_node("Tanh", ["rows"], ["hidden"])]
    if transposed:
        nodes.append(helper.make_node("Transpose", ["E"], ["Et"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["hidden", "Et"], ["logits"]))
    else:
        nodes.append(helper.make_node("Reshape", ["hidden", "flat"], ["queries"]))
        nodes.append(helper.make_node("Gemm", ["queries", "E"], ["logits"], transB=1))
    if further:
        nodes.append(helper.make_node(further, ["E"], ["further"]))
    outputs = ["logits", "further"] if further else ["logits"]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, ids)],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(table, "E"), numpy_helper.from_array(np.array([-1, WIDTH]), "flat")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def tables_stored(model: ModelProto, dtype: str, path: Path, **options: Any) -> int:
    """How often the artifact has the table, whose results are compared with numpy's."""
    compile_model(model, cache=False, **options).save(path)
    table = numpy_helper.to_array(model.graph.initializer[0]).astype(np.float32)
    wanted = np.tanh(table[IDS]).astype(dtype).astype(np.float32) @ table.T
    found = load(path).run({"ids": IDS})["logits"]
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype] * 4)
    return round(stored_bytes(path) / (ROWS * WIDTH * np.dtype(dtype).itemsize))


def stored_bytes(path: Path) -> int:
    """Of all weights."""
    with zipfile.ZipFile(path) as archive:
        return sum(info.file_size for info in archive.infolist() if info.filename.endswith(".safetensors"))


@pytest.mark.parametrize(
    ("dtype", "ids", "transposed"), [("float32", OPEN, True), ("float32", IDS.shape, False), ("float16", OPEN, False)]
)
def test_rows_are_gathered_from_what_the_matmul_has_packed(
    dtype: str, ids: Any, transposed: bool, tmp_path: Path
) -> None:
    assert tables_stored(tied(dtype, ids, transposed=transposed), dtype, tmp_path / "m.tsm") == 1


@pytest.mark.parametrize("packing", [Packing(1, 131, 99, 32, "int8"), DotPacking(1, 131, 99, 16, "int8", 4, 16)])
def test_a_packed_matrix_has_its_elements_in_their_places(packing: Packing) -> None:
    matrix = np.random.default_rng(0).integers(-128, 128, (131, 99), np.int8)
    places = packing.place(*np.indices(matrix.shape))
    np.testing.assert_array_equal(pack(matrix, packing).reshape(-1)[places], matrix)


@pytest.mark.parametrize("further", ["Abs", "Identity"])
def test_a_table_that_is_needed_as_it_is_is_stored_as_it_is_too(further: str, tmp_path: Path) -> None:
    assert tables_stored(tied("float32", OPEN, further=further), "float32", tmp_path / "m.tsm") == 2
