"""Open sizes that meet others in a broadcast, where taking them for equal would contradict something else."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import ModelProto, parser
from onnx.reference import ReferenceEvaluator

from tests.compiled import assert_close
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend.errors import InvalidNodeError, SizesClashError
from tilestitch.runtime import load
from tilestitch.runtime.errors import InputError

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '


def model(text: str) -> ModelProto:
    return parser.parse_model(HEAD + text)


def check(proto: ModelProto, *shapes: Mapping[str, tuple[int, ...]]) -> None:
    """One artifact and onnx.reference agree at all these shapes."""
    random = np.random.default_rng(3)
    with load(compile_model(proto, num_threads=1).to_bytes(), num_threads=1) as module:
        for each in shapes:
            feed = {name: random.standard_normal(shape, np.float32) for name, shape in each.items()}
            (expected,) = ReferenceEvaluator(proto).run(None, feed)
            (result,) = module.run(feed).values()
            assert_close(result, expected, MODELS["float32"])


CONV = """(float[1, 8, 5, 5] x, float[1, b, b, 5] z, float[16, 8, 1, b] w) => (float[n, o, h, v] y)
    { a = Mul(x, z)  y = Conv(a, w) }"""


def test_a_size_that_cannot_be_what_it_meets_is_1() -> None:
    """`b` meets 8 and 5."""
    check(model(CONV), {"x": (1, 8, 5, 5), "z": (1, 1, 1, 5), "w": (16, 8, 1, 1)})


def test_a_size_that_a_later_node_says_is_1_is_that() -> None:
    """`c` meets 33, but is as long as the sum, which is 1; `b` may be what it meets, or 1."""
    proto = model(
        """(float[b, 33] x, float[3, c] z, float[c, 4] w) => (float[n, m] y) <int64[1] i = {-1}>
        { p = Mul(x, z)  s = ReduceSum(p, i)  y = MatMul(s, w) }"""
    )
    check(proto, *({"x": (b, 33), "z": (3, 1), "w": (1, 4)} for b in (3, 1)))


def test_either_of_two_sizes_may_be_the_1_that_another_node_asks_for() -> None:
    """`b` and `c` meet, and 5 and 7."""
    proto = model(
        """(float[b, 2] x, float[c, 2] z, float[5, 2] v, float[7, 2] w) => (float[n, 2] y)
        { s = Add(x, z)  t = Add(x, v)  u = Add(z, w)  a = Concat<axis=0>(s, t, u)  y = Neg(a) }"""
    )
    sizes = [(1, 1), (5, 1), (1, 7)]
    check(proto, *({"x": (b, 2), "z": (c, 2), "v": (5, 2), "w": (7, 2)} for b, c in sizes))


def test_a_size_that_a_sum_says_is_a_number_may_be_1() -> None:
    """`c` meets `9 - b`, and `b` is 1."""
    proto = model(
        """(float[1, 1, 8, 8] x, float[1, 1, b, 1] w, float[1, 1, c, 8] z) => (float[n, o, h, v] y)
        <int64[1] i = {2}> { p = Conv(x, w)  a = Add(p, z)  s = Squeeze(w, i)  y = Mul(a, s) }"""
    )
    check(proto, *({"x": (1, 1, 8, 8), "w": (1, 1, 1, 1), "z": (1, 1, c, 8)} for c in (8, 1)))


def test_a_slice_of_one_row_meets_more() -> None:
    """It has min(2c, 3) - 1 rows."""
    proto = model(
        """(float[c, 16] x, float[2, 16] z) => (float[2, 16] y) <int64[1] f = {1}, int64[1] t = {3}, int64[1] i = {0}>
        { a = Concat<axis=0>(x, x)  s = Slice(a, f, t, i)  y = Mul(s, z) }"""
    )
    check(proto, *({"x": (c, 16), "z": (2, 16)} for c in (1, 2, 5)))


def test_a_size_that_meets_a_sum_is_that_or_1() -> None:
    proto = model("(float[a, 5] x, float[b, 5] z) => (float[c, 5] y) { t = Concat<axis=0>(x, x)  y = Add(t, z) }")
    check(proto, *({"x": (a, 5), "z": (b, 5)} for a, b in ((3, 6), (3, 1), (1, 2), (1, 1), (0, 1), (0, 0))))


def test_a_size_that_meets_0_is_1() -> None:
    check(model("(float[0, 4] x, float[c, 4] z) => (float[0, 4] y) { y = Mul(x, z) }"), {"x": (0, 4), "z": (1, 4)})


def test_a_size_that_meets_what_turns_out_to_be_1_may_be_any() -> None:
    """The second row of `x`, if there is one, meets `d` rows."""
    proto = model(
        """(float[c, 4] x, float[d, 4] z) => (float[n, 4] y)
        <int64[1] from = {1}, int64[1] to = {2}> { k = Slice(x, from, to)  y = Add(k, z) }"""
    )
    check(proto, *({"x": (c, 4), "z": (d, 4)} for c, d in [(2, 1), (3, 7), (5, 2), (2, 13), (1, 1), (1, 0), (0, 1)]))


@pytest.mark.parametrize("order", ["y = Add(x, z)  w = Squeeze(z, i)", "w = Squeeze(z, i)  y = Add(x, z)"])
def test_a_size_that_meets_a_squeezed_dimension_is_compiled(order: str) -> None:
    proto = model(f"(float[a, n] x, float[b, n] z) => (float[m, n] v) <int64[1] i = {{0}}> {{ {order} v = Mul(y, w) }}")
    check(proto, {"x": (1, 3), "z": (1, 3)}, {"x": (1, 0), "z": (1, 0)})
    assert not compile_model(proto, num_threads=1).explain()["host_steps"]
    if order.startswith("w"):
        check(proto, *({"x": (a, 3), "z": (1, 3)} for a in (0, 2, 5)))


def test_a_range_that_lacks_what_a_size_meets_leaves_1() -> None:
    proto = model("(float[b, 4] x, float[7, 4] z) => (float[7, 4] y) { y = Mul(x, z) }")
    with load(compile_model(proto, dims={"b": (1, 4)}).to_bytes()) as module:
        assert module.run({"x": np.ones((1, 4), np.float32), "z": np.ones((7, 4), np.float32)})["y"].shape == (7, 4)
        with pytest.raises(InputError, match=r"expected \(x: float32\[1, 4\]"):
            module.run({"x": np.ones((2, 4), np.float32), "z": np.ones((7, 4), np.float32)})


def test_a_size_that_is_made_of_others_is_not_taken_for_1() -> None:
    """Kernels would read it as if it were as long as what it meets."""
    text = """(float[b, c] x, float[7] z) => (float[7] y) <int64[1] i = {-1}> { f = Reshape(x, i)  y = Mul(f, z) }"""
    with pytest.raises(SizesClashError, match=r"shapes \(b \* c,\), \(7,\) do not broadcast"):
        compile_model(model(text), dims={"b": (1, 2), "c": (1, 2)})


def test_sizes_that_nothing_reconciles_are_named_with_a_remedy() -> None:
    """The model may be right for what is outside of the range."""
    with pytest.raises(SizesClashError, match=r"Mul_0.*do not broadcast.* where b = 2\.\.4, which .*--dim") as caught:
        compile_model(model("(float[b] x, float[7] z) => (float[7] y) { y = Mul(x, z) }"), dims={"b": (2, 4)})
    assert caught.value.exit_code == 2


def test_a_node_that_no_open_size_mends_is_invalid() -> None:
    text = "(float[b, 4] x, float[5, 3] w, float[b, 3] z) => (float[b, 3] y) { p = MatMul(x, w)  y = Add(p, z) }"
    with pytest.raises(InvalidNodeError, match=r"MatMul_0.*inner dimensions 4 and 5"):
        compile_model(model(text))


@pytest.mark.parametrize("condition", [0, 1])
@pytest.mark.parametrize(("first", "second"), [("1", "b"), ("b", "1"), ("a", "b")])
def test_what_a_known_condition_chooses_is_as_large_as_both_together(condition: int, first: str, second: str) -> None:
    proto = model(
        f"(float[{first}, 5] x, float[{second}, 5] z) => (float[n, 5] y) <bool c = {{{condition}}}>"
        " { y = Where(c, x, z) }"
    )
    sizes = [(m, n) for m, n in [(1, 1), (1, 3), (3, 1), (7, 7), (1, 0)] if first != "1" or m == 1]
    check(proto, *({"x": (m, 5), "z": (n, 5)} for m, n in sizes if second != "1" or n == 1))


def test_what_a_condition_chooses_of_the_same_is_as_large_as_the_condition() -> None:
    proto = model("(float[b, 5] x, float[1, 5] z) => (float[n, 5] y) { c = Less(x, x)  y = Where(c, z, z) }")
    check(proto, *({"x": (b, 5), "z": (1, 5)} for b in (0, 1, 3)))


@pytest.mark.parametrize(
    ("bounds", "least"), [("first = {-5}, int64[1] last = {-4}", 5), ("first = {4}, int64[1] last = {5}", 5)]
)
def test_one_element_of_an_open_dimension_meets_several(bounds: str, least: int) -> None:
    proto = model(
        f"""(float[b, m] x) => (float[b, n] y) <int64[1] {bounds}, int64[1] axis = {{1}}, float[3] c = {{1, 2, 3}}>
        {{ cut = Slice(x, first, last, axis)  joined = Concat<axis=1>(x, x, x)  y = Mul(cut, joined) }}"""
    )
    check(proto, *({"x": (b, m)} for b in (1, 3) for m in (least, 17)))
    with load(compile_model(proto).to_bytes()) as module, pytest.raises(InputError):
        module.run({"x": np.zeros((2, least - 1), np.float32)})
