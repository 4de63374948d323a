"""ScatterND of the rows that a mask chooses: all rows are scattered, without a size that only a run tells."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, parser
from onnx.reference import ReferenceEvaluator

from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend.converters import indexing
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError

ROWS, UPDATES = 7, 5


def model(shape: str, width: int, updates: str, reduction: str = "none", rows: int = UPDATES) -> ModelProto:
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g
        (float[{shape}] x, int64[{rows}, {width}] i, float[{updates}] u, bool[{rows}] m) => (float[{shape}] y)
        <int64[1] zero = {{0}}> {{
            found = NonZero(m)
            turned = Transpose<perm = [1, 0]>(found)
            axis = Identity(zero)
            places = Squeeze(found, axis)
            chosen = Gather<axis = 0>(i, places)
            values = Gather<axis = 0>(u, places)
            y = ScatterND<reduction = "{reduction}">(x, chosen, values)
        }}"""
    )


def check(proto: ModelProto, feeds: dict[str, np.ndarray], host_steps: int = 0) -> None:
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    compiled = compile_model(proto, num_threads=1)
    assert compiled.explain()["host"]["steps"] == host_steps
    with load(compiled.to_bytes(), num_threads=1) as module:
        np.testing.assert_allclose(module.run(feeds)["y"], expected, rtol=1e-6, atol=1e-6)


def given(shape: tuple[int, ...], indices: np.ndarray, mask: list[bool]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    updates = random.standard_normal((len(indices), *shape[indices.shape[1] :]), np.float32)
    x = random.standard_normal(shape, np.float32)
    return {"x": x, "i": indices.astype(np.int64), "u": updates, "m": np.array(mask)}


MASKS = [[True, False, True, False, True], [False] * UPDATES, [True] * UPDATES]


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max"])
@pytest.mark.parametrize("mask", MASKS)
def test_rows(reduction: str, mask: list[bool]) -> None:
    """What the mask leaves out may be out of range."""
    indices = np.array([[3], [99], [-1], [-99], [0]]) if not all(mask) else np.array([[3], [1], [-1], [-7], [6]])
    if reduction == "none":
        indices[4] = 2
    check(model(f"{ROWS}, 3", 1, f"{UPDATES}, 3", reduction), given((ROWS, 3), indices, mask))


@pytest.mark.parametrize("mask", MASKS[:2])
def test_elements(mask: list[bool]) -> None:
    indices = np.array([[3, 1], [99, 0], [-1, -2], [0, 99], [0, 2]])
    check(model(f"{ROWS}, 3", 2, f"{UPDATES}", "add"), given((ROWS, 3), indices, mask))


def test_one_row_of_one() -> None:
    check(model("1", 1, "1", rows=1), given((1,), np.array([[0]]), [True]))
    check(model("1", 1, "1", rows=1), given((1,), np.array([[1]]), [False]))


@pytest.mark.parametrize("index", [ROWS, -ROWS - 1])
def test_a_chosen_index_that_is_out_of_range_is_refused(index: int) -> None:
    feeds = given((ROWS,), np.array([[0], [index], [1], [2], [3]]), [True] * UPDATES)
    with load(compile_model(model(f"{ROWS}", 1, f"{UPDATES}")).to_bytes()) as module, pytest.raises(ExecutionError):
        module.run(feeds)


def test_large_data_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "MOST_ELEMENTS", ROWS - 1)
    indices = np.array([[3], [99], [-1], [-99], [0]])
    check(model(f"{ROWS}", 1, f"{UPDATES}"), given((ROWS,), indices, MASKS[0]), host_steps=1)


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "fewer",
    [
        "taken = Slice(found, zero, two, one)",
        "taken = Slice(found, zero, last, one)",
        "taken = Slice(found, zero, many, one, two)",
        "taken = Expand(found, thrice)",
    ],
)
def test_positions_that_are_left_out_or_repeated(fewer: str, mask: list[bool], reduction: str) -> None:
    """The first ones, all but the last one, every second one, and all of them three times."""
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g
        (float[{ROWS}] x, int64[{UPDATES}, 1] i, float[{UPDATES}] u, bool[{UPDATES}] m) => (float[{ROWS}] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] last = {{-1}},
         int64[1] many = {{99}}, int64[2] thrice = {{3, 1}}> {{
            found = NonZero(m)
            {fewer}
            places = Reshape(taken, last)
            chosen = Gather<axis = 0>(i, places)
            values = Gather<axis = 0>(u, places)
            y = ScatterND<reduction = "{reduction}">(x, chosen, values)
        }}"""
    )
    feeds = given((ROWS,), np.array([[3], [1], [-1], [0], [2]]), mask)
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    with load(compile_model(proto, num_threads=1).to_bytes(), num_threads=1) as module:
        np.testing.assert_allclose(module.run(feeds)["y"], expected, rtol=1e-6, atol=1e-6)
