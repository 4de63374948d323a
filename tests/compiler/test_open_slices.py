"""Slices between places of open size, which count from the end where a run makes them negative."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import parser
from onnxruntime import InferenceSession

from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.errors import InputError

CONSTANTS = (
    "<int64[1] zero = {0}, int64[1] four = {4}, int64[1] back = {-1}, int64[1] most = {9223372036854775807},"
    " int64[1] least = {-9223372036854775807}>"
)
SLICES: dict[str, tuple[str, Callable[[np.ndarray, int], np.ndarray]]] = {
    "to": ("at = Sub(q, four)  y = Slice(x, zero, at)", lambda x, q: x[: q - 4]),
    "from": ("rest = Mod(q, four)  at = Neg(rest)  y = Slice(x, at, most)", lambda x, q: x[-(q % 4) :]),
    "backwards": ("at = Sub(q, four)  y = Slice(x, at, least, zero, back)", lambda x, q: x[max(q - 4, -len(x)) :: -1]),
}


def compiled(x: str, nodes: str) -> bytes:
    text = f"(float[{x}] x, float[q] z) => (float[r] y) {CONSTANTS} {{ q = Shape(z)  {nodes} }}"
    return compile_model(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')).to_bytes()


@pytest.mark.parametrize("size", ["n", "1", "3"])
@pytest.mark.parametrize(("start", "end"), [(-4, -9), (-4, 0), (-1, -2), (9, -9), (0, -9), (-4, -2)])
def test_what_begins_before_a_dimension_goes_backwards_from_its_first_element(size: str, start: int, end: int) -> None:
    """As ONNX says, and ONNX Runtime does; numpy takes nothing."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
      g (float[{size}] x) => (float[r] y)
      <int64[1] start = {{{start}}}, int64[1] end = {{{end}}}, int64[1] zero = {{0}}, int64[1] back = {{-1}}>
      {{ y = Slice(x, start, end, zero, back) }}"""
    model = parser.parse_model(text)
    session = InferenceSession(model.SerializeToString())
    with load(compile_model(model).to_bytes()) as module:
        for n in (1, 2, 3, 7) if size == "n" else (int(size),):
            feeds = {"x": np.arange(n, dtype=np.float32)}
            np.testing.assert_array_equal(module.run(feeds)["y"], session.run(None, feeds)[0])


def test_where_the_data_says_that_it_begins_before_a_dimension_too() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
      g (float[7] x, int64[1] start, int64[1] end) => (float[r] y) <int64[1] zero = {0}, int64[1] back = {-1}>
      { y = Slice(x, start, end, zero, back) }"""
    model, x = parser.parse_model(text), np.arange(7, dtype=np.float32)
    session = InferenceSession(model.SerializeToString())
    with load(compile_model(model).to_bytes()) as module:
        for start, end in ((-9, -9), (-8, -9), (-8, -8), (-7, -8), (-8, 0), (9, -9)):
            feeds = {"x": x, "start": np.array([start]), "end": np.array([end])}
            np.testing.assert_array_equal(module.run(feeds)["y"], session.run(None, feeds)[0])


@pytest.mark.parametrize(("nodes", "wanted"), SLICES.values(), ids=SLICES)
def test_places_of_either_sign(nodes: str, wanted: Callable[[np.ndarray, int], np.ndarray]) -> None:
    with load(compiled("n", nodes)) as module:
        for n, q in ((1, 1), (2, 3), (5, 1), (7, 4), (3, 9), (13, 7), (11, 11)):
            x = np.arange(n, dtype=np.float32)
            y = module.run({"x": x, "z": np.zeros(q, np.float32)})["y"]
            np.testing.assert_array_equal(y, wanted(x, q), err_msg=f"{n} elements, {q}")


def test_places_outside_of_a_known_dimension_are_refused() -> None:
    """They are claimed to lie in it; one before it, which would count from the end, does not."""
    nodes, wanted = SLICES["backwards"]
    with load(compiled("20", nodes)) as module:
        x = np.arange(20, dtype=np.float32)
        for q in (4, 5, 23):
            feeds = {"x": x, "z": np.zeros(q, np.float32)}
            np.testing.assert_array_equal(module.run(feeds)["y"], wanted(x, q))
        for q in (3, 24):
            with pytest.raises(InputError, match="from 4 to 23"):
                module.run({"x": x, "z": np.zeros(q, np.float32)})


ONE_PLACE = {
    "of a concat": "c = Concat<axis=0>(x, z)  s = Slice(c, one, two)",
    "of an inner axis": "t = Transpose<perm=[1, 2, 0]>(x)  u = Transpose<perm=[1, 2, 0]>(z)  c = Concat<axis=2>(t, u)\n"
    "d = Slice(c, one, two, two)  s = Transpose<perm=[2, 0, 1]>(d)",
    "of three parts": "n = Neg(x)  c = Concat<axis=0>(x, z, n)  s = Slice(c, one, two)",
    "of what is padded": "c = Pad(x, pads)  s = Slice(c, two, three)",
    "from the end": "c = Concat<axis=0>(z, x, z)  s = Gather(c, last)",
}


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("nodes", ONE_PLACE.values(), ids=ONE_PLACE)
def test_one_place_that_a_batch_reads_may_lie_in_any_part_of_open_size(nodes: str, target: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[b, 2, 3] x, float[c, 2, 3] z, float[c, 3, 4] w) => (float[n, 2, 4] y)
        <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] three = {{3}}, int64[1] last = {{-2}},
         int64[6] pads = {{1, 0, 0, 3, 0, 0}}> {{ {nodes}  y = MatMul(s, w) }}"""
    model = parser.parse_model(text)
    session = InferenceSession(model.SerializeToString())
    random = np.random.default_rng(5)
    with load(compile_model(model, target, num_threads=1, host_steps=False).to_bytes(), device=target) as module:
        for b, c in ((1, 1), (1, 2), (2, 1), (2, 3), (3, 2), (5, 7)):
            shapes = {"x": (b, 2, 3), "z": (c, 2, 3), "w": (c, 3, 4)}
            feeds = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
            (expected,) = session.run(None, feeds)
            np.testing.assert_allclose(module.run(feeds)["y"], expected, 1e-5, 1e-5, err_msg=f"{b}, {c}")


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize(
    "nodes", ["c = Concat<axis=0>(s, s, x)", "n = Neg(s)  c = Concat<axis=0>(n, x, s)", "c = Concat<axis=0>(x, s)"]
)
def test_a_part_of_a_concat_may_be_what_a_slice_leaves_nothing_of(nodes: str, target: str) -> None:
    """A slice from the second row on, of one row or two, begins after the last; nothing is read there."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[b, 3] x) => (float[n, 3] y)
        <int64[1] two = {{2}}, int64[1] far = {{1000}}, int64[1] rows = {{0}}>
        {{ s = Slice(x, two, far, rows)  {nodes}  y = Relu(c) }}"""
    model = parser.parse_model(text)
    session = InferenceSession(model.SerializeToString())
    with load(compile_model(model, target, num_threads=1, host_steps=False).to_bytes(), device=target) as module:
        for b in (1, 2, 3, 7):
            x = np.random.default_rng(b).standard_normal((b, 3), np.float32)
            np.testing.assert_array_equal(module.run({"x": x})["y"], session.run(None, {"x": x})[0], err_msg=str(b))
