"""Models whose sizes the data decides, or of texts, sequences and optional values, with inputs of a few sizes."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, parser
from torch import Tensor, nn

from benchmarks.zoo.sample import optional

WORDS = ("red", "green", "blue", "cyan", "orange", "violet")
HEAD = '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 3]> '

Feeds = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A model, and its inputs by a word for their size. partial: outputs of which a part is undefined."""

    model: onnx.ModelProto
    feeds: Mapping[str, Feeds]
    partial: Sequence[str] = ()


def random() -> np.random.Generator:
    return np.random.default_rng(0)


def rows(count: int, width: int = 8) -> np.ndarray:
    return random().standard_normal((count, width)).astype(np.float32)


# --- written by hand --------------------------------------------------------------------------------------------------


def written(text: str, feeds: Mapping[str, Feeds]) -> Case:
    return Case(parser.parse_model(HEAD + text), feeds)


def grown_sequence() -> Case:
    """A loop that inserts one more row than before into a sequence."""
    text = """g (float[n, 8] x, int64 count) => (float[m, 8] y) <bool on = {1}> {
        none = SequenceEmpty()
        all = Loop(count, on, none) <body = b (int64 i, bool go, seq(float[a, 8]) some)
            => (bool going, seq(float[a, 8]) more) <int64[1] nought = {0}, int64 one = {1}> {
            going = Identity(go)  next = Add(i, one)  end = Unsqueeze(next, nought)
            head = Slice(x, nought, end)  more = SequenceInsert(some, head) }>
        y = ConcatFromSequence<axis = 0>(all) }"""
    return written(text, {str(n): {"x": rows(n), "count": np.array(n)} for n in (1, 50, 500)})


def mapped_sequence() -> Case:
    """SequenceMap over the rows of a matrix."""
    text = """g (float[n, 8] x) => (float[m, 8] y) {
        parts = SplitToSequence<axis = 0>(x)
        done = SequenceMap(parts) <body = b (float[1, 8] v) => (float[1, 8] w) { t = Relu(v)  w = Add(t, t) }>
        y = ConcatFromSequence<axis = 0>(done) }"""
    return written(text, {str(n): {"x": rows(n)} for n in (1, 50)})


def chosen_optional() -> Case:
    """A branch makes an optional value, and another branch looks whether it has one."""
    text = """g (float[n, 6] x, bool c) => (float[m, 6] y, bool has) {
        o = If(c) <then_branch = t () => (optional(float[n, 6]) a) { a = Optional(x) },
            else_branch = e () => (optional(float[n, 6]) a) { a = Optional<type: type_proto = float[n, 6]>() }>
        has = OptionalHasElement(o)
        y = If(has) <then_branch = t () => (float[m, 6] v) { v = OptionalGetElement(o) },
            else_branch = e () => (float[m, 6] v) { v = Neg(x) }> }"""
    return written(text, {f"17, {c}": {"x": rows(17, 6), "c": np.array(c)} for c in (True, False)})


def given_optional() -> Case:
    """An optional input, and a branch for when it is there."""
    text = """g (optional(float[n, 6]) o, float[n, 6] d) => (float[n, 6] y) {
        has = OptionalHasElement(o)
        y = If(has) <then_branch = t () => (float[n, 6] v) { v0 = OptionalGetElement(o)  v = Exp(v0) },
            else_branch = e () => (float[n, 6] v) { v = Neg(d) }> }"""
    d = rows(17, 6)
    return written(text, {"17, given": {"o": d, "d": d}, "17, absent": {"o": None, "d": d}})


def crops() -> Case:
    """TensorFlow's crop_and_resize, as tf2onnx writes it: a loop over boxes."""
    text = """g (float[n, 32, 32, 16] x, float[m, 4] boxes, int32[k] image) => (float[j, 7, 7, 16] y) <bool on = {1}> {
        count = Size(image)
        y = Loop(count, on) <body = b (int64[1] i, bool go) => (bool going, float[h, w, c] crop)
            <int64[1] one = {1}, int64[1] four = {4}, int64[1] first = {0}, int32[1] nought = {0},
            int32[1] single = {1}, int64[1] half = {2}, float[2] zeros = {0, 0}, float[2] ones = {1, 1},
            float[0] none = {}, int64[2] hw = {7, 7}> {
            going = Identity(go)  next = Add(i, one)
            row = Slice(boxes, i, next, first)  box = Reshape(row, four)
            low = Slice(box, first, half)  high = Slice(box, half, four)
            roi = Concat<axis = 0>(zeros, low, ones, high)
            from = Slice(image, i, next)  to = Add(from, single)  taken = Slice(x, from, to, nought)
            planes = Transpose<perm = [0, 3, 1, 2]>(taken)  all = Shape(planes)  head = Slice(all, first, half)
            sizes = Concat<axis = 0>(head, hw)
            resized = Resize<coordinate_transformation_mode = "tf_crop_and_resize", mode = "linear">(
                planes, roi, none, sizes)
            back = Transpose<perm = [0, 2, 3, 1]>(resized)  crop = Squeeze(back, first) }> }"""
    x = random().random((3, 32, 32, 16), np.float32)
    corners = np.sort(random().random((100, 2, 2)), 1).reshape(-1, 4).astype(np.float32)
    images = random().integers(0, 3, 100).astype(np.int32)
    return written(text, {f"{n} boxes": {"x": x, "boxes": corners[:n], "image": images[:n]} for n in (1, 10, 100)})


def appended_tokens() -> Case:
    """A loop that appends a token to what it carries, as a decoder exported with its loop does."""
    text = """g (int64[b, s] start, int64 count, float[50, 16] table, float[16, 50] last) => (int64[b, t] tokens)
        <bool on = {1}> {
        tokens = Loop(count, on, start) <body = b (int64 i, bool go, int64[b2, s2] before)
            => (bool going, int64[b2, s3] after) <int64[1] one = {1}> {
            going = Identity(go)  rows = Gather(table, before)  mean = ReduceMean<keepdims = 0>(rows, one)
            state = Tanh(mean)  scores = MatMul(state, last)  next = ArgMax<axis = 1, keepdims = 1>(scores)
            after = Concat<axis = 1>(before, next) }> }"""
    weights = {"table": rows(50, 16), "last": rows(16, 50)}
    start = np.array([[7], [9]])
    return written(text, {f"{n} tokens": {"start": start, "count": np.array(n), **weights} for n in (1, 12, 100)})


def joined_texts() -> Case:
    """Words put together, and compared with a pattern."""
    text = """g (string[n] a, string[n] b) => (string[n] y, bool[n] z) {
        y = StringConcat(a, b)  z = RegexFullMatch<pattern = "re.*n">(y) }"""
    return written(text, {str(n): {"a": words(n), "b": words(n)[::-1].copy()} for n in (1, 17, 1000)})


def split_texts() -> Case:
    """Lines split at commas."""
    text = """g (string[n] x) => (string[n, k] y, int64[n] z) { y, z = StringSplit<delimiter = ",">(x) }"""
    lines = {n: np.array([",".join(words(5)[: 1 + i % 5]) for i in range(n)], object) for n in (1, 17, 1000)}
    return written(text, {str(n): {"x": lines[n]} for n in lines})


def normal_texts() -> Case:
    """Words in lower case without stop words."""
    text = """g (string[n] x) => (string[k] y) {
        y = StringNormalizer<case_change_action = "LOWER", locale = "C", stopwords = ["red", "blue"]>(x) }"""
    return written(text, {str(n): {"x": words(n)} for n in (1, 17, 1000)})


def words(count: int) -> np.ndarray:
    return np.array(WORDS, object)[random().integers(0, len(WORDS), count)]


def windowed_cache() -> Case:
    """A step of decoding with caches of the last 1,024 tokens, as ONNX Runtime's model builder writes Gemma 3."""
    return decoding_step((300, 1000, 3000), local_window_size=512, sliding_window_cache=1)


def whole_cache() -> Case:
    """A step of decoding with caches that have room for 1,024 tokens; an input tells how many there are."""
    return decoding_step((300, 1000))


def decoding_step(totals: Sequence[int], **attributes: int) -> Case:
    heads, shared, width, room = 8, 2, 64, 1024
    kind, cache = TensorProto.FLOAT, ["b", shared, room, width]
    inputs: list[tuple[str, int, list[Any]]] = [
        ("q", kind, ["b", "s", heads * width]), ("k", kind, ["b", "s", shared * width]),
        ("v", kind, ["b", "s", shared * width]), ("pk", kind, cache), ("pv", kind, cache),
        ("lens", TensorProto.INT32, ["b"]), ("total", TensorProto.INT32, []),
    ]  # fmt: skip
    node = helper.make_node(
        "GroupQueryAttention", [name for name, *_ in inputs], ["y", "nk", "nv"], domain="com.microsoft",
        num_heads=heads, kv_num_heads=shared, **attributes,
    )  # fmt: skip
    outputs = [("y", kind, ["b", "s", heads * width]), ("nk", kind, cache), ("nv", kind, cache)]
    infos = ([helper.make_tensor_value_info(*one) for one in some] for some in (inputs, outputs))
    graph = helper.make_graph([node], "g", *infos)
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)

    def feeds(tokens: int, new: int = 1) -> Feeds:
        made = {
            name: random().standard_normal([{"b": 1, "s": new}.get(n, n) for n in shape]).astype(np.float32)
            for name, kind_, shape in inputs if kind_ == kind
        }  # fmt: skip
        return {**made, "lens": np.array([tokens - 1], np.int32), "total": np.array(tokens, np.int32)}

    return Case(model, {f"token {tokens}": feeds(tokens) for tokens in totals}, ("nk", "nv"))


# --- exported from PyTorch --------------------------------------------------------------------------------------------


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: Tensor) -> Any:
        return self.function(*values)


def exported(function: Callable[..., Any], examples: Mapping[str, tuple[Tensor, ...]]) -> Case:
    """A function exported for any number of rows, and its arguments."""
    named = {word: {f"x{i}": value for i, value in enumerate(values)} for word, values in examples.items()}
    largest = list(examples.values())[-1]
    open_ = tuple({0: torch.export.Dim.AUTO} if value.dim() else None for value in largest)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        program = torch.onnx.export(
            Function(function), largest, dynamo=True, dynamic_shapes=(open_,), input_names=list(named[min(named)]),
            verbose=False, opset_version=20,
        )  # fmt: skip
    assert program is not None
    return Case(program.model_proto, {word: _numpy(values) for word, values in named.items()})


def _numpy(values: Mapping[str, Tensor]) -> Feeds:
    return {name: value.numpy() for name, value in values.items()}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def floats(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator())


def integers(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape, generator=generator())


SIZES = (1, 30, 10_000)


def unique() -> Case:
    function = lambda x: torch.unique(x, return_inverse=True, return_counts=True)  # noqa: E731
    return exported(function, {str(n): (integers(max(1, n // 3), n),) for n in SIZES})


def nonzero() -> Case:
    return exported(torch.nonzero, {f"{n} x 5": (floats(n, 5).relu(),) for n in SIZES})


def chosen() -> Case:
    return exported(lambda x: x[x > 0], {f"{n} x 5": (floats(n, 5),) for n in SIZES})


def bincount() -> Case:
    return exported(lambda x: torch.bincount(x, minlength=10), {str(n): (integers(9, n),) for n in SIZES})


def repeated() -> Case:
    """As many copies of each row as the data says. The exporter compares every row with every result."""
    function = lambda x, count: torch.repeat_interleave(x, count, dim=0)  # noqa: E731
    return exported(function, {f"{n} x 5": (floats(n, 5), integers(4, n) + 1) for n in (1, 9, 300)})


def head_of_rows() -> Case:
    """The first elements of rows, as many as an input says."""
    function = lambda x, n: x[:, : n.item()].sum(1)  # noqa: E731
    return exported(function, {f"{n} x 64": (floats(n, 64), torch.tensor(20)) for n in (2, 3, 1000)})


def bags() -> Case:
    """EmbeddingBag as torch.onnx exports it from TorchScript: a loop over the bags."""
    module = nn.EmbeddingBag(1000, 16, mode="sum", include_last_offset=True)
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for count in (1, 8, 64):
        ends = torch.cumsum(integers(5, count), 0)
        found[f"{count} bags"] = (integers(1000, int(ends[-1])), torch.cat([torch.zeros(1, dtype=torch.int64), ends]))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = str(Path(folder) / "bags.onnx")
        torch.onnx.export(
            module.eval(), found["64 bags"], path, dynamo=False, input_names=["ids", "offsets"],
            dynamic_axes={"ids": {0: "n"}, "offsets": {0: "m"}}, opset_version=18,
        )  # fmt: skip
        model = onnx.load(path)
    return Case(model, {word: {"ids": i.numpy(), "offsets": o.numpy()} for word, (i, o) in found.items()})


# --- converted from scikit-learn --------------------------------------------------------------------------------------


def converted(estimator: Any, kind: str, width: int, feeds: Mapping[str, Feeds]) -> Case:
    type_ = getattr(optional("skl2onnx.common.data_types"), f"{kind}TensorType")([None, width])
    convert = optional("skl2onnx").convert_sklearn
    options = {id(estimator): {"zipmap": False}} if optional("sklearn.base").is_classifier(estimator) else None
    return Case(convert(estimator, initial_types=[("x", type_)], options=options, target_opset=18), feeds)


def imputer() -> Case:
    """A KNN imputer: what is absent is taken from the nearest rows."""
    x = rows(300, 7)
    x[random().random(x.shape) < 0.2] = np.nan
    model = optional("sklearn.impute").KNNImputer(n_neighbors=3).fit(x)
    return converted(model, "Float", 7, {str(n): {"x": x[:n]} for n in (1, 17, 300)})


def _tables() -> tuple[np.ndarray, Mapping[str, Feeds]]:
    x = words(2000).reshape(-1, 2)
    return x, {f"{n} x 2": {"x": x[:n]} for n in (1, 17, 1000)}


def words_one_hot() -> Case:
    x, feeds = _tables()
    model = optional("sklearn.preprocessing").OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(x)
    return converted(model, "String", 2, feeds)


def words_numbered() -> Case:
    x, feeds = _tables()
    unknown = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
    return converted(optional("sklearn.preprocessing").OrdinalEncoder(**unknown).fit(x), "String", 2, feeds)


def counted_words() -> Case:
    """Texts of words, of which those that are known are counted, and classes of these."""
    texts = np.array([[" ".join(words(100)[i % 90 : i % 90 + 3 + i % 7])] for i in range(1000)], object)
    steps = [
        optional("sklearn.feature_extraction.text").TfidfVectorizer(lowercase=False),
        optional("sklearn.linear_model").LogisticRegression(),
    ]
    model = optional("sklearn.pipeline").make_pipeline(*steps).fit(texts[:, 0], np.arange(1000) % 2)
    return converted(model, "String", 1, {str(n): {"x": texts[:n]} for n in (1, 17, 1000)})


CASES: Mapping[str, Callable[[], Case]] = {
    "crop_and_resize in a loop": crops, "tokens appended in a loop": appended_tokens,
    "sequence grown in a loop": grown_sequence, "SequenceMap": mapped_sequence, "optional of a branch": chosen_optional,
    "optional input": given_optional, "StringConcat, RegexFullMatch": joined_texts, "StringSplit": split_texts,
    "StringNormalizer": normal_texts, "windowed cache, 1,024 tokens": windowed_cache,
    "whole cache, 1,024 tokens": whole_cache, "torch.unique": unique,
    "torch.nonzero": nonzero, "x[x > 0]": chosen, "torch.bincount": bincount, "torch.repeat_interleave": repeated,
    "x[:, :n]": head_of_rows, "EmbeddingBag in a loop": bags, "KNNImputer": imputer,
    "OneHotEncoder of words": words_one_hot, "OrdinalEncoder of words": words_numbered,
    "TfidfVectorizer": counted_words,
}  # fmt: skip


def names(wanted: Sequence[str]) -> list[str]:
    """The cases whose names have one of these in them; all for none."""
    return [name for name in CASES if not wanted or any(part in name for part in wanted)]
