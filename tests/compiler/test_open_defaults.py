"""Without ranges or shapes, on CPUs: open dimensions are compiled for all sizes, or left to the host."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, parser
from onnxruntime import InferenceSession

from tilestitch.codegen import assemble
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler import CompiledModel, compile_model, specialise
from tilestitch.compiler.cli import errors, main
from tilestitch.compiler.conformance.__main__ import main as conformance
from tilestitch.compiler.errors import OptionError
from tilestitch.compiler.frontend import importer
from tilestitch.compiler.frontend.errors import ModelError
from tilestitch.compiler.ir import Graph
from tilestitch.compiler.specialise import MOST_EMPTY
from tilestitch.passes.errors import PassError
from tilestitch.runtime import load
from tilestitch.runtime.errors import InputError
from tilestitch.runtime.value_info import MOST_TOLD

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
LARGEST = 2**31 - 1


def model(text: str) -> ModelProto:
    return parser.parse_model(HEAD + text)


def ranges(compiled: CompiledModel) -> list[dict[str, tuple[int, int]]]:
    """Of each specialisation, in their order."""
    everything = [s.explanation["sizes"]["symbols"] for s in compiled.specialisations]
    return [{symbol["name"]: (symbol["low"], symbol["high"]) for symbol in symbols} for symbols in everything]


NEG = "(float[n, 3] x) => (float[n, 3] y) { y = Neg(x) }"
CACHE = "(float[past, 2] x, float[new, 2] w) => (float[t, 2] y) { n = Neg(w)  y = Concat<axis=0>(x, n) }"


def test_an_open_model_becomes_kernels_for_all_sizes() -> None:
    compiled = compile_model(model(NEG))
    assert (compiled.explain()["host"]["steps"], ranges(compiled)) == (0, [{"n": (1, LARGEST)}, {"n": (0, 0)}])
    with load(compiled.to_bytes()) as module:
        for n in (0, 1, 2, 7, 100):
            np.testing.assert_array_equal(module.run({"x": np.ones((n, 3), np.float32)})["y"], np.full((n, 3), -1))


def test_the_explanation_tells_default_ranges_from_given_ones() -> None:
    text = "(float[n, m] x) => (float[n, m] y) { y = Neg(x) }"
    symbols = compile_model(model(text), dims={"n": (2, 4)}).specialisations[0].explanation["sizes"]["symbols"]
    assert {symbol["name"]: symbol["default"] for symbol in symbols} == {"n": False, "m": True}


@pytest.mark.parametrize(("n", "m"), [(0, 5), (4, 0), (4, 5)])
def test_where_one_size_is_0_the_others_are_open(n: int, m: int) -> None:
    text = "(float[n, m] x) => (float[n, m] y, float[m, n] z) { y = Neg(x)  z = Transpose(y) }"
    with load(compile_model(model(text)).to_bytes()) as module:
        y, z = module.run({"x": np.ones((n, m), np.float32)}).values()
        assert (y.shape, z.shape) == ((n, m), (m, n))


def test_a_static_model_has_no_sizes_to_tell() -> None:
    compiled = compile_model(model(NEG.replace("n,", "4,")))
    assert (ranges(compiled), compiled.explain()["sizes"]["refused"]) == ([{}], "")


def test_a_model_that_forbids_size_0_is_compiled_without() -> None:
    """Reshape takes 0 for the size of its operand, which is another here."""
    text = """(float[n, 6] x) => (float[a, b, c] y) <int64[2] t = {2, 3}>
        { s = Shape<start=0, end=1>(x)  u = Concat<axis=0>(t, s)  r = Reshape(x, u)  y = Neg(r) }"""
    compiled = compile_model(model(text))
    assert ranges(compiled) == [{"n": (1, LARGEST)}]


def test_a_cache_may_be_empty() -> None:
    """An input that something is concatenated to."""
    compiled = compile_model(model(CACHE))
    assert [sizes["past"] for sizes in ranges(compiled)] == [(1, LARGEST), (0, 0), (1, LARGEST), (0, 0)]
    with load(compiled.to_bytes()) as module:
        assert [str(info) for info in module.inputs] == ["x: float32[past:0.., 2]", "w: float32[new:0.., 2]"]
        for past, new in ((0, 3), (1, 1), (9, 2), (4, 0), (0, 0)):
            x, w = np.ones((past, 2), np.float32), np.full((new, 2), 2, np.float32)
            np.testing.assert_array_equal(module.run({"x": x, "w": w})["y"], np.concatenate([x, -w]))


def test_dozens_of_caches_may_be_empty() -> None:
    """Not all of their 2**30 sets are tried."""
    names = [f"x{i}" for i in range(30)]
    inputs = ", ".join(f"float[n{i}] {name}" for i, name in enumerate(names))
    compiled = compile_model(model(f"({inputs}) => (float[n] y) {{ y = Concat<axis=0>({', '.join(names)}) }}"))
    with load(compiled.to_bytes()) as module:
        feeds = {name: np.full(i % 3 + 1, i, np.float32) for i, name in enumerate(names)}
        np.testing.assert_array_equal(module.run(feeds)["y"], np.concatenate(list(feeds.values())))


def test_a_model_is_read_once_whatever_the_number_of_its_specialisations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(model(CACHE), tmp_path / "m.onnx")
    read: list[Path] = []
    load_model = importer.load_model

    def counted(path: Path) -> ModelProto:
        read.append(path)
        return load_model(path)

    monkeypatch.setattr(importer, "load_model", counted)
    assert len(compile_model(tmp_path / "m.onnx").specialisations) == 4
    assert len(read) == 1


def test_a_size_of_1_meets_others_while_another_dimension_is_0() -> None:
    compiled = compile_model(model("(float[a, s] x, float[b, s] w) => (float[c, s] y) { y = Sub(x, w) }"))
    with load(compiled.to_bytes()) as module:
        for a, b, s in [(1, 5, 0), (5, 1, 0), (1, 5, 3), (5, 5, 0), (1, 1, 0), (1, 1, 1), (0, 0, 3)]:
            x, w = np.ones((a, s), np.float32), np.full((b, s), 2, np.float32)
            np.testing.assert_array_equal(module.run({"x": x, "w": w})["y"], x - w)


def test_what_is_made_for_size_0_unasked_is_left_out_where_it_would_need_the_host() -> None:
    text = "(float[n] x, float[m] w) => (float[k] y) { c = Concat<axis=0>(x, w)  y = Softmax(c) }"
    assert compile_model(model(text), host_steps=False).explain()["host"]["steps"] == 0


def test_a_cache_with_a_range_has_that_range() -> None:
    assert ranges(compile_model(model(CACHE), dims={"past": (2, 9)})) == [
        {"past": (2, 9), "new": (1, LARGEST)}, {"past": (2, 9), "new": (0, 0)},
    ]  # fmt: skip


def test_sizes_of_0_are_served_one_by_one_if_they_are_many() -> None:
    names = [f"x{i}" for i in range(MOST_EMPTY + 1)]
    inputs = ", ".join(f"float[n{i}] {name}" for i, name in enumerate(names))
    compiled = compile_model(model(f"({inputs}) => (float[t] y) {{ y = Concat<axis=0>({', '.join(names)}) }}"))
    assert len(compiled.specialisations) == 1 + MOST_EMPTY + 1  # the last one for no elements at all
    with load(compiled.to_bytes()) as module:
        assert module.run({name: np.ones(0, np.float32) for name in names})["y"].shape == (0,)


def test_a_message_lists_some_of_many_specialisations() -> None:
    with (
        load(compile_model(model(SUM)).to_bytes()) as module,
        pytest.raises(InputError, match=r"or [0-9]+ more") as caught,
    ):
        module.run({"x": np.ones((2, 4), np.float32), "z": np.ones((3, 4), np.float32)})
    assert str(caught.value).count(" or (x: ") == MOST_TOLD - 1


SUM = "(float[a, b] x, float[c, d] z) => (float[e, f] y) { s = Add(x, z)  y = Tanh(s) }"


PAIRS = [(3, 3), (1, 3), (3, 1), (1, 1), (0, 0), (0, 1), (1, 0)]


def test_sizes_of_1_meet_others_in_a_broadcast() -> None:
    """Dimensions of other names: each may be 1 where the one that it meets is longer, or 0; or 0 together with it."""
    compiled = compile_model(model(SUM))
    assert compiled.explain()["host"]["steps"] == 0
    random = np.random.default_rng(0)
    with load(compiled.to_bytes(), num_threads=1) as module:
        sizes = [*product([(3, 3), (1, 3), (3, 1), (1, 1)], [(20, 20), (1, 20), (20, 1)])]
        empty = [each for each in product(PAIRS, PAIRS) if 0 in (*each[0], *each[1])]
        for rows, columns in [*sizes, *empty]:
            x, z = (random.standard_normal(shape, np.float32) for shape in zip(rows, columns, strict=True))
            np.testing.assert_allclose(module.run({"x": x, "z": z})["y"], np.tanh(x + z), rtol=1e-5, atol=1e-6)
        with pytest.raises(InputError, match="make the inputs' shapes agree"):
            module.run({"x": np.ones((2, 4), np.float32), "z": np.ones((3, 4), np.float32)})


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (
            "(float[a, 3, c, d] x, float[e, f, h, 2] z) => (float[n, 3, o, p] y) { y = GridSample(x, z) }",
            {"x": (2, 3, 5, 7), "z": (2, 3, 2, 2)},
        ),
        (
            """(float[1, 1, h, 9] x, float[1, 1, h, 8] z) => (float[n, 1, 2, 2] y) <
              int64[4] images = {-1, 1, 3, 3}, int64[4] grids = {-1, 2, 2, 2}> {
              a = MaxPool<kernel_shape = [1, 1], strides = [2, 1]>(x)
              b = AveragePool<kernel_shape = [2, 1], strides = [2, 1]>(z)
              c = Reshape(a, images)  d = Reshape(b, grids)  e = Tanh(d)  y = GridSample(c, e)
            }""",
            {"x": (1, 1, 6, 9), "z": (1, 1, 6, 8)},
        ),
        (
            "(float[a, 3, 9, 9] x, float[e, 4] z, int64[f] i) => (float[n, 3, 2, 2] y)"
            " { y = RoiAlign<output_height = 2, output_width = 2>(x, z, i) }",
            {"x": (2, 3, 9, 9), "z": (5, 4), "i": (5,)},
        ),
    ],
)
def test_sizes_that_an_operator_needs_to_be_equal_are(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    """Exporters of PyTorch's dimensions that are found automatically name them differently."""
    proto = model(text)
    compiled = compile_model(proto, num_threads=1)
    assert compiled.explain()["host"]["steps"] == 0
    random = np.random.default_rng(0)
    feeds = {name: random.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    feeds |= {name: np.arange(5) % 2 for name in feeds if name == "i"}
    expected = InferenceSession(proto.SerializeToString()).run(None, feeds)[0]
    with load(compiled.to_bytes(), num_threads=1) as module:
        np.testing.assert_allclose(module.run(feeds)["y"], expected, rtol=1e-4, atol=1e-5)
        with pytest.raises(InputError):
            module.run({**feeds, "z": feeds["z"][:-1]})


def test_two_of_three_sizes_that_meet_are_1() -> None:
    compiled = compile_model(model("(float[a] x, float[b] w, float[c] z) => (float[d] y) { y = Sum(x, w, z) }"))
    with load(compiled.to_bytes(), num_threads=1) as module:
        for sizes in product((1, 3), repeat=3):
            x, w, z = (np.arange(size, dtype=np.float32) for size in sizes)
            np.testing.assert_array_equal(module.run({"x": x, "w": w, "z": z})["y"], x + w + z)


def test_a_size_of_1_meets_a_constant() -> None:
    scaled = model("(float[n] x) => (float[m] y) <float[3] k = {1, 2, 3}> { y = Mul(x, k) }")
    with load(compile_model(scaled).to_bytes(), num_threads=1) as module:
        for n in (1, 3):
            np.testing.assert_array_equal(module.run({"x": np.full(n, 2, np.float32)})["y"], [2, 4, 6])


def test_a_range_without_1_has_no_size_of_1() -> None:
    first, *others = ranges(compile_model(model(SUM), dims=dict.fromkeys("abcd", (2, 9))))
    assert first == {"a": (2, 9), "b": (2, 9)} and not others


def test_what_else_is_computed_with_a_size_of_1_has_that() -> None:
    text = "(float[a] x, float[b] z) => (float[c] y, float[d] t) <int64 i = {0}> { y = Add(x, z)  t = CumSum(z, i) }"
    with load(compile_model(model(text)).to_bytes(), num_threads=1) as module:
        y, t = module.run({"x": np.ones(1, np.float32), "z": np.ones(3, np.float32)}).values()
        assert (y.tolist(), t.tolist()) == ([2, 2, 2], [1, 2, 3])
        y, t = module.run({"x": np.ones(3, np.float32), "z": np.ones(1, np.float32)}).values()
        assert (y.tolist(), t.tolist()) == ([2, 2, 2], [1])


def test_long_models_are_compiled_for_sizes_of_1_where_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specialise, "MOST_NODES", 1)
    x, z = np.ones((1, 4), np.float32), np.ones((3, 4), np.float32)
    with load(compile_model(model(SUM)).to_bytes()) as module, pytest.raises(InputError, match="but a is 1"):
        module.run({"x": x, "z": z})
    with load(compile_model(model(SUM), favour=[{"a": 1}]).to_bytes()) as module:
        assert module.run({"x": x, "z": z})["y"].shape == (3, 4)


@pytest.mark.parametrize("refused", [1, 0])
def test_sizes_that_were_added_unasked_are_left_out_where_their_kernels_are_refused(
    monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """Sizes of 1 or 0 have none; all others keep theirs."""
    lower = assemble.lower_with

    def lowered(kernels: Any, backend: Any, graph: Graph, *rest: Any) -> Any:
        if any(refused in value.tensor_type.shape for value in graph.inputs):
            raise KernelError("refused")
        return lower(kernels, backend, graph, *rest)

    monkeypatch.setattr(assemble, "lower_with", lowered)
    compiled = compile_model(model(SUM), num_threads=1)
    assert not any(s.explanation["host"]["steps"] for s in compiled.specialisations)
    with load(compiled.to_bytes()) as module:
        assert module.run({"x": np.ones((3, 4), np.float32), "z": np.ones((3, 4), np.float32)})["y"].shape == (3, 4)
        few = {"x": np.ones((refused, 4), np.float32), "z": np.ones((1, 4), np.float32)}
        with pytest.raises(InputError, match="compile with --dim or --shape for others"):
            module.run({"x": np.ones((3, 4), np.float32), "z": few["x"]} if refused else few)


def test_a_kernel_that_was_asked_for_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def lowered(*_: Any) -> Any:
        raise KernelError("refused")

    monkeypatch.setattr(assemble, "lower_with", lowered)
    with pytest.raises(KernelError, match="refused"):
        compile_model(model(SUM), dims={"a": (1, 64)}, num_threads=1)


def test_shapes_leave_ranges_to_the_other_inputs() -> None:
    text = "(float[n] x, float[m] z) => (float[n] y, float[m] t) { y = Neg(x)  t = Exp(z) }"
    compiled = compile_model(model(text), shapes={"x": (2,)})
    assert (compiled.explain()["host"]["steps"], ranges(compiled)[0]) == (0, {"m": (1, LARGEST)})


PARTS = """(float[rows, 4] x, float[images, 6, 4] image) => (float[images, 6, each] y)
<int64[1] first = {0}, int64[1] depth = {4}> {
  sx = Shape(x)  rows = Gather(sx, first)  si = Shape(image)  images = Gather(si, first)  each = Div(rows, images)
  shape = Concat<axis=0>(images, each, depth)  parts = Reshape(x, shape)  turned = Transpose<perm=[0, 2, 1]>(parts)
  y = MatMul(image, turned)
}"""
"""Queries of an open-vocabulary detector, as many for each image."""
PAIR = "(float[n, m] x) => (float[6] y) <int64[1] s = {6}> { r = Reshape(x, s)  y = Neg(r) }"
"""What is claimed of two sizes together is no range of either."""
PRODUCT = "(float[n, n, m, k] x) => (float[257] y) <int64[1] s = {257}> { r = Reshape(x, s)  y = Neg(r) }"
"""Of three, one of them squared, no sizes are found."""


def test_two_sizes_of_which_a_claim_leaves_few_are_compiled() -> None:
    compiled = compile_model(model(PAIR))
    assert compiled.explain()["host"]["steps"] == 0
    with load(compiled.to_bytes()) as module:
        for n in (1, 2, 3, 6):
            x = np.arange(6, dtype=np.float32).reshape(n, -1)
            np.testing.assert_array_equal(module.run({"x": x})["y"], -x.reshape(6))
        with pytest.raises(InputError, match="must be 0"):
            module.run({"x": np.zeros((2, 4), np.float32)})


def test_rows_are_cut_into_parts_of_a_number_that_another_input_has() -> None:
    compiled = compile_model(model(PARTS))
    assert compiled.explain()["host"]["steps"] == 0
    random = np.random.default_rng(0)
    with load(compiled.to_bytes()) as module:
        for rows, images in ((6, 2), (3, 3), (5, 1), (12, 4)):
            x = random.random((rows, 4), np.float32)
            image = random.random((images, 6, 4), np.float32)
            want = image @ x.reshape(images, -1, 4).transpose(0, 2, 1)
            np.testing.assert_allclose(module.run({"x": x, "image": image})["y"], want, rtol=1e-6)
        for rows in (1, 5):
            with pytest.raises(InputError, match="must be 0"):
                module.run({"x": np.zeros((rows, 4), np.float32), "image": np.zeros((2, 6, 4), np.float32)})


def test_what_cannot_be_compiled_for_all_sizes_is_left_to_the_host_with_the_reason() -> None:
    compiled = compile_model(model(PRODUCT))
    explained = compiled.explain()
    assert "no typical sizes" in explained["sizes"]["refused"]
    assert {one["rule"] for one in explained["host"]["reasons"]} == {"host.open_dimension"}
    with load(compiled.to_bytes()) as module:
        for shape in ((1, 1, 257, 1), (1, 1, 1, 257)):
            x = np.arange(257, dtype=np.float32).reshape(shape)
            np.testing.assert_array_equal(module.run({"x": x})["y"], -x.reshape(257))


def test_sizes_whose_product_is_known_are_compiled() -> None:
    compiled = compile_model(model(PRODUCT.replace("257", "8")))
    assert compiled.explain()["host"]["steps"] == 0
    with load(compiled.to_bytes()) as module:
        for shape in ((1, 1, 8, 1), (1, 1, 2, 4), (2, 2, 2, 1)):
            x = np.arange(8, dtype=np.float32).reshape(shape)
            np.testing.assert_array_equal(module.run({"x": x})["y"], -x.reshape(8))
        with pytest.raises(InputError, match=r"k \* m \* n \* n - 8 must be 0"):
            module.run({"x": np.zeros((1, 1, 3, 3), np.float32)})


def test_what_has_no_elements_keeps_its_open_size_on_the_host() -> None:
    """Which does not follow from their number."""
    compiled = compile_model(
        model(
            """(float[n, n, m, k] x, float[0, p] z) => (float[257] y, float[0, p, 1] t)
            <int64[1] s = {257}, int64[1] i = {2}> { r = Reshape(x, s)  y = Neg(r)  t = Unsqueeze(z, i) }"""
        )
    )
    assert compiled.explain()["sizes"]["refused"]
    with load(compiled.to_bytes()) as module:
        for p in (0, 1, 3):
            feed = {"x": np.ones((1, 1, 257, 1), np.float32), "z": np.ones((0, p), np.float32)}
            assert module.run(feed)["t"].shape == (0, p, 1)


def test_ranges_that_were_asked_for_are_compiled_or_refused() -> None:
    with pytest.raises(PassError, match=r"no typical sizes .* give sizes with shapes"):
        compile_model(model(PRODUCT), dims={"n": (1, 9)})


def test_compile_warns_where_open_dimensions_are_left_to_the_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(model(PRODUCT), tmp_path / "m.onnx")
    assert main.main(["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.tsm")]) == errors.OK
    assert "warning: open dimensions are left to the host, for not all sizes can be compiled" in capsys.readouterr().err


def test_gpus_have_kernels_for_all_sizes_too() -> None:
    explained = compile_model(model(NEG), "emulator").explain()
    assert [(s["name"], s["low"], s["default"]) for s in explained["sizes"]["symbols"]] == [("n", 1, True)]
    assert explained["host"]["steps"] == 0


TWO = "(float[n, m] x) => (float[n, m] y) { e = Neg(x)  y = Softmax<axis=-1>(e) }"


def test_a_favoured_point_has_the_plan_of_a_static_model_and_comes_first() -> None:
    compiled = compile_model(model(TWO), favour=[{"n": 3, "m": 5}, {"m": 7}], dims={"n": (1, 9), "m": (1, 9)})
    everything = {"n": (1, 9), "m": (1, 9)}
    assert ranges(compiled) == [{"n": (3, 3), "m": (5, 5)}, {**everything, "m": (7, 7)}, everything]
    static = compile_model(model(TWO), shapes={"x": (3, 5)})
    assert compiled.specialisations[0].plan.groups == static.plan.groups
    with load(compiled.to_bytes()) as module:
        for shape in [(3, 5), (2, 7), (9, 9), (1, 1)]:
            x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 8
            exponentials = np.exp(x.min(axis=-1, keepdims=True) - x)
            wanted = exponentials / exponentials.sum(axis=-1, keepdims=True)
            np.testing.assert_allclose(module.run({"x": x})["y"], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("favour", "dims", "target", "told"),
    [
        ({"n": 10}, {"n": (1, 9)}, "cpu", "n=10 is not in 1..9"),
        ({"n": 0}, None, "cpu", "n=0 is less than 1"),
        ({"n": "3"}, None, "cpu", "no mapping"),
        ({"n": 10}, {"n": (1, 9)}, "emulator", "n=10 is not in 1..9"),
    ],
)
def test_a_point_that_cannot_be_favoured_is_refused(favour: object, dims: object, target: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        compile_model(model(TWO), target, favour=[favour], dims=dims)  # type: ignore[list-item, arg-type]


def test_a_favoured_dimension_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="k"):
        compile_model(model(TWO), favour=[{"k": 3}])


def test_sizes_that_only_nested_graphs_have_are_compiled_or_left_to_the_host(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = (
        "test_loop11", "test_loop13_seq", "test_sequence_map_identity_1_sequence_expanded",
        "test_affine_grid_2d_expanded",
    )  # fmt: skip
    assert conformance(["--filter", f"^({'|'.join(names)})$"]) == 0
    assert f"{len(names)} cases in" in capsys.readouterr().out
