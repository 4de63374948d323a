"""Kernels over open sizes: compiled once, right at every size, with nothing left to the host."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from tests.compiled import assert_close
from tests.guarded import run_guarded
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.errors import OptionError
from tilestitch.passes.plan.cpu.schedules import CpuLoopSchedule
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError, InputError

pytest.importorskip("onnxruntime")

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
SIZES = [(1, 1), (2, 3), (1, 15), (5, 16), (3, 17), (2, 97), (7, 128)]
LARGE, LARGE_SQUARE = (1, 9001), (1, 1009)
"""Of the second one, as many elements as the square of the length are written."""
KERNELS = {
    "loops": "(float[b, s, 24] x, float[24] w) => (float[b, 24, s] y) { a = Mul(x, w)  t = Tanh(a)\n"
    "y = Transpose<perm=[0, 2, 1]>(t) }",
    "softmax": "(float[b, s] x) => (float[b, s] y) { y = Softmax<axis=-1>(x) }",
    "first_axis": "(float[b, s] x) => (float[b, s] y) { y = Softmax<axis=0>(x) }",
    "channels": "(float[b, 7, s] x) => (float[b, 7, s] y, int64[b, s] i) \n"
    "<int64[1] one = {1}> { m = ReduceMean<axes=[1]>(x)  d = Sub(x, m)  e = Exp(d)  t = ReduceSum<keepdims=1>(e, one)\n"
    "y = Div(e, t)  i = ArgMax<axis=1, keepdims=0>(d) }",
    "rows_of_channels": "(float16[b, 5, s, 3] x) => (float16[b, 5, s, 3] y) { y = Softmax<axis=1>(x) }",
    "half": "(float16[b, s] x) => (float16[b, s] y) { y = Softmax<axis=-1>(x) }",
    "mean": "(float[b, s] x) => (float[b] y) { y = ReduceMean<axes=[1], keepdims=0>(x) }",
    "of_all": "(float[b, s, 7] x) => (uint8[b, s, 7] q, float scale, uint8 zero) "
    "{ q, scale, zero = DynamicQuantizeLinear(x) }",
    "places": "(float[b, s] x) => (int64[b] y) { y = ArgMax<axis=1, keepdims=0>(x) }",
    "concat": "(float[b, s, 3] x, float[b, 2, 3] w) => (float[b, t, 3] y) { y = Concat<axis=1>(x, w) }",
    "parts": "(float[b, s, 40] x, float[b, s, 24] w) => (float[b, s, 64] y) { y = Concat<axis=2>(x, w) }",
    "rows_of_parts": "(float[b, 3, s, 24] x, float[b, 2, s, 24] w) => (float[b, 5, s, 24] y)\n"
    "{ y = Concat<axis=1>(x, w) }",
    "every_second": "(float[b, s, 64] x) => (float[b, s, 32] y)\n"
    "<int64[1] a = {1}, int64[1] e = {64}, int64[1] d = {2}> { z = Slice(x, a, e, d, d)  y = Neg(z) }",
    "ints": "(int64[b, s] x) => (int64[b, s] y) { y = Add(x, x) }",
    "running_sums": "(float[b, s] x) => (float[b, s] y) <int64 a = {1}> { y = CumSum<exclusive=1>(x, a) }",
    "sums_of_neighbours": "(float[b, s, 24] x) => (float[b, s, 24] y) <int64 a = {0}>\n{ y = CumSum<reverse=1>(x, a) }",
    "best": "(float[b, s] x, float[b, 5] u) => (float[b, 5] y, int64[b, 5] i) <int64[1] k = {5}>\n"
    "{ c = Concat<axis=1>(x, u)  y, i = TopK(c, k) }",
    "sorted": "(float[b, s] x) => (float[b, t] y, int64[b, t] i) <int64[1] one = {1}>\n"
    "{ h = Shape(x)  k = Gather(h, one)  y, i = TopK<largest=0>(x, k) }",
    "at_most_so_many": "(float[s, b] x) => (float[t, b] y, int64[t, b] i) <int64[1] zero = {0}, int64[1] m = {1000}>\n"
    "{ h = Shape(x)  k0 = Gather(h, zero)  k = Min(k0, m)  y, i = TopK<axis=0>(x, k) }",
    "one_hot": "(int64[b, s] x) => (float[b, t, s] y) <int64 one = {1}, float[2] v = {0, 1}>\n"
    "{ h = Shape(x)  d = Gather(h, one)  y = OneHot<axis=1>(x, d, v) }",
    "triangle": "(float[b, s] x) => (float[b, s] y) { y = Trilu<upper=0>(x) }",
    "numbers": "(float[b, s] x) => (int64[t] y) <int64 zero = {0}, int64 one = {1}>\n"
    "{ h = Shape(x)  d = Gather(h, one)  y = Range(zero, d, one) }",
    "floats_from_0": "(float[b, s] x) => (float[t] y) <int64 one = {1}, float zero = {0}, float step = {1}>\n"
    "{ h = Shape(x)  d = Gather(h, one)  e = Cast<to=1>(d)  y = Range(zero, e, step) }",
    "floats_to_0": "(float[b, s] x) => (float[t] y) <int64 one = {1}, float end = {-1}, float step = {-1}>\n"
    "{ h = Shape(x)  d = Gather(h, one)  m = Sub(d, one)  e = Cast<to=1>(m)  y = Range(e, end, step) }",
    "floats_by_halves": "(float[b, s] x) => (float[t] y)\n"
    "<int64 one = {1}, float half = {0.5}, float from = {-0.5}, float step = {0.75}>\n"
    "{ h = Shape(x)  d = Gather(h, one)  e = Cast<to=1>(d)  m = Mul(e, half)  y = Range(from, m, step) }",
    "picked": "(float[b, s, 3] x, int64[b, s, 2] i) => (float[b, s, 3] y) <int64 m = {1}>\n"
    "{ j = Mod(i, m)  y = GatherND(x, j) }",
    "slices_added": "(float[b, s] x, int64[b, 1] i, float[b, s] u) => (float[b, s] y) <int64 m = {1}>\n"
    '{ j = Mod(i, m)  y = ScatterND<reduction="add">(x, j, u) }',
    "elements_replaced": "(float[b, s] x, int64[b, s] i, float[b, s] u) => (float[b, s] y) <int64 m = {1}>\n"
    '{ j = Mod(i, m)  y = ScatterElements<axis=1, reduction="max">(x, j, u) }',
}
"""By what is open in them; b and s are."""


def inputs(model: ModelProto, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in tensor.shape.dim]
        values = rng.standard_normal(shape) * 3
        dtype = {1: np.float32, 7: np.int64, 9: np.bool_, 10: np.float16}[tensor.elem_type]
        found[info.name] = values.astype(dtype)
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_one_kernel_is_right_at_every_size(name: str) -> None:
    model = parser.parse_model(HEAD + KERNELS[name])
    compiled = compile_model(model, dims={"b": (1, 64), "s": (1, 1 << 20)})
    assert compiled.explain()["host"]["steps"] == 0
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), num_threads=2) as module:
        for b, s in [*SIZES, LARGE_SQUARE if name == "one_hot" else LARGE]:
            feeds = inputs(model, {"b": b, "s": s})
            for actual, wanted in zip(run_guarded(module, feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS[wanted.dtype.name if wanted.dtype.kind == "f" else "float32"])


NARROW = {(9, 40): ((1, 9), (2, 15), (3, 16), (1, 33), (3, 40)), (1, 16): ((1, 1), (3, 1), (2, 3), (3, 5), (3, 16))}


@pytest.mark.parametrize("lengths", NARROW)
@pytest.mark.parametrize("name", ["channels", "rows_of_channels", "first_axis", "loops"])
def test_one_kernel_of_a_narrow_range(name: str, lengths: tuple[int, int]) -> None:
    """Places fit in 32 bits, some lengths that a kernel for all sizes provides for do not come, and rows may be fewer
    than a block where they are never more.
    """
    model = parser.parse_model(HEAD + KERNELS[name])
    reference = rivals.onnxruntime(model, 1)
    module = load(compile_model(model, dims={"b": (1, 3), "s": lengths}).to_bytes(), num_threads=1)
    for b, s in NARROW[lengths]:
        feeds = inputs(model, {"b": b, "s": s})
        for actual, wanted in zip(run_guarded(module, feeds).values(), reference(feeds), strict=True):
            assert_close(actual, wanted, MODELS[wanted.dtype.name if wanted.dtype.kind == "f" else "float32"])


def test_lines_that_are_cut_for_sizes_that_do_not_come() -> None:
    """At all sizes of the range a task has the whole line."""
    text = (
        "(float[n, 3, n] x) => (float[n, 3, n] y, float[n, n, 3] z) { y = Tanh(x)  z = Transpose<perm=[2, 0, 1]>(x) }"
    )
    x = np.random.default_rng(0).standard_normal((13, 3, 13)).astype(np.float32)
    results = load(compile_model(parser.parse_model(HEAD + text), dims={"n": (1, 13)}).to_bytes()).run({"x": x})
    assert_close(results["y"], np.tanh(x), MODELS["float32"])
    assert_close(results["z"], x.transpose(2, 0, 1), MODELS["float32"])


@pytest.mark.parametrize(("name", "inner"), [("every_second", 32), ("parts", 64)])
def test_lines_of_known_length_where_elements_come_from_elsewhere(name: str, inner: int) -> None:
    """The place in open dimensions is found once a line; a task has many lines."""
    (group,) = compile_model(parser.parse_model(HEAD + KERNELS[name]), dims={}).plan.groups
    assert isinstance(group.schedule, CpuLoopSchedule)
    assert group.schedule.extents[-1] == group.schedule.chunk == inner and group.schedule.rows > 100


WHERE_IT_LIES = {
    "three dimensions": "(float[b, s, 64] x) => (float[b, s, 64] y) { y = Relu(x) }",
    "images": "(float[b, 16, h, w] x) => (float[b, 16, h, w] y) { y = Tanh(x) }",
    "sequences of images": "(float[b, s, h, w, 3] x, float[b, s, h, w, 3] z) => (float[b, s, h, w, 3] y)\n"
    "{ y = Add(x, z) }",
    "the largest of all": "(float[b, s, 256] x) => (float y) { y = ReduceMax<keepdims=0>(x) }",
    "a mean of images": "(float[b, 16, h, w] x) => (float[b] y) { y = ReduceMean<axes=[1, 2, 3], keepdims=0>(x) }",
}


@pytest.mark.parametrize("name", WHERE_IT_LIES)
def test_an_element_of_the_same_place_is_found_without_a_quotient(name: str) -> None:
    """Vectors of elements whose addresses are quotients and remainders of open sizes are read one by one."""
    compiled = compile_model(parser.parse_model(HEAD + WHERE_IT_LIES[name]), dims={}, keep_source=True)
    texts = [text.decode() for member, text in compiled.contents.extra.items() if member.endswith("tir.py")]
    accesses = [
        line for text in texts for line in text.splitlines() if "buffer_1[" in line and "decl_buffer" not in line
    ]
    assert accesses and not any("Div" in line or "mod" in line or "//" in line for line in accesses)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceSum", "ReduceMean"])
def test_few_long_rows_are_kernels_for_any_number_of_threads(op: str) -> None:
    """Where sizes are known, several threads share such a row."""
    model = parser.parse_model(HEAD + f"(float[b, s, 256] x) => (float y) {{ y = {op}<keepdims=0>(x) }}")
    compiled = compile_model(model, num_threads=4)
    assert compiled.explain()["host"]["steps"] == 0
    with load(compiled.to_bytes()) as module:
        for b, s in [(1, 1), (3, 5), (2, 1031)]:
            x = np.random.default_rng(s).random((b, s, 256), dtype=np.float32)
            exact = {"ReduceMax": np.max, "ReduceSum": np.sum, "ReduceMean": np.mean}[op](x.astype(np.float64))
            np.testing.assert_allclose(module.run({"x": x})["y"], exact, rtol=2e-6)


FURTHER = {
    "rows_of_one_vector_and_a_rest": (
        "(float[b, s] x, float[b, 1] u) => (float[b, t] y) { c = Concat<axis=1>(x, u)  y = Softmax<axis=-1>(c) }",
        (1, 2),
        (1, 2),
    ),
    "rows_in_other_shapes": (
        "(float[2, s] x, float[b] u) => (float[i, j, k] y, float[b] v) <int64[2] some = {2, 1}> {\n"
        "p = Softmax<axis=0>(x)  d = Shape<start=1>(x)  t = Concat<axis=0>(some, d)  r = Reshape(p, t)\n"
        "q = Shape(r)  c = ConstantOfShape(q)  a = Add(r, c)  h = Tanh(a)  y = Softmax<axis=0>(h)  v = Neg(u) }",
        (1, 2),
        (1, 2),
    ),
    "columns_apart": (
        "(float[b, s, 3] x) => (float[b, s, 2] y, float[b, s, 4] z)\n"
        "<float[3, 6] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9}, int64[2] parts = {2, 4}>\n"
        "{ m = MatMul(x, w)  y, z = Split<axis=2>(m, parts) }",
        (1, 1000),
        (1, 5, 100),
    ),
    "images_enlarged": (
        "(float[b, 2, 3] x, float[b, s] u) => (float[b, 2, 6] y) <float[3] scales = {1, 1, 2}>\n"
        '{ y = Resize<mode="linear">(x, , scales) }',
        (1, 9),
        (1, 2),
    ),
}
"""Model, range of both dimensions, and sizes."""


@pytest.mark.parametrize("name", FURTHER)
def test_further_kernels_are_right_at_every_size(name: str) -> None:
    text, within, tried = FURTHER[name]
    model = parser.parse_model(HEAD + text)
    compiled = compile_model(model, dims={"b": within, "s": within})
    assert compiled.explain()["host"]["steps"] == 0
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), num_threads=2) as module:
        for b, s in itertools.product(tried, tried):
            feeds = inputs(model, {"b": b, "s": s})
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS["float32"])


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_padding_mirrors_axes_of_any_size(mode: str) -> None:
    model = parser.parse_model(
        HEAD.replace("17", "19") + "(float[b, s] x) => (float[b, t] y) <int64[4] pads = {0, 2, 0, 3}>\n"
        f'{{ y = Pad<mode="{mode}">(x, pads) }}'
    )
    with load(compile_model(model, dims={"b": (1, 9), "s": (1, 1000)}).to_bytes()) as module:
        for size in (1, 2, 4, 5, 17, 1000):
            x = np.arange(2 * size, dtype=np.float32).reshape(2, size)
            np.testing.assert_array_equal(module.run({"x": x})["y"], np.pad(x, ((0, 0), (2, 3)), mode=mode))


@pytest.mark.parametrize("op", ["g = Gather(w, i)", "j = Unsqueeze(i, one)  g = GatherND(w, j)"])
def test_rows_by_matrices_that_are_chosen_are_one_kernel(op: str) -> None:
    """Tokens by those of their experts: nothing is copied."""
    model = parser.parse_model(
        HEAD + "(float[t, 13] x, int64[t] i, float[5, 13, 37] w) => (float[t, 1, 37] y) <int64[1] one = {1}> "
        f"{{ {op}  r = Unsqueeze(x, one)  y = MatMul(r, g) }}"
    )
    compiled, random = compile_model(model), np.random.default_rng(0)
    assert len(compiled.explain()["kernels"]) == 1
    w = random.standard_normal((5, 13, 37)).astype(np.float32)
    with load(compiled.to_bytes()) as module:
        for t in (1, 3, 17):
            x, i = random.standard_normal((t, 13)).astype(np.float32), random.integers(-5, 5, t)
            y = module.run({"x": x, "i": i, "w": w})["y"]
            np.testing.assert_allclose(y, x[:, None] @ w[i], rtol=1e-5, atol=1e-5)
        with pytest.raises(ExecutionError, match=r"outside|out of"):
            module.run({"x": x, "i": np.full(t, 5), "w": w})


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_rows_of_a_cache_of_any_size_are_written(mode: str) -> None:
    model = parser.parse_model(
        HEAD.replace("17", "24")
        + "(float[b, room, 3] cache, float[b, s, 3] new, int64[b] at) => (float[b, room, 3] y) "
        f'{{ y = TensorScatter<axis=1, mode="{mode}">(cache, new, at) }}'
    )
    compiled = compile_model(model)
    assert not compiled.explain()["host_steps"]
    with load(compiled.to_bytes()) as module:
        for room, rows, at in ((1, 1, [0, 0, 0]), (7, 3, [0, 4, 2]), (13, 1, [12, 5, 0]), (5, 5, [0])):
            at = [a + (room - rows if mode == "circular" else 0) for a in at]
            cache, new = np.zeros((len(at), room, 3), np.float32), np.arange(len(at) * rows * 3, dtype=np.float32) + 1
            new, wanted = new.reshape(len(at), rows, 3), cache.copy()
            for b, first in enumerate(at):
                wanted[b, (first + np.arange(rows)) % room] = new[b]
            feeds = {"cache": cache, "new": new, "at": np.array(at, np.int64)}
            np.testing.assert_array_equal(module.run(feeds)["y"], wanted)


def test_a_size_out_of_range_is_refused_by_name() -> None:
    model = parser.parse_model(HEAD + "(float[n, 2] x) => (float[n, 2] y) { y = Neg(x) }")
    with load(compile_model(model, dims={"n": (2, 4)}).to_bytes()) as module:
        with pytest.raises(InputError, match="x"):
            module.run({"x": np.zeros((5, 2), np.float32)})
        assert module.run({"x": np.ones((4, 2), np.float32)})["y"].tolist() == [[-1, -1]] * 4


def test_a_range_from_0_is_served_from_0_on() -> None:
    model = parser.parse_model(
        HEAD + "(float[past, 2] x, float[new, 2] y) => (float[total, 2] z) { z = Concat<axis=0>(x, y) }"
    )
    with load(compile_model(model, dims={"past": (0, 9), "new": (1, 4)}).to_bytes()) as module:
        for past in (0, 1, 9):
            x, y = np.ones((past, 2), np.float32), np.full((2, 2), 3, np.float32)
            np.testing.assert_array_equal(module.run({"x": x, "y": y})["z"], np.concatenate([x, y]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"n": (3, 2)}}, "is no range of 'n'"),
        ({"dims": {"n": 3}}, "is no range of 'n'"),
        ({"dims": {"n": (3, 2)}, "target": "emulator"}, "is no range of 'n'"),
    ],
)
def test_ranges_that_are_none_are_refused(options: Mapping[str, object], message: str) -> None:
    model = parser.parse_model(HEAD + "(float[n] x) => (float[n] y) { y = Neg(x) }")
    with pytest.raises(OptionError, match=message):
        compile_model(model, **options)  # type: ignore[arg-type]


PERHAPS_EMPTY = {
    "all_but_the_first_added_up": "(float[b, s] x) => (float[1, s] y) <int64[1] one = {1}, int64[1] nine = {9},\n"
    "int64[1] zero = {0}> { c = Slice(x, one, nine, zero)  y = ReduceSum<keepdims=1>(c, zero) }",
    "all_but_the_first_joined": "(float[b, s] x) => (float[t, s] y) <int64[1] one = {1}, int64[1] nine = {9},\n"
    "int64[1] zero = {0}> { c = Slice(x, one, nine, zero)  e = Exp(c)  y = Concat<axis=0>(e, x) }",
    "all_but_the_first_normalised": "(float[b, s] x) => (float[t, s] y) <int64[1] one = {1}, int64[1] nine = {9},\n"
    "int64[1] zero = {0}> { c = Slice(x, one, nine, zero)  y = Softmax<axis=1>(c) }",
}


@pytest.mark.parametrize("name", PERHAPS_EMPTY)
def test_sizes_that_may_come_to_nothing_are_right(name: str) -> None:
    model = parser.parse_model(HEAD + PERHAPS_EMPTY[name])
    compiled = compile_model(model, dims={"b": (1, 64), "s": (1, 1000)})
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), num_threads=2) as module:
        for b, s in ((1, 1), (1, 97), (2, 3), (17, 1000)):
            feeds = inputs(model, {"b": b, "s": s})
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS["float32"])


@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
def test_elements_at_constant_places_are_replaced_where_there_are_so_many(op: str) -> None:
    places = "int64[2, 1]" if op == "ScatterND" else "int64[2]"
    text = f"(float[n] x) => (float[n] y) <{places} i = {{0, -3}}, float[2] u = {{7, 8}}> {{ y = {op}(x, i, u) }}"
    compiled = compile_model(parser.parse_model(HEAD + text), dims={"n": (1, 64)})
    assert compiled.explain()["host"]["steps"] == 0
    with load(compiled.to_bytes()) as module:
        for n in (4, 17):
            wanted = np.arange(n, dtype=np.float32)
            feeds = {"x": wanted.copy()}
            wanted[[0, -3]] = 7, 8
            np.testing.assert_array_equal(run_guarded(module, feeds)["y"], wanted)
        with pytest.raises(ExecutionError, match="out of range"):
            module.run({"x": np.zeros(2, np.float32)})


@pytest.mark.parametrize("body", [
    "a = Reshape(x, flat)  b = Neg(a)  y = Slice(b, flat, far, front, flat)",
    "a = Expand(x, thrice)  b = Reshape(a, flat)  y = Slice(b, flat, far, front, flat)",
])  # fmt: skip
def test_the_places_of_a_few_rows_backwards(body: str) -> None:
    """Fewer than a vector has lanes, which a loop goes through one by one."""
    text = "(float[n, 1] x) => (float[k] y) <int64[2] thrice = {1, 3}, int64[1] flat = {-1}, int64[1] front = {0},\n"
    model = parser.parse_model(HEAD + text + f"int64[1] far = {{-9223372036854775807}}> {{ {body} }}")
    if "Expand" not in body:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
    reference = rivals.onnxruntime(model, 1)
    with load(compile_model(model, dims={"n": (1, 64)}).to_bytes()) as module:
        for rows in (1, 2, 4, 5, 33):
            feeds = inputs(model, {"n": rows})
            np.testing.assert_array_equal(run_guarded(module, feeds)["y"], reference(feeds)[0])


WHERE_ROWS_ARE_WHOLE_BLOCKS = """(float[h, 16] x) => (float[k, 8, 16] r, float[h, 8] a, float[n, 8] b)
<int64[1] nil = {0}, int64[1] one = {1}, int64[1] eight = {8}, int64[1] sixteen = {16}, int64[2] right = {0, 8}> {
    rows = Shape(x)
    height = Slice(rows, nil, one)
    count = Div(height, eight)
    in_blocks = Concat<axis = 0>(count, eight, sixteen)
    blocks = Reshape(x, in_blocks)
    r = Sigmoid(blocks)
    mixed = MatMul(x, weights)
    y = Relu(mixed)
    a = Slice(y, nil, eight, one)
    whole = Mul(count, eight)
    ends = Concat<axis = 0>(whole, sixteen)
    b = Slice(y, right, ends)
}"""


def test_nodes_that_form_one_kernel_at_typical_sizes_only_form_several() -> None:
    """Rows are whole blocks by a claim, so that `b` has all of them; but as an expression its size differs."""
    model = parser.parse_model(HEAD + WHERE_ROWS_ARE_WHOLE_BLOCKS)
    weights = np.random.default_rng(1).random((16, 16), dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "weights"))
    compiled = compile_model(model, num_threads=1)
    assert not compiled.explain()["host_steps"]
    assert "kept_apart" in {refusal["rule"] for refusal in compiled.explain()["refusals"]}
    module = load(compiled.to_bytes(), num_threads=1)
    for rows in (8, 24):
        x = np.random.default_rng(0).random((rows, 16), dtype=np.float32) - 0.5
        actual, y = module.run({"x": x}), np.maximum(x @ weights, 0)
        np.testing.assert_allclose(actual["a"], y[:, :8], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(actual["b"], y[:, 8:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("pads", "least"), [((1, 0, 1, 1), 1), ((3, 1, 2, 3), 4), ((3, 1, 2, 3), 1)])
def test_images_of_any_size_are_padded_by_reflection(pads: tuple[int, ...], least: int) -> None:
    """Where each element is reflected once at most, and where an image may be narrower than its padding."""
    before, after = pads[:2], pads[2:]
    text = (
        "(float[n, 3, h, w] x) => (float[n, 3, a, b] y)\n"
        f"<int64[8] p = {{0, 0, {before[0]}, {before[1]}, 0, 0, {after[0]}, {after[1]}}}>\n"
        '{ y = Pad<mode = "reflect">(x, p) }'
    )
    dims = {"n": (1, 9), "h": (least, 99), "w": (least, 99)}
    with load(compile_model(parser.parse_model(HEAD + text), dims=dims).to_bytes(), num_threads=1) as module:
        for h, w in [(least, least), (least + 1, 17), (33, least), (2 + least, 40)]:
            x = np.random.default_rng(0).random((2, 3, h, w), np.float32)
            wanted = np.pad(x, [(0, 0), (0, 0), *zip(before, after)], "reflect")
            np.testing.assert_array_equal(module.run({"x": x})["y"], wanted)


def test_images_of_any_size_are_padded_by_reflection_as_far_as_another_input_tells() -> None:
    text = (
        "(float[n, m] x, float[k, 2] w) => (float[n, p] y)\n"
        "<int64[1] zero = {0}, int64[1] one = {1}>\n"
        "{ d = Shape<start=0, end=1>(w)  m1 = Shape<start=1, end=2>(x)  last = Sub(m1, one)  far = Min(d, last)\n"
        '  pads = Concat<axis=0>(zero, far, zero, zero)  y = Pad<mode = "reflect">(x, pads) }'
    )
    compiled = compile_model(parser.parse_model(HEAD + text))
    assert compiled.explain()["host"]["steps"] == 0
    with load(compiled.to_bytes(), num_threads=1) as module:
        for m, k in [(1, 4), (2, 1), (9, 3), (5, 4), (5, 20)]:
            x = np.arange(2 * m, dtype=np.float32).reshape(2, m)
            wanted = np.pad(x, [(0, 0), (min(k, m - 1), 0)], "reflect")
            np.testing.assert_array_equal(module.run({"x": x, "w": np.zeros((k, 2), np.float32)})["y"], wanted)
