"""32-bit sizes and positions in kernels over open sizes, and the proofs that they are never too large."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import ModelProto, parser

from tests.codegen.cuda.wide_divisions import kernels_of, wide_divisions
from tests.compiler.test_open_cuda import FOUR_SIZES, NATIVE
from tests.compiler.test_open_kernels import HEAD
from tests.open_models.catalogue import fixture_of
from tilestitch.codegen.compute.narrow_sizes import NarrowSizes, _steps
from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel
from tilestitch.compiler.ir.sizes import Size, Symbol, at, ceil_div, largest, parse_size, size_of
from tilestitch.passes.plan.access.positions import INT32_ELEMENTS
from tilestitch.runtime import load
from tilestitch.runtime.errors import InputError

EMULATED = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulated device needs g++")
FITTING = {"b": (1, 64), "s": (1, 1 << 10)}
OWN_DIVISIONS = {"picked", "slices_added", "elements_replaced"}
"""Models that divide 64-bit data themselves."""
COUNTED_BY_FLOATS = {"floats_by_halves", "floats_from_0", "floats_to_0"}
"""Models whose sizes are claimed to be no larger than floats count exactly, so that nothing else is found by runs."""


def texts(compiled: CompiledModel) -> list[str]:
    return [kernels_of(data.decode()) for name, data in compiled.contents.extra.items() if name.endswith(".cu")]


def divisions(compiled: CompiledModel) -> list[str]:
    return [found for text in texts(compiled) for found in wide_divisions(text)]


def checks(compiled: CompiledModel) -> list[str]:
    """What runs of the first specialisation find to be counted in 32 bits."""
    return [str(check.left) for check in compiled.contents.programs[0].checks if check.right == INT32_ELEMENTS - 1]


@pytest.mark.parametrize("dims", [FITTING, {}], ids=["ranges", "default"])
def test_kernels_have_no_64_bit_divisions(dims: dict[str, tuple[int, int]]) -> None:
    for name in sorted(NATIVE.keys() - OWN_DIVISIONS - (set() if dims else COUNTED_BY_FLOATS)):
        compiled = compile_model(parser.parse_model(HEAD + NATIVE[name]), "emulator", dims=dims)
        assert divisions(compiled) == [], name
        assert bool(checks(compiled)) == (not dims), name


@pytest.mark.parametrize("name", FOUR_SIZES)
@pytest.mark.parametrize("are_given", [True, False])
def test_open_models_have_no_64_bit_divisions(name: str, are_given: bool) -> None:
    fixture = fixture_of(name)
    assert divisions(compile_model(fixture.model, "emulator", dims=dict(fixture.ranges) if are_given else {})) == []


def test_the_reader_of_cuda_text_finds_64_bit_divisions() -> None:
    text = """void f(int64_t* __restrict__ p0) { int64_t v = p0[0]; int w = ((int)v);
      int a = (w / 3); int64_t b = ((v + (int64_t)1) / (int64_t)2);
      int64_t c = ((((int64_t)w) * v) % w); int d = ((int)(v / w));
      float e = (p1[v] / x); int g = (min(w, ((int)v)) % w); int64_t h = (max(w, v) % w); }"""
    assert len(wide_divisions(text)) == 4


# -- sizes beyond 32 bits ----------------------------------------------------------------------------------------------

LINES = "(float[b, 1] x, float[s] w, int64[n] i) => (float[n] y)\n<int64[1] all = {-1}>\n" \
    "{ t = Add(x, w)  f = Reshape(t, all)  y = Gather(f, i) }"  # fmt: skip
LARGE = {"b": (1, 1 << 17), "s": (1, 1 << 17), "n": (1, 100)}


def lines() -> ModelProto:
    return parser.parse_model(HEAD + LINES)


def feeds_of(b: int, s: int, places: list[int]) -> dict[str, np.ndarray]:
    """Their sums tell rows and columns apart."""
    x = np.arange(b, dtype=np.float32)[:, None] * 0.5
    return {"x": x, "w": np.arange(s, dtype=np.float32) * 256, "i": np.array(places)}


@EMULATED
def test_ranges_that_ask_for_it_have_64_bit_positions() -> None:
    compiled = compile_model(lines(), "emulator", dims=LARGE)
    assert divisions(compiled) and not checks(compiled)
    with load(compiled.to_bytes(), device="emulator") as module:
        for b, s in ((3, 5), (1 << 16, (1 << 16) - 1)):
            places = [0, s, b * s // 2, b * s - s - 1, b * s - 1]
            feeds = feeds_of(b, s, places)
            rows, columns = np.divmod(np.array(places), s)
            wanted = feeds["x"][rows, 0] + feeds["w"][columns]
            np.testing.assert_array_equal(module.run(feeds)["y"], wanted)


@EMULATED
def test_what_is_too_large_for_32_bits_is_refused() -> None:
    compiled = compile_model(lines(), "emulator")
    assert divisions(compiled) == [] and checks(compiled) == ["b * s", "n"]
    with load(compiled.to_bytes(), device="emulator") as module:
        module.run(feeds_of(3, 5, [14]))
        with pytest.raises(InputError, match=r"b \* s must be at most 2146435071, but b \* s is 4294967296 .*sizes"):
            module.run(feeds_of(1 << 16, 1 << 16, [0]))


@EMULATED
def test_scores_of_attention_may_be_more_than_32_bits_count() -> None:
    """They have an index, but no position: no kernel stores them."""
    compiled = compile_model(fixture_of("llama.script").model, "emulator")
    attention = [k for k in compiled.explain()["kernels"] if k["kind"] == "attention"]
    assert attention and all("new * new * new" not in check for check in checks(compiled))


# -- proofs ------------------------------------------------------------------------------------------------------------

SYMBOLS = (Symbol("a", 1, 2**31 - 1), Symbol("b", 1, 64), Symbol("c", 1, 2**31 - 1, or_empty=True))
ATOMS: tuple[Size, ...] = tuple(map(size_of, SYMBOLS))


def sizes() -> st.SearchStrategy[Size]:
    leaf = st.one_of(st.sampled_from(ATOMS), st.integers(-40, 1 << 20))

    def larger(inner: st.SearchStrategy[Size]) -> st.SearchStrategy[Size]:
        return st.one_of(
            st.builds(lambda x, y: x + y, inner, inner), st.builds(lambda x, y: x * y, inner, inner),
            st.builds(lambda x, y: x - y, inner, inner), st.builds(largest, inner, inner),
            st.builds(ceil_div, inner, st.integers(1, 128)), st.builds(lambda x, y: x // y, inner, st.integers(1, 9)),
        )  # fmt: skip

    return st.recursive(leaf, larger, max_leaves=5)


EDGES = st.one_of(st.integers(1, 100), st.integers(1, 1 << 17), st.integers(2**31 - 2**21, 2**31 - 1))


@given(
    size=sizes(),
    counts=st.lists(sizes(), min_size=1, max_size=2),
    a=EDGES,
    b=st.integers(1, 64),
    c=EDGES,
    empty=st.booleans(),
)
def test_what_fits_is_an_int32_wherever_counts_are_small(
    size: Size, counts: list[Size], a: int, b: int, c: int, empty: bool
) -> None:
    values = {"a": a, "b": b, "c": 0 if empty else c}
    assume(all(at(count, values) < INT32_ELEMENTS for count in counts))
    narrow = NarrowSizes({}, counts, frozenset() if empty else frozenset(SYMBOLS[2:]))
    for step in (size, *_steps(size)):
        if narrow.fits(step):
            assert -(2**31) <= at(step, values) < 2**31


FITS = {
    "24 * a * b": True, "24 * a * b - 1": True, "24 * a": True, "a * b + 127": True, "(a + 127) // 128": True,
    "(a + 127) // 128 * ((b + 3) // 4)": True, "25 * a * b": False, "a * a": False, "0 - a * a": False,
}  # fmt: skip


@pytest.mark.parametrize("text", FITS)
def test_what_fits_below_a_count(text: str) -> None:
    symbols = {name: size_of(Symbol(name, 1, 2**31 - 1)) for name in "ab"}
    narrow = NarrowSizes({}, [parse_size("24 * a * b", symbols)], frozenset())
    assert narrow.fits(parse_size(text, symbols)) == FITS[text]


def test_a_count_of_nothing_proves_nothing() -> None:
    """Where c is 0, a may be anything."""
    a, _, c = ATOMS
    assert not NarrowSizes({}, [24 * a * c], frozenset()).fits(2 * a)
    assert NarrowSizes({}, [24 * a * c], frozenset(SYMBOLS[2:])).fits(2 * a)
