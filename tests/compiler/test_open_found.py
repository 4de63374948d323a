"""What is found in masks and among sorted elements, by kernels: NonZero, Compress and Unique over open sizes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import parser

from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.passes.plan.index_checks import pending_checks
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError
from tilestitch.runtime.host import TABLE

pytest.importorskip("onnxruntime")

TARGETS = ["cpu", pytest.param("emulator", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"))]
HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
DENSITIES = (0, 0.003, 0.3, 1)
SHAPES = [(1, 1, 1), (7, 3, 5), (2, 0, 3), (1, 1, 4096), (13, 89, 3), (4099, 1, 1)]
DTYPES = {"bool": "bool", "float": "float32", "float16": "float16", "int64": "int64", "uint8": "uint8"}
NUMBERS = ("float", "float16", "double", "int64", "int32", "uint8")


def run(text: str, given: Sequence[dict[str, Any]], target: str) -> Iterator[dict[str, np.ndarray]]:
    """The results for each of the inputs; the host does nothing but make sizes."""
    compiled = compile_model(parser.parse_model(HEAD + text), target)
    host = compiled.explain()["host"]
    assert {op for reason in host["reasons"] for op in reason["operators"]} == {"Extent"}
    with load(compiled.to_bytes(), target, num_threads=2) as module:
        for feeds in given:
            yield module.run(feeds)


def masks(shapes: Sequence[tuple[int, ...]], seed: int = 0) -> list[np.ndarray]:
    """With none, few, many and all elements true."""
    random = np.random.default_rng(seed)
    return [random.random(shape) < density for shape in shapes for density in DENSITIES]


MASKS = [[1, 0, 1, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0] * 6, [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0]]


def test_a_size_that_the_data_gives_is_that_of_an_input_where_it_must_be() -> None:
    text = "(float[n] x, float[m] v, bool[m] p) => (float[k] y) <float[3] c = {1, 2, 3}>\n"
    text += "{ a = Compress<axis=0>(v, p)  b = Concat<axis=0>(a, c)  y = Add(x, b) }"
    v, c = np.arange(5, dtype=np.float32), np.array([1, 2, 3], np.float32)
    compiled = compile_model(parser.parse_model(HEAD + text))
    assert "host.check" in {reason["rule"] for reason in compiled.explain()["host"]["reasons"]}
    with load(compiled.to_bytes()) as module:
        for n, found in product((3, 4, 5), (0, 1, 3)):
            feeds = {"x": np.ones(n, np.float32), "v": v, "p": np.arange(5) < found}
            if n == found + 3:
                np.testing.assert_array_equal(module.run(feeds)["y"], 1 + np.concatenate([v[:found], c]))
                continue
            with pytest.raises(ExecutionError, match=f"a size of {found}, .*one of {n - 3} "):
                module.run(feeds)


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_that_the_data_gives_are_equal_where_they_must_be(target: str) -> None:
    """There is no room for more than the other has, and what is missing is not in memory."""
    text = "(float[n] x, bool[n] p, bool[n] q) => (float[k] y)\n"
    text += "{ a = Compress<axis=0>(x, p)  b = Compress<axis=0>(x, q)  y = Add(a, b) }"
    compiled = compile_model(parser.parse_model(HEAD + text), target)
    x = np.arange(6, dtype=np.float32)
    with load(compiled.to_bytes(), target) as module:
        for p, q in product(np.array(MASKS, bool), repeat=2):
            if p.sum() == q.sum():
                np.testing.assert_array_equal(module.run({"x": x, "p": p, "q": q})["y"], x[p] + x[q])
                continue
            with pytest.raises(ExecutionError, match=f"Compress_1.*a size of {q.sum()}, .*one of {p.sum()} "):
                module.run({"x": x, "p": p, "q": q})


@pytest.mark.parametrize("target", TARGETS)
def test_places_of_what_is_not_zero_are_those_of_numpy_whatever_the_shape(target: str) -> None:
    text = (
        "(bool[a, b, c] x, float[n, m] f) => (int64[3, k] y, int64[1, j] z, int64[2, i] w)\n"
        "<int64[1] flat = {-1}> { y = NonZero(x)  r = Reshape(x, flat)  z = NonZero(r)  w = NonZero(f) }"
    )
    given = [
        {"x": x, "f": np.where(f[0], -1.5, -0.0).astype(np.float32)}
        for x, f in zip(masks(SHAPES), masks([(1, 5, 7)] * len(SHAPES), 1), strict=True)
    ]
    for feeds, got in zip(given, run(text, given, target), strict=True):
        wanted = (feeds["x"], feeds["x"].reshape(-1), feeds["f"])
        for places, array in zip(got.values(), wanted, strict=True):
            assert places.dtype == np.int64
            np.testing.assert_array_equal(places, np.stack(np.nonzero(array)))


@pytest.mark.parametrize("target", TARGETS)
def test_places_of_six_axes_of_open_size(target: str) -> None:
    """Floor quotients of one another take LLVM minutes from the fifth axis on."""
    text = "(bool[a, b, c, d, e, f] x) => (int64[6, k] y) { y = NonZero(x) }"
    shapes = [(1, 1, 1, 1, 1, 1), (2, 3, 1, 5, 7, 3), (3, 2, 5, 1, 1, 700), (1, 2, 0, 2, 1, 3)]
    given = [{"x": x} for x in masks(shapes, 2)]
    for feeds, got in zip(given, run(text, given, target), strict=True):
        np.testing.assert_array_equal(got["y"], np.stack(np.nonzero(feeds["x"])))


def test_places_along_axes_are_quotients_that_need_no_signs() -> None:
    model = parser.parse_model(HEAD + "(bool[a, b, c, d, e] x) => (int64[5, k] y) { y = NonZero(x) }")
    texts = compile_model(model, keep_source=True).contents.extra
    (compact,) = (text.decode() for name, text in texts.items() if "compact" in name and name.endswith("tir.py"))
    assert (compact.count("T.truncmod"), compact.count(" % ")) == (4, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_any_byte_but_0_of_a_mask_is_true(target: str) -> None:
    """As of an image's mask, 0 and 255, that is viewed as bool."""
    text = "(bool[n] x, float[n] f) => (int64[1, k] y, float[j] z) { y = NonZero(x)  z = Compress(f, x) }"
    random = np.random.default_rng(3)
    given = [
        {"x": random.choice(np.array(numbers, np.uint8), n).view(bool), "f": np.arange(n, dtype=np.float32)}
        for numbers in ([0, 255], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2], [0, 1, 2, 128, 255]) for n in (7, 1023, 2500)
    ]  # fmt: skip
    for feeds, got in zip(given, run(text, given, target), strict=True):
        places = np.flatnonzero(feeds["x"].view(np.uint8))
        np.testing.assert_array_equal(got["y"], [places])
        np.testing.assert_array_equal(got["z"], feeds["f"][places])


@pytest.mark.parametrize("target", TARGETS)
def test_nan_is_found_and_zeros_of_both_signs_are_not_in_all_data_types(target: str) -> None:
    names = list(DTYPES)
    inputs = ", ".join(f"{name}[n, m] x{number}" for number, name in enumerate(names))
    outputs = ", ".join(f"int64[2, k{number}] y{number}" for number in range(len(names)))
    text = f"({inputs}) => ({outputs}) {{ {' '.join(f'y{i} = NonZero(x{i})' for i in range(len(names)))} }}"
    random = np.random.default_rng(1)
    given = []
    for shape in [(1, 1), (3, 0), (37, 53)]:
        arrays = [random.integers(0, 2, shape).astype(dtype) for dtype in DTYPES.values()]
        for array in (array for array in arrays if array.dtype.kind == "f" and array.size):
            array.flat[0], array.flat[-1] = np.nan, -0.0
        given.append({f"x{number}": array for number, array in enumerate(arrays)})
    for feeds, got in zip(given, run(text, given, target), strict=True):
        for places, array in zip(got.values(), feeds.values(), strict=True):
            np.testing.assert_array_equal(places, np.stack(np.nonzero(array)))


@pytest.mark.parametrize("target", TARGETS)
def test_compress_takes_what_onnxruntime_takes_along_any_axis(target: str) -> None:
    text = (
        "(float[a, b] x, int64[c] t, bool[a] p, bool[b] q, bool[c] r)\n"
        "=> (float[i, b] y, float[a, j] z, int64[k] w, float[l] v)\n"
        "{ y = Compress<axis=0>(x, p)  z = Compress<axis=-1>(x, q)  w = Compress(t, r)  v = Compress(x, p) }"
    )
    random = np.random.default_rng(2)
    given = [
        {
            "x": random.standard_normal((a, b)).astype(np.float32), "t": random.integers(-9, 9, c),
            "p": random.random(a) < density, "q": random.random(b) < density, "r": random.random(c) < density,
        }
        for a, b, c in [(1, 1, 1), (31, 7, 2500), (5, 1100, 3)] for density in DENSITIES
    ]  # fmt: skip
    reference = rivals.onnxruntime(parser.parse_model(HEAD + text), 1)
    for feeds, got in zip(given, run(text, given, target), strict=True):
        for actual, wanted in zip(got.values(), reference(feeds), strict=True):
            np.testing.assert_array_equal(actual, wanted)


def test_a_condition_that_is_longer_than_the_axis_is_refused_before_the_run() -> None:
    compiled = compile_model(
        parser.parse_model(HEAD + "(float[n] x, bool[m] q) => (float[k] y) { y = Compress<axis=0>(x, q) }")
    )
    with load(compiled.to_bytes()) as module:
        x = np.arange(3, dtype=np.float32)
        np.testing.assert_array_equal(module.run({"x": x, "q": np.array([False, True])})["y"], [1])
        with pytest.raises(Exception, match="Compress"):
            module.run({"x": x, "q": np.ones(4, bool)})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ascending", [0, 1])
def test_distinct_elements_of_numbers_with_nan_and_ties(ascending: int, target: str) -> None:
    dtypes = NUMBERS if target == "cpu" else NUMBERS[:1] + NUMBERS[3:4]
    outputs = ", ".join(
        f"{t}[k{i}] y{i}, int64[k{i}] f{i}, int64[n] w{i}, int64[k{i}] c{i}" for i, t in enumerate(dtypes)
    )
    body = " ".join(f"y{i}, f{i}, w{i}, c{i} = Unique<sorted={ascending}>(x{i})" for i in range(len(dtypes)))
    text = f"({', '.join(f'{t}[n] x{i}' for i, t in enumerate(dtypes))}) => ({outputs}) {{ {body} }}"
    random = np.random.default_rng(3)
    given = []
    for size in (0, 1, 2, 97, 2500):
        feeds = {}
        for number, name in enumerate(dtypes):
            dtype = np.dtype({"float": "float32", "double": "float64"}.get(name, name))
            array = random.integers(0, max(1, size // 3), size).astype(dtype)
            if dtype.kind == "f" and size > 2:
                array[[1, size - 1]], array[2] = np.nan, -np.inf
            feeds[f"x{number}"] = array
        given.append(feeds)
    for feeds, got in zip(given, run(text, given, target), strict=True):
        results = iter(got.values())
        for array in feeds.values():
            for wanted in TABLE["Unique"]([array], {"sorted": ascending}):
                actual = next(results)
                assert actual.dtype == wanted.dtype
                np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("axis", "ascending"), [(0, 1), (1, 0), (-1, 1)])
def test_distinct_slices_along_an_axis(axis: int, ascending: int, target: str) -> None:
    attributes = f"axis={axis}, sorted={ascending}"
    text = (
        "(float[a, b, c] x, bool[d, e] m) => (float[p, q, r] y, int64[k] f, int64[n] w, int64[k] c, bool[s, t] z)\n"
        f"{{ y, f, w, c = Unique<{attributes}>(x)  z = Unique<axis=0>(m) }}"
    )
    random = np.random.default_rng(4)
    given = []
    for shape in [(1, 1, 1), (7, 3, 2), (40, 2, 1), (2, 5, 90), (300, 1, 3)]:
        x = random.integers(0, 2, shape).astype(np.float32)
        x[random.random(shape) < 0.1] = np.nan
        given.append({"x": x, "m": random.random(shape[:2]) < 0.5})
    for feeds, got in zip(given, run(text, given, target), strict=True):
        wanted = TABLE["Unique"]([feeds["x"]], {"axis": axis, "sorted": ascending})
        wanted.append(TABLE["Unique"]([feeds["m"]], {"axis": 0})[0])
        for actual, expected in zip(got.values(), wanted, strict=True):
            assert actual.dtype == expected.dtype
            np.testing.assert_array_equal(actual, expected)


def test_distinct_elements_of_bool() -> None:
    text = "(bool[a, b] x) => (bool[k] y, int64[k] f, int64[n] w, int64[k] c) { y, f, w, c = Unique(x) }"
    given = [{"x": mask[0]} for mask in masks(SHAPES)]
    for feeds, got in zip(given, run(text, given, "cpu"), strict=True):
        for actual, wanted in zip(got.values(), TABLE["Unique"]([feeds["x"]], {}), strict=True):
            np.testing.assert_array_equal(actual, wanted)


def test_indices_that_were_found_in_a_mask_are_checked_where_it_is_of_another_size_only() -> None:
    graph = Graph("found")
    mask, ends = graph.add_input("m", TensorType("bool", (4, 9))), graph.add_input("e", TensorType("int64", (1,)))
    places = graph.emit("compact", mask, ends, block=1024, count=7)
    coordinates = graph.emit("transpose", places, perm=(1, 0))
    columns = graph.emit("slice", places, starts=(1, 0), steps=(1, 1), sizes=(1, 7))
    flat = graph.emit("reshape", columns, shape=(7,))

    def is_checked(op: str, shape: tuple[int, ...], indices: Any, **attrs: Any) -> bool:
        x = graph.add_input("x", TensorType("float32", shape))
        return bool(pending_checks([graph.emit(op, x, indices, **attrs).producer]))

    assert not is_checked("gather_nd", (4, 9), coordinates, batch_dims=0)
    assert is_checked("gather_nd", (4, 8), coordinates, batch_dims=0)
    assert is_checked("gather_nd", (9, 4), coordinates, batch_dims=0)
    assert not is_checked("gather", (9, 2), flat, axis=0)
    assert is_checked("gather", (4, 2), flat, axis=0)
    assert is_checked("gather", (9,), places, axis=0)


@pytest.mark.parametrize("target", TARGETS)
def test_extremes_of_nothing_that_was_found_are_the_least_and_the_largest_number(target: str) -> None:
    text = (
        "(float[n, 4] x, bool[n] m) => (float[4] y, float z, int64[1, 4] w) <int64[1] a = {0}>\n"
        "{ g = Compress<axis=0>(x, m)  y = ReduceMax<axes=[0], keepdims=0>(g)  z = ReduceMax<keepdims=0>(g)\n"
        "r = Cast<to=7>(g)  w = ReduceMin<axes=[0], keepdims=1>(r) }"
    )
    x = np.random.default_rng(5).integers(-9, 9, (97, 4)).astype(np.float32)
    given = [{"x": x[:n], "m": np.arange(n) < k} for n, k in ((97, 0), (97, 1), (97, 97), (1, 0), (5, 3))]
    for feeds, got in zip(given, run(text, given, target), strict=True):
        found = feeds["x"][feeds["m"]]
        np.testing.assert_array_equal(got["y"], found.max(0, initial=-np.inf))
        np.testing.assert_array_equal(got["z"], found.max(initial=-np.inf))
        most = np.iinfo(np.int64).max
        np.testing.assert_array_equal(got["w"], found.astype(np.int64).min(0, initial=most, keepdims=True))


W = np.array([7, 8], np.float32)


IN_A_SLICE = {
    "Compress": ("float[k, 4]", "f = ReduceSum<keepdims=0>(v, one)  m = Greater(f, h)  y = Compress<axis=0>(v, m)"),
    "NonMaxSuppression": (
        "int64[k, 3]",
        "b = Unsqueeze(v, z)  f = Slice(v, z, one, one)  t = Transpose<perm=[1, 0]>(f)  s = Unsqueeze(t, z)\n"
        "y = NonMaxSuppression(b, s, two)",
    ),
    "two masks of as many": (
        "float[k, 4]",
        "f = ReduceSum<keepdims=0>(v, one)  m = Greater(f, h)  u = NonZero(m)  w = Transpose<perm=[1, 0]>(u)\n"
        "l = Neg(v)  g = Abs(f)  q = Greater(g, h)  c = Compress<axis=0>(l, q)  y = ScatterND(v, w, c)",
    ),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operator", IN_A_SLICE)
def test_nothing_is_found_in_a_slice_of_nothing(operator: str, target: str) -> None:
    """A claim says that the slice is empty where its data is."""
    kind, nodes = IN_A_SLICE[operator]
    model = parser.parse_model(f"""{HEAD}(float[n, 4] x, bool[n] p) => ({kind} y)
        <int64[1] z = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, float h = {{0.0}}>
        {{ i = Cast<to=7>(p)  e = ReduceSum<keepdims=1>(i)  v = Slice(x, z, e, z)  {nodes} }}""")
    reference = rivals.onnxruntime(model, 1)
    with load(compile_model(model, target).to_bytes(), target, num_threads=1) as module:
        for n in (0, 1, 3):
            feeds = {"x": np.random.default_rng(n).random((n, 4)).astype(np.float32), "p": np.arange(n) != 1}
            np.testing.assert_array_equal(module.run(feeds)["y"], reference(feeds)[0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", ["1", "2", "m"])
def test_a_slice_that_has_rows_only_where_another_has_none(rows: str, target: str) -> None:
    """With at most one row, the size `m - min(n, m)` is 0 unless n is, which proofs ignore."""
    model = parser.parse_model(f"""{HEAD}(float[n, 3] x, float[{rows}, 3] w, int64[1] i, int64[1] j) => (float[k, 3] y)
        <int64[1] zero = {{0}}, int64[1] end = {{9999}}, int64[1] one = {{1}}>
        {{ a = Slice(x, i, end, zero)  b = Slice(w, j, end, zero)  s = Shape(a)  r = Slice(s, zero, one)
           c = Slice(b, r, end, zero)  y = Exp(c) }}""")
    reference = rivals.onnxruntime(model, 1)
    with load(compile_model(model, target).to_bytes(), target, num_threads=1) as module:
        for n, m, i, j in product((0, 1, 2), (0, 1, 2, 3) if rows == "m" else (int(rows),), (0, 1, 9), (0, 1, -1)):
            random = np.random.default_rng(n)
            feeds = {"x": random.random((n, 3), np.float32), "w": random.random((m, 3), np.float32)}
            feeds |= {"i": np.array([i]), "j": np.array([j])}
            np.testing.assert_allclose(module.run(feeds)["y"], reference(feeds)[0], rtol=1e-6)


@pytest.mark.parametrize(("text", "wanted"), [
    ("c = Concat<axis=0>(g, w)  n = Neg(c)  y = Slice(n, zero, one, zero)", lambda g: -np.concatenate([g, W])[:1]),
    ("c = Concat<axis=0>(g, w)  y = Slice(c, zero, one, zero)", lambda g: np.concatenate([g, W])[:1]),
    ("c = Concat<axis=0>(w, g, w)  n = Neg(c)  y = Slice(n, m3, m2, zero)", lambda g: -np.r_[W, g, W][-3:-2]),
    ("c = Pad(g, after)  y = Slice(c, zero, one, zero)", lambda g: np.pad(g, (0, 1))[:1]),
])  # fmt: skip
def test_where_nothing_was_found_what_is_beside_it_comes_first(text: str, wanted: Any) -> None:
    constants = (
        "<float[2] w = {7, 8}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] m3 = {-3}, int64[1] m2 = {-2},\n"
    )
    head = f"(float[n] x, bool[n] m) => (float[1] y) {constants} int64[2] after = {{0, 1}}>\n"
    x = np.arange(10, 16, dtype=np.float32)
    given = [{"x": x, "m": np.arange(6) < found} for found in (0, 1, 6)]
    body = f"{head} {{ a = Compress<axis=0>(x, m)  g = Abs(a)  {text} }}"
    for feeds, got in zip(given, run(body, given, "cpu"), strict=True):
        np.testing.assert_array_equal(got["y"], wanted(x[feeds["m"]]))


def test_the_first_of_nothing_that_was_found_is_out_of_range() -> None:
    text = "(float[n] x, bool[n] m) => (float[1] y) <int64[1] zero = {0}>\n"
    text += "{ a = Compress<axis=0>(x, m)  g = Abs(a)  y = GatherElements<axis=0>(g, zero) }"
    x = np.arange(10, 16, dtype=np.float32)
    assert [got["y"].tolist() for got in run(text, [{"x": x, "m": x > 13}], "cpu")] == [[14]]
    with pytest.raises(ExecutionError, match="out of range"):
        list(run(text, [{"x": x, "m": x < 0}], "cpu"))


def test_a_result_of_the_host_that_meets_a_size_is_as_large() -> None:
    text = "(float[2, 1] x, int64[2] times, float[2, 3] w) => (float[2, 3] y) { t = Tile(x, times)  y = Add(t, w) }"
    x, w = np.ones((2, 1), np.float32), np.ones((2, 3), np.float32)
    with load(compile_model(parser.parse_model(HEAD + text)).to_bytes()) as module:
        assert module.run({"x": x, "times": np.array([1, 3]), "w": w})["y"].tolist() == [[2] * 3] * 2
        with pytest.raises(ExecutionError, match=r"Tile.*taken to be equal; give inputs for which they are"):
            module.run({"x": x, "times": np.array([1, 2]), "w": w})


def test_at_least_one_is_found_where_only_a_shape_is_read_of_the_first() -> None:
    """The number is in no result then: 0 was taken for 1."""
    text = """(bool[n] p) => (float[m] y, int64[2] shape)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
        places = NonZero(p)  first = Gather<axis=1>(places, zero)  shape = Shape(first)
        sizes = Shape(places)  found = Slice(sizes, one, two)  least = Min(found, one)  y = ConstantOfShape(least) }"""
    with load(compile_model(parser.parse_model(HEAD + text)).to_bytes()) as module:
        for found in (1, 3):
            assert module.run({"p": np.arange(3) < found})["y"].shape == (1,)
        with pytest.raises(ExecutionError, match=r"NonZero_0 .* is 0: NonZero_0, which must be from 1"):
            module.run({"p": np.zeros(3, bool)})


def test_one_row_beside_what_was_found_is_repeated_for_each() -> None:
    text = "(float[n, 4] x, bool[n] p, float[k, 4] y) => (float[m, 4] z) { c = Compress<axis=0>(x, p)  z = Mul(c, y) }"
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    with load(compile_model(parser.parse_model(HEAD + text)).to_bytes()) as module:
        for found, rows in ((0, 1), (1, 1), (2, 1), (3, 1), (2, 2), (3, 3)):
            chosen, y = np.arange(3) < found, -np.ones((rows, 4), np.float32)
            (product_,) = module.run({"x": x, "p": chosen, "y": y}).values()
            np.testing.assert_array_equal(product_, x[chosen] * y)
        with pytest.raises(ExecutionError, match="the data gives a size of 2, but it meets one of 3"):
            module.run({"x": x, "p": np.arange(3) < 2, "y": np.ones((3, 4), np.float32)})


def test_the_first_of_what_was_found_is_repeated_beside_an_input() -> None:
    """As the older exporter writes `zeros(batch.max() + 1).index_add(0, batch, x)`."""
    text = """(float[n, 3] x, int64[n] batch) => (float[n] y, float[k] zeros)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] rows = {-1}> {
            last = ReduceMax<keepdims=0>(batch)
            last_row = Reshape(last, rows)
            found = Add(last_row, one)
            zeros = ConstantOfShape(found)
            first = Slice(zeros, zero, one, zero)
            alone = Shape(first)
            sums = ReduceSum<keepdims=0>(x, one)
            y = Expand(sums, alone)
        }"""
    feeds = [{"x": np.ones((n, 3), np.float32), "batch": np.arange(n) // 2} for n in (1, 2, 9)]
    for given, result in zip(feeds, run(text, feeds, "cpu"), strict=True):
        np.testing.assert_array_equal(result["y"], np.full(len(given["batch"]), 3))
        assert len(result["zeros"]) == given["batch"].max() + 1
    with pytest.raises(ExecutionError):
        list(run(text, [{"x": np.ones((2, 3), np.float32), "batch": np.full(2, -1)}], "cpu"))


def test_places_that_are_found_twice_in_a_mask_are_as_many() -> None:
    """PyTorch's exporter looks for a mask's places wherever it is read or written with it."""
    text = """(float[n] x, bool[n] p) => (float[n] y) { a = NonZero(p)  b = Transpose(a)  c = GatherND(x, b)  d = Exp(c)
        s = Shape(x)  e = Expand(p, s)  f = NonZero(e)  g = Transpose(f)  y = ScatterND(x, g, d) }"""
    x, chosen = np.arange(5, dtype=np.float32), np.array([1, 0, 0, 1, 1], bool)
    (found,) = run(text, [{"x": x, "p": chosen}], "cpu")
    np.testing.assert_allclose(found["y"], np.where(chosen, np.exp(x), x), rtol=1e-6)


def test_what_is_found_in_three_open_dimensions_is_cut_to_a_known_size() -> None:
    """As many as a vision-language model has features of images: 2 ** 68 elements are more than an int64 counts."""
    text = """(float[n, m, 64] x, bool[n, m, 64] p, float[32] v) => (float[n, m, 64] y) <int64[1] zero = {0}> {
        a = NonZero(p)  b = Transpose(a)  c = Shape<start = 0, end = 1>(b)  d = Slice(v, zero, c)
        y = ScatterND(x, b, d) }"""
    x, v = np.zeros((2, 3, 64), np.float32), np.arange(32, dtype=np.float32)
    chosen = np.arange(384).reshape(x.shape) % 13 == 5
    want = x.copy()
    want[chosen] = v[: chosen.sum()]
    (found,) = run(text, [{"x": x, "p": chosen, "v": v}], "cpu")
    np.testing.assert_array_equal(found["y"], want)
