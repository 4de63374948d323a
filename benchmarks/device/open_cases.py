"""Kernels over open dimensions, each compiled once and judged at several sizes: small, prime, a little more than a
block, and none where the model allows that. Models are text; what is open in one has a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import parser

from tests.open_models.catalogue import fixture_of
from tests.open_models.sizes import spread

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
DTYPES = {1: np.float32, 7: np.int64, 9: np.bool_, 10: np.float16}
SEED = 20262
Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class OpenCase:
    """A model, and the sizes that it is run at. dims: ranges; without, all sizes and, where that is allowed, 0. donate:
    inputs that grow in the memory that they lie in.
    """

    text: str
    sizes: tuple[Mapping[str, int], ...]
    variant: str = "float32"
    dims: Mapping[str, tuple[int, int]] | None = None
    donate: tuple[str, ...] = ()

    def model(self) -> onnx.ModelProto:
        return parser.parse_model(HEAD + self.text)

    def feeds(self) -> list[Feeds]:
        rng, model = np.random.default_rng(SEED), self.model()
        return [{info.name: _array(rng, info, sizes) for info in model.graph.input} for sizes in self.sizes]


@dataclass(frozen=True)
class OpenModel:
    """A small model as exporters write it, at four sizes of its ranges, both ends among them."""

    name: str
    variant: str = "float32"
    donate: tuple[str, ...] = ()

    @property
    def dims(self) -> Mapping[str, tuple[int, int]]:
        return fixture_of(self.name).ranges

    def model(self) -> onnx.ModelProto:
        return fixture_of(self.name).model

    def feeds(self) -> list[Feeds]:
        fixture = fixture_of(self.name)
        return [fixture.feeds(at, np.random.default_rng(n)) for n, at in enumerate(spread(fixture.ranges, 4))]


def _array(rng: np.random.Generator, info: onnx.ValueInfoProto, sizes: Mapping[str, int]) -> np.ndarray:
    """Floats of a normal distribution; places in whatever has elements; of three flags, the second."""
    tensor = info.type.tensor_type
    shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in tensor.shape.dim]
    dtype = DTYPES[tensor.elem_type]
    if dtype == np.bool_:
        return np.arange(np.prod(shape)).reshape(shape) % 3 == 1
    return rng.standard_normal(shape).astype(dtype) if dtype != np.int64 else np.zeros(shape, np.int64)


def _all(*names: str, sizes: tuple[int, ...] = (1, 5, 67, 257)) -> tuple[dict[str, int], ...]:
    """Sizes, each dimension through all of them at its own pace."""
    count = len(sizes)
    return tuple({name: sizes[(i * (1 + n % 2 * 2) + n) % count] for n, name in enumerate(names)} for i in range(count))


def _matmuls(kind: str) -> str:
    return f"({kind}[b, s, k] x, {kind}[b, k, t] u) => ({kind}[b, s, t] y) {{ p = MatMul(x, u)  y = Tanh(p) }}"


FEW_ROWS = ({"b": 1, "s": 1}, {"b": 1, "s": 3}, {"b": 2, "s": 17}, {"b": 1, "s": 70})
"""For which GEMMs split their reduction, in several ways."""

DECODED = tuple(
    {"b": b, "s": s, "t": t} for b, s, t in ((1, 1, 5001), (2, 3, 700), (1, 70, 300), (1, 1, 1), (3, 1, 257))
)
"""Keys in many parts, in few, in one."""


CASES: Mapping[str, OpenCase | OpenModel] = {
    "elementwise": OpenCase(
        "(float[b, s, 24] x, float[24] w) => (float[b, 24, s] y)\n"
        "{ a = Mul(x, w)  t = Tanh(a)  y = Transpose<perm=[0, 2, 1]>(t) }",
        (*_all("b", "s", sizes=(1, 5, 31, 67)), {"b": 0, "s": 5}, {"b": 5, "s": 0}),
    ),
    "rows": OpenCase(
        "(float[b, s] x) => (float[b, s] y) { y = Softmax<axis=-1>(x) }",
        (*_all("b", "s", sizes=(1, 31, 67, 257)), {"b": 2, "s": 9001}, {"b": 0, "s": 5}),
    ),
    "rows.half": OpenCase(
        "(float16[b, s] x) => (float16[b, s] y) { y = Softmax<axis=-1>(x) }", _all("b", "s"), "float16"
    ),
    "columns": OpenCase(
        "(float[b, 7, s] x) => (float[b, 7, s] y) { m = ReduceMean<axes=[1]>(x)  y = Sub(x, m) }", _all("b", "s")
    ),
    "gemm": OpenCase(_matmuls("float"), _all("b", "s", "k", "t", sizes=(1, 3, 17, 129))),
    "gemm.half": OpenCase(_matmuls("float16"), _all("b", "s", "k", "t", sizes=(1, 3, 17, 129)), "float16"),
    "split": OpenCase(
        "(float[b, s, 1024] x, float[1024, 40] u) => (float[b, s, 40] y) { p = MatMul(x, u)  y = Tanh(p) }",
        FEW_ROWS,
    ),
    "split.half": OpenCase(
        "(float16[b, s, 1024] x, float16[1024, 40] u) => (float16[b, s, 40] y) { p = MatMul(x, u)  y = Tanh(p) }",
        FEW_ROWS, "float16",
    ),
    "image": OpenCase(
        "(float[b, 3, h, w] x, float[8, 3, 3, 3] f) => (float[b, 8, h, w] y)\n"
        "{ c = Conv<pads=[1, 1, 1, 1]>(x, f)  p = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(c)  y = Relu(p) }",
        _all("b", "h", "w", sizes=(1, 2, 13, 31)),
    ),
    "best": OpenCase(
        "(float[b, s] x, float[b, 5] u) => (float[b, 5] y, int64[b, 5] i) <int64[1] k = {5}>\n"
        "{ c = Concat<axis=1>(x, u)  y, i = TopK(c, k) }",
        _all("b", "s"),
    ),
    "running": OpenCase(
        "(float[b, s] x) => (float[b, s] y) <int64 a = {1}> { y = CumSum<exclusive=1>(x, a) }", _all("b", "s")
    ),
    "scattered": OpenCase(
        "(float[b, s] x, int64[b, 1] i, float[b, s] u) => (float[b, s] y)\n"
        '{ y = ScatterND<reduction="add">(x, i, u) }',
        _all("b", "s"),
    ),
    "suppressed": OpenCase(
        "(float[b, n, 4] x, float[b, c, n] s) => (int64[k, 3] y) <int64[1] m = {300}, float[1] o = {0.3}>\n"
        "{ y = NonMaxSuppression(x, s, m, o) }",
        ({"b": 1, "n": 1, "c": 1}, {"b": 2, "n": 257, "c": 3}, {"b": 1, "n": 1009, "c": 2}, {"b": 1, "n": 0, "c": 2}),
    ),
    "regions": OpenCase(
        "(float[b, c, h, w] x, float[n, 4] r, int64[n] i) => (float[n, c, 3, 5] y)\n"
        "{ y = RoiAlign<output_height=3, output_width=5, sampling_ratio=2, spatial_scale=4.0>(x, r, i) }",
        _all("b", "c", "h", "w", "n", sizes=(1, 3, 7, 31)),
    ),
    "cache": OpenCase(
        "(float[b, 2, past, 8] old, float[b, 2, new, 8] x) => (float[b, 2, t, 8] whole, float[b, 2, new, 8] y)\n"
        "{ whole = Concat<axis=2>(old, x)  turned = Transpose<perm=[0, 1, 3, 2]>(whole)  s = MatMul(x, turned)\n"
        "w = Softmax<axis=-1>(s)  y = MatMul(w, whole) }",
        (*_all("b", "past", "new", sizes=(1, 3, 17, 129)), {"b": 2, "past": 0, "new": 5}),
        donate=("old",),
    ),
    "decode": OpenCase(
        "(float[b, 2, s, 8] x, float[b, 2, 8, t] k, float[b, 2, t, 8] v) => (float[b, 2, s, 8] y)\n"
        "{ a = MatMul(x, k)  w = Softmax<axis=-1>(a)  y = MatMul(w, v) }",
        DECODED,
    ),
    "decode.half": OpenCase(
        "(float16[b, 2, s, 16] x, float16[b, 2, 16, t] k, float16[b, 2, t, 16] v) => (float16[b, 2, s, 16] y)\n"
        "{ a = MatMul(x, k)  w = Softmax<axis=-1>(a)  y = MatMul(w, v) }",
        DECODED, "float16",
    ),
    "some_or_none": OpenCase(
        "(float[n, 2] x, bool[n] m) => (float[k, 3] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}>\n"
        "{ g = Compress<axis=0>(x, m)  y = MatMul(g, w) }",
        ({"n": 1}, {"n": 2}, {"n": 97}, {"n": 1000}),
    ),
    "places": OpenCase(
        "(bool[a, b, 5] x) => (int64[3, k] y) { y = NonZero(x) }",
        ({"a": 1, "b": 1}, {"a": 3, "b": 7}, {"a": 67, "b": 31}, {"a": 2, "b": 0}),
    ),
    "distinct": OpenCase(
        "(float[n, 2] x) => (float[k, 2] y, int64[k] f, int64[n] w, int64[k] c, float[j] z)\n"
        "{ r = Round(x)  y, f, w, c = Unique<axis=0, sorted=0>(r)  z = Unique(r) }",
        ({"n": 1}, {"n": 2}, {"n": 97}, {"n": 1030}),
    ),
    "llama": OpenModel("llama.script"),
    "llama.caches": OpenModel("llama.script", donate=("past_key_values.*",)),
    "encoder": OpenModel("encoder.script"),
    "mobilenet": OpenModel("mobilenet.script"),
}  # fmt: skip
