"""Caches that grow where they lie: `donate` of the compiler and of the runtime."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.compiled import assert_close
from tests.open_models.decoders import llama
from tests.open_models.styles import Script
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel
from tilestitch.compiler.errors import OptionError
from tilestitch.runtime import Module, load
from tilestitch.runtime.errors import ArtifactSchemaError, InputError
from tilestitch.runtime.program_check import check_program
from tilestitch.runtime.types import TensorType

PAST, PRESENT = "past_key_values", "present"
CACHES = ("past_key_values.*",)


@cache
def decoder() -> tuple[onnx.ModelProto, CompiledModel]:
    model = llama(Script).model
    return model, compile_model(model, num_threads=2, donate=CACHES, host_steps=False)


class Decoding:
    """Steps of random tokens; what a call gives of the cache is the next one's."""

    def __init__(self, run: Any, names: list[str], batch: int) -> None:
        self._run, self._names = run, names
        self.cache: Mapping[str, np.ndarray] = {name: np.zeros((batch, 2, 0, 4), np.float32) for name in names}

    def step(self, new: int, seed: int) -> dict[str, np.ndarray]:
        batch, _, past, _ = self.cache[self._names[0]].shape
        ids = np.random.default_rng(seed).integers(0, 20, (batch, new))
        positions = np.tile(np.arange(past, past + new), (batch, 1))
        mask = np.ones((batch, past + new), np.int64)
        feeds = {"input_ids": ids, "position_ids": positions, "attention_mask": mask, **self.cache}
        results: dict[str, np.ndarray] = self._run(feeds)
        self.cache = {name: results[name.replace(PAST, PRESENT)] for name in self._names}
        return results


def of_onnx_runtime(model: onnx.ModelProto) -> Any:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, feeds), strict=True))


def names_of(module: Module) -> list[str]:
    return [info.name for info in module.inputs if info.name.startswith(PAST)]


def assert_equal(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> None:
    for name, value in theirs.items():
        assert ours[name].shape == value.shape
        np.testing.assert_allclose(ours[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("donate", [(), CACHES])
def test_decoding_agrees_and_stays_where_it_is(donate: tuple[str, ...]) -> None:
    model, compiled = decoder()
    module = load(compiled.to_bytes(), num_threads=2, donate=donate)
    ours = Decoding(module.run, names_of(module), batch=2)
    theirs = Decoding(of_onnx_runtime(model), names_of(module), batch=2)
    places = []
    for seed in range(24):
        new = 5 if not seed else 1 + seed % 3
        assert_equal(ours.step(new, seed), theirs.step(new, seed))
        places.append([array.ctypes.data for array in ours.cache.values()])
    moves = sum(one != other for one, other in pairwise(places))
    assert moves == 2 if donate else moves > 2  # rooms of 16, 34, 70 rows for 51
    assert all(len(set(one)) == len(one) for one in places)


@cache
def emulated_decoder() -> CompiledModel:
    return compile_model(decoder()[0], "emulator", num_threads=2, donate=CACHES, host_steps=False)


def greedy(module: Module, prompt: np.ndarray, steps: int) -> tuple[list[int], list[dict[str, np.ndarray]]]:
    """The tokens of the largest logits, and the caches after each step."""
    caches = {name: np.zeros((1, 2, 0, 4), np.float32) for name in names_of(module)}
    tokens, kept, ids, past = [], [], prompt, 0
    for _ in range(steps):
        new, total = ids.shape[1], past + ids.shape[1]
        feeds = {"input_ids": ids, "position_ids": np.arange(past, total)[None], "attention_mask": np.ones((1, total))}
        feeds["attention_mask"] = feeds["attention_mask"].astype(np.int64)
        results = module.run({**feeds, **caches})
        caches = {name: results[name.replace(PAST, PRESENT)] for name in caches}
        tokens.append(int(results["logits"][0, new - 1].argmax()))
        kept.append(caches)
        ids, past = np.array([tokens[-1:]]), total
    return tokens, kept


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulated device needs g++")


@needs_compiler
def test_greedy_tokens_on_the_emulated_device() -> None:
    """Equal with and without donation, and on a CPU; buffers move when they are full, and no row that is there does."""
    prompt = np.array([[3, 14, 15, 9]])
    wanted, _ = greedy(load(decoder()[1].to_bytes(), num_threads=1), prompt, 20)
    for donate in ((), CACHES):
        tokens, kept = greedy(load(emulated_decoder().to_bytes(), device="emulator", donate=donate), prompt, 20)
        assert tokens == wanted
        places = [[array.ctypes.data for array in caches.values()] for caches in kept]
        assert sum(one != other for one, other in pairwise(places)) == (1 if donate else 19)  # rooms of 16 and 34 rows


RANGES = {"batch": (1, 2), "past": (0, 40), "new": (1, 8)}


@pytest.mark.parametrize("target", ["cpu", pytest.param("emulator", marks=needs_compiler)])
def test_buffers_are_longer_than_the_ranges_of_what_lies_in_them(target: str) -> None:
    """Twice as long as what is there, at first 16 rows, or as long as the caller's; rows up to the end of the range."""
    compiled = compile_model(decoder()[0], target, donate=CACHES, dims=RANGES, num_threads=1)
    theirs = Decoding(of_onnx_runtime(decoder()[0]), names_of(load(compiled.to_bytes(), device=target)), batch=1)
    with load(compiled.to_bytes(), device=target, donate=CACHES) as module:
        ours = Decoding(module.run, names_of(module), batch=1)
        for seed in range(6):
            assert_equal(ours.step(8, seed), theirs.step(8, seed))
        buffers = {name: np.zeros((1, 2, 500, 4), np.float32) for name in ours.cache}
        ours.cache = {name: buffer[:, :, :0] for name, buffer in buffers.items()}
        ours.step(8, 0)
        assert all(ours.cache[name].base is buffer for name, buffer in buffers.items())


@pytest.mark.parametrize(("longest", "is_narrow"), [(1 << 20, True), (1 << 26, False)])
def test_positions_in_buffers_of_given_ranges(longest: int, is_narrow: bool) -> None:
    """A row has 16 elements, and a buffer up to twice as many rows as the range."""
    dims = {"batch": (1, 2), "past": (1, longest), "new": (1, 8)}
    program = compile_model(decoder()[0], "emulator", donate=CACHES, dims=dims).contents.programs[0]
    checks = [str(check.left) for check in program.checks if check.reason.startswith("kernels count")]
    assert checks == (["8 * batch * capacity"] if is_narrow else [])


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_attention_alone_reads_the_caches(target: str) -> None:
    """They are not copied, although this model scales keys."""
    compiled = decoder()[1] if target == "cpu" else emulated_decoder()
    assert any(node.op_type == "Mul" and "Transpose" in node.input[0] for node in decoder()[0].graph.node)
    for specialisation in compiled.specialisations:
        plan = specialisation.plan
        readers = [g for g in plan.groups if any(name.startswith(PRESENT) for name in g.inputs)]
        assert len(readers) == 2 and {group.kind.value for group in readers} == {"attention"}


def test_a_users_buffer_is_written_behind_its_rows_only() -> None:
    """A buffer with room is used as it is; the rows before stay, and those after the new ones."""
    _, compiled = decoder()
    module = load(compiled.to_bytes(), num_threads=1, donate=CACHES)
    decoding = Decoding(module.run, names_of(module), batch=1)
    buffers = {name: np.full((1, 2, 9, 4), 7.0, np.float32) for name in decoding.cache}
    decoding.cache = {name: buffer[:, :, :3] for name, buffer in buffers.items()}
    decoding.step(2, seed=1)
    for name, buffer in buffers.items():
        assert decoding.cache[name].base is buffer and decoding.cache[name].shape == (1, 2, 5, 4)
        assert (buffer[:, :, :3] == 7).all() and (buffer[:, :, 5:] == 7).all() and (buffer[:, :, 3:5] != 7).all()


def test_without_donation_nothing_of_the_caller_is_written() -> None:
    _, compiled = decoder()
    module = load(compiled.to_bytes(), num_threads=1)
    decoding = Decoding(module.run, names_of(module), batch=1)
    buffers = {name: np.full((1, 2, 9, 4), 7.0, np.float32) for name in decoding.cache}
    decoding.cache = {name: buffer[:, :, :3] for name, buffer in buffers.items()}
    decoding.step(2, seed=1)
    assert all((buffer == 7).all() for buffer in buffers.values())


def test_caches_in_one_buffer_get_their_own() -> None:
    model, compiled = decoder()
    module = load(compiled.to_bytes(), num_threads=1, donate=CACHES)
    shared = np.ones((1, 2, 9, 4), np.float32)
    ours = Decoding(module.run, names_of(module), batch=1)
    theirs = Decoding(of_onnx_runtime(model), names_of(module), batch=1)
    for decoding in (ours, theirs):
        decoding.cache = dict.fromkeys(decoding.cache, shared[:, :, :3])
    assert_equal(ours.step(1, seed=2), theirs.step(1, seed=2))
    assert (shared == 1).all()


def test_inputs_and_outputs_are_told_as_the_model_has_them() -> None:
    _, compiled = decoder()
    module = load(compiled.to_bytes(), num_threads=1)
    model, _ = decoder()
    assert [info.name for info in module.inputs] == [value.name for value in model.graph.input]
    told = {info.name: str(info) for info in (*module.inputs, *module.outputs)}
    assert told["past_key_values.0.key"] == "past_key_values.0.key: float32[batch:1.., 2, past:0.., 4]"
    assert told["present.1.value"] == "present.1.value: float32[batch:1.., 2, past + new, 4]"


def test_inputs_by_position() -> None:
    _, compiled = decoder()
    module = load(compiled.to_bytes(), num_threads=1)
    by_name = Decoding(module.run, names_of(module), batch=1).step(3, seed=0)
    order = [info.name for info in module.inputs]
    by_place = Decoding(lambda feeds: module.run([feeds[name] for name in order]), names_of(module), 1).step(3, seed=0)
    assert_equal(by_place, by_name)


def test_the_loaded_module_can_be_copied(tmp_path: Path) -> None:
    _, compiled = decoder()
    module = copy.copy(load(compiled.save(tmp_path / "m.tsm"), num_threads=1, donate=CACHES))
    decoding = Decoding(module.run, names_of(module), batch=1)
    decoding.step(1, seed=0)
    before = [array.ctypes.data for array in decoding.cache.values()]
    decoding.step(1, seed=1)
    assert before == [array.ctypes.data for array in decoding.cache.values()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"past_key_values.0.key": None}, "'past_key_values.0.key' is missing"),
        ({"position_ids": None}, "'position_ids' is missing"),
        ({"past_key_values.0.key": np.zeros((1, 2, 4, 4), np.float32)}, "equal length"),
        ({"past_key_values.0.key": np.zeros((1, 2, 3), np.float32)}, "must be float32"),
        ({"past_key_values.0.key": np.zeros((1, 2, 3, 4), np.float64)}, "must be float32"),
        ({"past_key_values.0.key": np.zeros((1, 3, 3, 4), np.float32)}, r"its shape is \[1, 3, 3, 4\]"),
        ({"past_key_values.0.key": np.zeros((2, 2, 3, 4), np.float32)}, "does not fit"),
        ({"attention_mask": np.ones((1, 9), np.int64)}, "attention_mask"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    _, compiled = decoder()
    module = load(compiled.to_bytes(), num_threads=1, donate=CACHES)
    feeds = {
        "input_ids": np.zeros((1, 1), np.int64), "position_ids": np.zeros((1, 1), np.int64),
        "attention_mask": np.ones((1, 4), np.int64),
        **{name: np.zeros((1, 2, 3, 4), np.float32) for name in names_of(module)},
    }  # fmt: skip
    module.run(feeds)
    with pytest.raises(InputError, match=message):
        module.run({name: value for name, value in {**feeds, **change}.items() if value is not None})


def test_caches_take_no_out() -> None:
    _, compiled = decoder()
    module = load(compiled.to_bytes(), num_threads=1, donate=CACHES)
    decoding = Decoding(lambda feeds: module.run(feeds, {"present.0.key": np.zeros(1)}), names_of(module), 1)
    with pytest.raises(InputError, match="leave it out"):
        decoding.step(1, seed=0)


def small(nodes: list[Any], outputs: list[str]) -> onnx.ModelProto:
    given = [
        helper.make_tensor_value_info("past", TensorProto.FLOAT, ["length", 4]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["new", 4]),
    ]
    wanted = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", given, wanted)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


CONCAT = helper.make_node("Concat", ["past", "x"], ["whole"], axis=0)
SUM = helper.make_node("ReduceSum", ["whole"], ["sum"], keepdims=0)


def test_what_was_not_compiled_for_it_is_not_donated() -> None:
    plain = compile_model(small([CONCAT, SUM], ["whole", "sum"]), num_threads=1).to_bytes()
    with pytest.raises(InputError, match="Compile with --donate"):
        load(plain, donate=["past"])


@pytest.mark.parametrize(
    ("nodes", "outputs", "donate", "message"),
    [
        ([CONCAT, SUM], ["sum"], ["past"], "no output of the model"),
        (
            [CONCAT, SUM, helper.make_node("Exp", ["past"], ["e"])],
            ["whole", "e"],
            ["past"],
            "is read by concat, exp; a cache is read by one",
        ),
        ([helper.make_node("Concat", ["x", "past"], ["whole"], axis=0)], ["whole"], ["past"], "new rows last"),
        ([CONCAT], ["whole"], ["pest"], "no input is named 'pest'"),
    ],
)
def test_inputs_that_are_no_caches_are_refused(
    nodes: list[Any], outputs: list[str], donate: list[str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        compile_model(small(nodes, outputs), donate=donate)


def test_the_first_axis_may_grow() -> None:
    module = load(compile_model(small([CONCAT, SUM], ["whole", "sum"]), donate=["past"]).to_bytes(), donate=["p*"])
    wanted, cache = [], np.zeros((0, 4), np.float32)
    for step in range(30):
        wanted += list(np.full((step % 3 + 1, 4), step, np.float32))
        results = module.run({"past": cache, "x": np.array(wanted[len(cache) :])})
        cache = results["whole"]
        np.testing.assert_array_equal(cache, wanted)
        np.testing.assert_allclose(results["sum"], np.sum(wanted), rtol=1e-5)


def grown_alone(axis: int) -> tuple[onnx.ModelProto, Module]:
    """A cache whose new rows are an input, as everything that is computed from the whole shows what was read."""
    nodes = [helper.make_node("Concat", ["past", "x"], ["whole"], axis=axis)]
    nodes += [helper.make_node("Mul", ["whole", "whole"], ["squares"]), helper.make_node("Add", ["x", "x"], ["twice"])]
    model = small(nodes, ["whole", "squares", "twice"])
    for value in model.graph.input if axis else ():
        dims = value.type.tensor_type.shape.dim
        name, dims[0].dim_value = dims[0].dim_param, 4
        dims[1].dim_param = name
    return model, load(compile_model(model, num_threads=1, donate=["past"]).to_bytes(), num_threads=1, donate=["past"])


def rows(buffer: np.ndarray, axis: int, start: int, stop: int) -> np.ndarray:
    return buffer[:, start:stop] if axis else buffer[start:stop]


def assert_runs_as_with_onnx_runtime(model: onnx.ModelProto, module: Module, feeds: dict[str, np.ndarray]) -> None:
    plain = {name: np.array(array, array.dtype.newbyteorder("="), order="C") for name, array in feeds.items()}
    wanted = of_onnx_runtime(model)(plain)
    assert_equal(module.run(feeds), wanted)


@pytest.mark.parametrize("axis", [0, 1])
def test_new_rows_that_lie_in_the_buffer(axis: int) -> None:
    """Where they are to be stored, or where only some of that is, or among the rows before."""
    model, module = grown_alone(axis)
    for past, start, stop in ((3, 3, 5), (3, 4, 8), (5, 2, 8), (5, 0, 5), (0, 1, 2)):
        buffer = np.random.default_rng(past).standard_normal((4, 20) if axis else (20, 4)).astype(np.float32)
        feeds = {"past": rows(buffer, axis, 0, past), "x": rows(buffer, axis, start, stop)}
        assert_runs_as_with_onnx_runtime(model, module, feeds)


@pytest.mark.parametrize("axis", [0, 1])
def test_caches_in_any_memory(axis: int) -> None:
    """Of the other byte order, for reading only, not aligned, with steps, backwards, transposed; NaN after the rows."""
    model, module = grown_alone(axis)
    shape = (4, 20) if axis else (20, 4)
    numbers = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    fresh = np.ones((4, 2) if axis else (2, 4), np.float32)
    raw = np.empty(numbers.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(shape)
    raw[...] = numbers
    poisoned = np.full(shape, np.nan, np.float32)
    rows(poisoned, axis, 0, 5)[...] = 1
    turned = numbers[:, ::-1] if axis else numbers[::-1]
    for past in (
        rows(numbers.astype(">f4"), axis, 0, 5), rows(numbers, axis, 0, 5).astype(">f4"), rows(raw, axis, 0, 5),
        rows(poisoned, axis, 0, 5), turned, rows(turned, axis, 0, 5), np.asfortranarray(numbers),
        numbers[:, ::2] if axis else numbers[::2],
    ):  # fmt: skip
        assert_runs_as_with_onnx_runtime(model, module, {"past": past, "x": fresh})


def test_what_is_for_reading_only_is_not_written() -> None:
    model, module = grown_alone(0)
    for locked in ("rows", "buffer"):
        buffer = np.ones((9, 4), np.float32)
        past = buffer[:3]
        (past if locked == "rows" else buffer).flags.writeable = False
        assert_runs_as_with_onnx_runtime(model, module, {"past": past, "x": np.full((2, 4), 5, np.float32)})
        assert (buffer == 1).all()


def test_results_do_not_lie_in_a_cache() -> None:
    _, module = grown_alone(0)
    buffer = np.ones((9, 4), np.float32)
    feeds = {"past": buffer[:3], "x": np.full((2, 4), 5, np.float32)}
    with pytest.raises(InputError, match="'twice' lies in the buffer of a cache"):
        module.run(feeds, {"twice": buffer[7:]})
    assert (buffer == 1).all()


def test_nothing_in_the_cache_and_nothing_new() -> None:
    _, module = grown_alone(0)
    nothing = np.zeros((0, 4), np.float32)
    assert module.run({"past": nothing, "x": nothing})["whole"].shape == (0, 4)
    assert module.run({"past": np.ones((9, 4), np.float32)[:0], "x": nothing})["whole"].shape == (0, 4)
    assert module.run({"past": np.ones((3, 4), np.float32), "x": nothing})["whole"].shape == (3, 4)


@pytest.mark.parametrize("favour", [[], [{"a": 3, "b": 3}], [{"a": 3}]])
def test_caches_of_two_lengths(favour: list[dict[str, int]]) -> None:
    """That may be equal by chance, or in a specialisation; and lie in one buffer."""
    nodes = [helper.make_node("Concat", [f"p{n}", f"x{n}"], [f"w{n}"], axis=0) for n in "ab"]
    nodes.append(helper.make_node("ReduceSum", ["wa"], ["sum"], keepdims=0))
    given = [(name, size) for n in "ab" for name, size in ((f"p{n}", n), (f"x{n}", f"new_{n}"))]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, 4]) for name, size in given],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("wa", "wb", "sum")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compiled = compile_model(model, num_threads=1, donate=["pa", "pb"], favour=favour)
    module = load(compiled.to_bytes(), num_threads=1, donate=["*"])
    for a, b in ((3, 3), (0, 3), (3, 0), (3, 4), (4, 3), (5, 5)):
        shared = np.random.default_rng(a).standard_normal((20, 4)).astype(np.float32)
        fresh = {"xa": np.full((1, 4), 5, np.float32), "xb": np.full((2, 4), 7, np.float32)}
        assert_runs_as_with_onnx_runtime(model, module, {"pa": shared[:a], "pb": shared[:b], **fresh})
    with pytest.raises(InputError, match="input 'pa'"):
        module.run({"pa": np.ones((2, 5), np.float32), "pb": np.ones((2, 4), np.float32), **fresh})


@pytest.mark.parametrize(
    "change",
    [
        {"axis": 4},
        {"type": TensorType("float16", (1, 2, "past", 4))},
        {"output": "logits"},
        {"output": "none"},
        {"sizes": "input_ids"},
        {"new": "unknown + 1"},
    ],
)
def test_forged_caches_are_refused(change: dict[str, Any]) -> None:
    contents = decoder()[1].contents
    program = contents.programs[0]
    check_program(program, contents.signatures)
    forged = replace(program, caches=(replace(program.caches[0], **change), *program.caches[1:]))
    with pytest.raises(ArtifactSchemaError, match="cache"):
        check_program(forged, contents.signatures)


SHARED = """<ir_version: 10, opset_import: ["" : 23]>
    g (float[b,2,n,8] q, float[b,2,p,8] past, float[b,2,n,8] new) => (float[b,2,n,8] y, float[b,2,t,8] whole) {
      whole = Concat <axis = 2> (past, new)
      """
READERS = {
    "matmuls": "k = Transpose <perm = [0, 1, 3, 2]> (whole)  s = MatMul (q, k)  a = Softmax <axis = -1> (s)  "
    "y = MatMul (a, whole) }",
    "attention": "y = Attention <scale = 1.0> (q, whole, whole) }",
}


@pytest.mark.parametrize("reader", READERS)
def test_one_cache_of_keys_and_values(reader: str) -> None:
    """Of any number of images, none among them."""
    model = onnx.parser.parse_model(SHARED + READERS[reader])
    random = np.random.default_rng(0)
    compiled = compile_model(model, dims={"n": (1, 4), "p": (1, 64)}, donate=["past"])
    with load(compiled.to_bytes(), donate=["past"]) as module:
        for b, n, p in ((2, 1, 5), (0, 1, 5), (3, 2, 31)):
            whole = random.standard_normal((b, 2, p, 8)).astype(np.float32)
            for _ in range(2):
                q, new = random.standard_normal((2, b, 2, n, 8)).astype(np.float32)
                past, rows = whole, np.concatenate([whole, new], 2)
                y, whole = module.run({"q": q, "past": past, "new": new}).values()
                weights = np.exp(q @ rows.transpose(0, 1, 3, 2))
                np.testing.assert_array_equal(whole, rows)
                assert_close(y, weights / weights.sum(-1, keepdims=True) @ rows, MODELS["float32"])


def test_sizes_that_the_data_decides_do_not_depend_on_caches() -> None:
    """A cache's length is told by what takes its place; how many elements are not zero is found in a run."""
    found = helper.make_node("NonZero", ["x"], ["found"])
    places = helper.make_node("Cast", ["found"], ["places"], to=TensorProto.FLOAT)
    model = small([CONCAT, SUM, found, places], ["whole", "sum", "places"])
    with load(compile_model(model, num_threads=1, donate=["past"]).to_bytes(), donate=["past"]) as module:
        feeds = {"past": np.ones((9, 4), np.float32)[:3], "x": np.eye(2, 4, dtype=np.float32)}
        assert_runs_as_with_onnx_runtime(model, module, feeds)


def test_rows_that_are_other_outputs_too() -> None:
    """The cache is the output that has its rows in all specialisations: the first one has them where there is one."""
    ends = [helper.make_node("Constant", [], [name], value_ints=[n]) for name, n in (("start", 0), ("end", 1))]
    first = helper.make_node("Slice", ["whole", "start", "end", "start"], ["first"])
    again = helper.make_node("Identity", ["whole"], ["again"])
    model = small([CONCAT, *ends, first, again], ["first", "whole", "again"])
    with load(compile_model(model, num_threads=1, donate=["past"]).to_bytes(), donate=["past"]) as module:
        for past, new in ((0, 1), (3, 2), (1, 1), (0, 2)):
            buffer = np.random.default_rng(past).standard_normal((9, 4)).astype(np.float32)
            feeds = {"past": buffer[:past], "x": np.full((new, 4), 5, np.float32)}
            assert_runs_as_with_onnx_runtime(model, module, feeds)
            found = module.run(feeds)
            assert np.shares_memory(found["whole"], buffer)
            assert not any(np.shares_memory(found[name], buffer) for name in ("first", "again"))
