"""Single elements that a Slice and a Squeeze take from a place that only a run can tell, as TensorFlow's `x[:, i]`."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, parser
from onnxruntime import InferenceSession

from tests.compiler.test_iterations import calls as calls
from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.errors import ExecutionError

CONSTANTS = (
    "int32[1] nought = {0}, int32[1] one = {1}, int32[1] whole = {1000000000}, int32[2] ones = {1, 1},"
    " float[2] ends = {1000000000, 1000000000}, int32[2] far = {1, 1000000000}, int32[2] both = {0, 1},"
    " bool[2] masks = {1, 0}, int32[2] many = {1000000000, 1000000000}, int64[1] column = {1}"
)
PLACES = "at = Concat<axis = 0>(nought, i)  next = Add(i, one)  beyond = Concat<axis = 0>(nought, next) "
MASKED = (
    f"{PLACES} negative = Less(ones, nought)  from = And(negative, masks)  start = Where(from, many, at)"
    " floats = Cast<to = 1>(beyond)  most = Max(floats, ends)  end = Cast<to = 6>(most)"
    " cut = Slice(x, start, end, both, far)"
)
"""As tf2onnx writes `x[:, i]`, whose bits say which ends are meant."""
FORMS = {
    "masked": MASKED,
    "between": "next = Add(i, one)  cut = Slice(x, i, next, one)",
    "from": "cut = Slice(x, i, whole, one, whole)",
    "to": f"{PLACES} end = Concat<axis = 0>(whole, next)  cut = Slice(x, at, end, both, far)",
}


def model_of(x: str, nodes: str, y: str) -> ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[{x}] x, int32[1] i) => (float[{y}] y) <{CONSTANTS}>'
    return parser.parse_model(f"{text} {{ {nodes} }}")


@pytest.mark.parametrize("sizes", ["n, m, 5", "3, 7, 5", "n, 7, 1", "0, m, 5"])
@pytest.mark.parametrize("form", FORMS)
def test_the_element_is_read_by_kernels(form: str, sizes: str) -> None:
    model = model_of(sizes, f"{FORMS[form]} y = Squeeze(cut, column)", "a, b")
    artifact = compile_model(model)
    assert not artifact.explain()["host_steps"]
    session = InferenceSession(model.SerializeToString())
    n, m, k = (int(size) if size.isdigit() else {"n": 2, "m": 7}[size] for size in sizes.split(", "))
    x = np.random.default_rng(0).standard_normal((n, m, k)).astype(np.float32)
    with load(artifact.to_bytes()) as module:
        for i in (*range(m), -2, -m, -m - 3):
            feeds = {"x": x, "i": np.array([i], np.int32)}
            if form in ("between", "to") and i < -m:
                continue  # the end lies before the first element as well
            np.testing.assert_array_equal(module.run(feeds)["y"], session.run(None, feeds)[0], err_msg=f"{form} {i}")


def test_an_element_between_two_sums_of_a_place_is_read_by_kernels() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[m] x, int64[1] i) => (float y)
        <int64[1] one = {1}, int64[1] three = {3}, int64[1] axis = {0}> {
            first = Add(i, one)  last = Add(one, first)  third = Add(three, i)
            early = Slice(x, first, last)  a = Squeeze(early, axis)
            late = Slice(x, last, third)  b = Squeeze(late, axis)
            y = Sub(a, b) }"""
    )
    artifact = compile_model(model)
    assert not artifact.explain()["host_steps"]
    with load(artifact.to_bytes()) as module:
        x = np.arange(7, dtype=np.float32) ** 2
        for i in (-1, 0, 3, 4, -4, -6):
            feeds = {"x": x, "i": np.array([i])}
            assert module.run(feeds)["y"] == x[i + 1] - x[i + 2]
        with pytest.raises(ExecutionError):
            module.run({"x": x, "i": np.array([5])})


@pytest.mark.parametrize(
    "bounds",
    [
        "at = Concat<axis = 0>(start, nought)  beyond = Add(at, sizes)  cut = Slice(x, at, beyond, both)",  # JAX's
        "next = Add(one, i)  end = Unsqueeze(next, axis)  cut = Slice(x, start, end, axis)",  # PyTorch's
    ],
)
def test_an_element_meets_several(bounds: str) -> None:
    """It is one whatever it meets, not as many."""
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[n, 5] x, int64 i) => (float[n, 5] y)
        <int64 one = {{1}}, int64[1] axis = {{0}}, int64[1] nought = {{0}}, int64[2] sizes = {{1, 5}},
         int64[2] both = {{0, 1}}> {{ start = Unsqueeze(i, axis)  {bounds}  y = Add(x, cut) }}"""
    )
    artifact = compile_model(model)
    assert not artifact.explain()["host_steps"]
    x = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    with load(artifact.to_bytes()) as module:
        for i in (0, 3, 6, -7):
            np.testing.assert_array_equal(module.run({"x": x, "i": np.array(i)})["y"], x + x[i])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", [7, 8, 1 << 30, -1])
def test_a_place_with_no_element(form: str, place: int) -> None:
    """The element before 0 is none: the slice from -1 to 0 is empty."""
    if place == -1 and form in ("masked", "from"):
        return
    model = model_of("3, m, 5", f"{FORMS[form]} y = Squeeze(cut, column)", "a, b")
    feeds = {"x": np.zeros((3, 7, 5), np.float32), "i": np.array([place], np.int32)}
    with load(compile_model(model).to_bytes()) as module, pytest.raises(ExecutionError, match=r"out of|outside"):
        module.run(feeds)


@pytest.mark.parametrize("place", [0, 6, 7, -7, -1])
@pytest.mark.parametrize("form", FORMS)
def test_slices_of_one_element_or_none(form: str, place: int) -> None:
    model = model_of("n, m, 5", f"{FORMS[form]} y = Neg(cut)", "a, b, 5")
    feeds = {"x": np.random.default_rng(1).standard_normal((3, 7, 5)).astype(np.float32)}
    feeds["i"] = np.array([place], np.int32)
    wanted = InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    with load(compile_model(model).to_bytes()) as module:
        np.testing.assert_array_equal(module.run(feeds)["y"], wanted)


@pytest.mark.parametrize(("n", "m"), [(3, 7), (1, 1), (5, 13)])
def test_turns_of_a_recurrence_are_native(n: int, m: int, calls: list[str]) -> None:
    """`while i < m: h = tanh(h / 2 + x[:, i])`, with the results of all turns."""
    body = MASKED.replace("(x,", "(xs,").replace("i)", "v)").replace("(i,", "(v,")
    graph = f"""<ir_version: 8, opset_import: ["" : 17]>
      g (float[n, m, 5] x, float[n, 5] h0) => (float[n, 5] h, float[t, n, 5] hs)
      <int32 zero = {{0}}, bool true = {{1}}> {{
        last, h, all, hs = Loop("", true, zero, h0, x) <body = b (
            int64 turn, bool go, int32 at_, float[a, 5] before, float[a, c, 5] xs
          ) => (bool again, int32 after, float[a, 5] state, float[a, c, 5] kept, float[a, 5] item)
          <{CONSTANTS}, int32 step = {{1}}, int64[1] axis = {{0}}, int64[1] two = {{2}}, float half = {{0.5}}> {{
            v = Unsqueeze(at_, axis)
            {body}
            now = Squeeze(cut, column)
            less = Mul(before, half)
            sum = Add(less, now)
            state = Tanh(sum)
            item = Identity(state)
            kept = Identity(xs)
            after = Add(at_, step)
            sizes = Shape(xs)
            size = Slice(sizes, column, two, axis)
            ended = Cast<to = 6>(size)
            limit = Squeeze(ended, axis)
            again = Less(after, limit)
        }}>
      }}"""
    model = parser.parse_model(graph)
    random = np.random.default_rng(2)
    feeds = {k: random.standard_normal(s).astype(np.float32) for k, s in {"x": (n, m, 5), "h0": (n, 5)}.items()}
    wanted = InferenceSession(model.SerializeToString()).run(None, feeds)
    with load(compile_model(model).to_bytes()) as module:
        for got, other in zip(module.run(feeds).values(), wanted, strict=True):
            np.testing.assert_allclose(got, other, rtol=1e-5, atol=1e-6)
    assert set(calls) == {"repeat"}


@pytest.mark.parametrize("place", [0, 3, 6, 9, -1, -2, -3, -7, -12])
def test_an_end_before_the_start_may_count_from_the_end_of_the_dimension(place: int) -> None:
    """x[0:-1] has all elements but one, x[1:0] and x[-1:-2] have none."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]> g (float[n] x, int64[1] i) => (float[a] y, float[b] z)
        <int64[1] one = {1}, int64[1] two = {2}, int64[1] axis = {0}> {
            near = Add(i, one)
            far = Add(i, two)
            y = Slice(x, far, near, axis)
            z = Slice(x, far, i, axis)
        }"""
    )
    feeds = {"x": np.arange(7, dtype=np.float32), "i": np.array([place])}
    wanted = InferenceSession(model.SerializeToString()).run(None, feeds)
    with load(compile_model(model).to_bytes()) as module:
        for got, other in zip(module.run(feeds).values(), wanted, strict=True):
            np.testing.assert_array_equal(got, other)
