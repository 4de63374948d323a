"""Caches that grow in a GPU's memory: `donate` on the strict stand-in, whose launches the emulated device executes."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.compiler.test_caches import CACHES, greedy
from tests.compiler.test_caches import decoder as llama
from tests.runtime.cuda.standin.child import StandIn
from tests.runtime.cuda.standin.execution import emulated, executor
from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.cuda.array import DeviceArray
from tilestitch.runtime.cuda.driver import Driver
from tilestitch.runtime.cuda.rows import DeviceRows
from tilestitch.runtime.errors import InputError

if shutil.which("g++") is None:
    pytest.skip("the emulated device needs g++", allow_module_level=True)

OnStandIn = Callable[[Callable[[StandIn], Any]], None]
HEADS, WIDTH = 2, 8
ALLOCATING = {"cuMemAlloc", "cuMemAllocFromPoolAsync", "cuGraphInstantiate"}


def decoder() -> onnx.ModelProto:
    """One layer of attention over a cache [batch, heads, length, width]; its result is the next step's input."""
    shapes = {"past_k": "past", "past_v": "past", "x": "new"}
    given = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", HEADS, size, WIDTH])
        for name, size in shapes.items()
    ]
    nodes = [
        helper.make_node("Tanh", ["x"], ["fresh"]),
        helper.make_node("Concat", ["past_k", "fresh"], ["k"], axis=2),
        helper.make_node("Concat", ["past_v", "x"], ["v"], axis=2),
        helper.make_node("Transpose", ["k"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x", "turned"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "k", "v")]
    graph = helper.make_graph(nodes, "decoder", given, made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiled = compile_model(decoder(), "cuda:sm_90a", donate=["past_*"], keep_source=True)
    return compiled.save(tmp_path_factory.mktemp("decoder") / "m.tsm")


Step = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def decoded(step: Step, steps: int, batch: int = 2, prompt: int = 3) -> Iterator[tuple[np.ndarray, Mapping[str, Any]]]:
    """The results of each step and what the caches are, from a prompt and one row after the other."""
    caches = {name: np.zeros((batch, HEADS, 0, WIDTH), np.float32) for name in ("past_k", "past_v")}
    x = np.random.default_rng(0).standard_normal((batch, HEADS, prompt, WIDTH)).astype(np.float32)
    for _ in range(steps):
        results = step({"x": x, **caches})
        x = np.asarray(results["y"])[:, :, -1:]
        caches = {"past_k": results["k"], "past_v": results["v"]}
        yield np.asarray(results["y"]), caches


def expected(steps: int) -> list[np.ndarray]:
    session = ort.InferenceSession(decoder().SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    step = lambda feeds: dict(zip(names, session.run(None, dict(feeds)), strict=True))  # noqa: E731
    return [y for y, _ in decoded(step, steps)]


@contextmanager
def calls() -> Iterator[Counter[str]]:
    """How often each function of the driver is called."""
    found: Counter[str] = Counter()
    before = Driver.__call__

    def counted(driver: Driver, name: str, *arguments: Any) -> Any:
        found[name] += 1
        return before(driver, name, *arguments)

    Driver.__call__ = counted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Driver.__call__ = before  # type: ignore[method-assign]


def executing(path: Path, work: Callable[[Path], None]) -> Callable[[StandIn], None]:
    kernels = emulated(read_artifact(path))

    def run(stand_in: StandIn) -> None:
        stand_in.execute(executor(kernels))
        work(path)

    return run


def test_steps_are_equal_with_and_without_donation(on_standin: OnStandIn, artifact: Path) -> None:
    steps = 24

    def work(path: Path) -> None:
        wanted = expected(steps)
        for donate in ((), ("past_*",)):
            for on_device in (False, True):
                with load(path, device="cuda", donate=donate) as loaded:
                    made = decoded(partial(loaded.run, on_device=on_device), steps)
                    for (y, caches), right in zip(made, wanted, strict=True):
                        np.testing.assert_allclose(y, right, rtol=1e-4, atol=1e-5)
                        kind = DeviceRows if donate else DeviceArray if on_device else np.ndarray
                        assert {type(rows) for rows in caches.values()} == {kind}
                    length = 3 + steps - 1
                    assert {rows.shape for rows in caches.values()} == {(2, HEADS, length, WIDTH)}

    on_standin(executing(artifact, work))


@pytest.mark.parametrize("on_device", [False, True])
def test_a_step_neither_allocates_nor_copies_what_is_there(
    on_standin: OnStandIn, artifact: Path, on_device: bool
) -> None:
    """Buffers move when they are full, from 16 rows to 34; but for that the caches stay where they are. Results that
    stay on the GPU are allocated, one a step.
    """

    def work(path: Path) -> None:
        with load(path, device="cuda", donate=["past_*"]) as loaded:
            places, counts, moved = [], [], []
            with calls() as found:
                for _, caches in decoded(partial(loaded.run, on_device=on_device), 31):
                    places.append([rows.buffer.address for rows in caches.values()])
                    moved.append(found["cuMemcpy2DAsync"])
                    counts.append(sum(found[name] for name in ALLOCATING))
            assert moved[-1] == 2 and sum(a != b for a, b in pairwise(places)) == 1
            steady = slice(16, 30)
            assert len(set(map(tuple, places[steady]))) == 1 and len(set(moved[steady])) == 1
            assert {b - a for a, b in pairwise(counts[steady])} == {int(on_device)}

    on_standin(executing(artifact, work))


def test_greedy_tokens_of_a_whole_decoder(on_standin: OnStandIn, tmp_path: Path) -> None:
    """A small Llama: the tokens of a CPU, with and without donation; with it, a step copies inputs and logits only."""
    steps, prompt = 26, np.array([[3, 14, 15, 9]])
    wanted, _ = greedy(load(llama()[1].to_bytes(), num_threads=1), prompt, steps)
    compiled = compile_model(llama()[0], "cuda:sm_90a", donate=CACHES, keep_source=True, host_steps=False)

    def work(path: Path) -> None:
        for donate in ((), CACHES):
            with load(path, device="cuda", donate=donate) as loaded, calls() as found:
                tokens, kept = greedy(loaded, prompt, steps)
                assert tokens == wanted
                # The four caches move once, from 16 rows to 34; without donation, in each step but the first.
                assert found["cuMemcpy2DAsync"] == (4 if donate else 4 * (steps - 1))
                kept.clear()

    on_standin(executing(compiled.save(tmp_path / "llama.tsm"), work))


def test_rows_for_other_libraries(on_standin: OnStandIn, artifact: Path) -> None:
    """They lie in a buffer with room for more, so they have strides."""

    def work(path: Path) -> None:
        with load(path, device="cuda", donate=["past_*"]) as loaded:
            ((_, caches),) = decoded(loaded.run, 1)
            rows = caches["past_v"]
            assert rows.shape == (2, HEADS, 3, WIDTH) and rows.buffer.shape == (2, HEADS, 16, WIDTH)
            assert rows.strides == (HEADS * 16 * WIDTH, 16 * WIDTH, WIDTH, 1) and rows.ndim == 4
            interface = rows.__cuda_array_interface__
            assert interface["shape"] == rows.shape and interface["strides"] == tuple(4 * s for s in rows.strides)
            assert interface["data"] == (rows.buffer.address, False)
            assert rows.__dlpack_device__() == (2, 0) and "dltensor" in repr(rows.__dlpack__())
            assert "room for 16" in repr(rows)
            x = np.random.default_rng(0).standard_normal((2, HEADS, 3, WIDTH)).astype(np.float32)
            np.testing.assert_array_equal(np.asarray(rows), x)
            with pytest.raises(ValueError, match="without a copy"):
                np.array(rows, copy=False)
            del interface

    on_standin(executing(artifact, work))


def test_arrays_from_elsewhere_are_copied_to_buffers(on_standin: OnStandIn, artifact: Path) -> None:
    """Of numpy, and of a run without donation; these stay as they are. Two caches in one buffer get their own."""

    def work(path: Path) -> None:
        steps, wanted = 3, expected(3)
        x = wanted[0][:, :, -1:]
        with load(path, device="cuda") as plain, load(path, device="cuda", donate=["past_*"]) as loaded:
            *_, (_, there) = decoded(lambda feeds: plain.run(feeds, on_device=True), 1)
            here = {name: np.asarray(rows) for name, rows in there.items()}
            for caches in (there, here):
                results = loaded.run({"x": x, **caches})
                np.testing.assert_allclose(results["y"], wanted[1], rtol=1e-4, atol=1e-5)
                for name, rows in there.items():
                    np.testing.assert_array_equal(np.asarray(rows), here[name])
            shared = dict.fromkeys(caches, results["v"])
            same = {name: np.asarray(results["v"]) for name in caches}
            right = plain.run({"x": x, **same})
            again = loaded.run({"x": x, **shared})
            for name in ("y", "k", "v"):
                np.testing.assert_array_equal(np.asarray(again[name]), right[name])
            assert again["k"].buffer.address != again["v"].buffer.address
            assert steps == len(wanted)

    on_standin(executing(artifact, work))


def test_runs_in_a_stream_of_the_users(on_standin: OnStandIn, artifact: Path) -> None:
    """Each run returns when it is queued; what is in one stream comes after what is in another."""

    def work(path: Path) -> None:
        wanted = expected(6)
        with load(path, device="cuda", donate=["past_*"]) as loaded:
            device = loaded._backend._device
            with device.current():
                streams = [int(device.call("cuStreamCreate", 1)) for _ in range(2)]
            turns = iter((*streams, None, *streams, streams[1]))
            made = decoded(lambda feeds: loaded.run(feeds, on_device=True, stream=next(turns)), 6)
            for (y, _), right in zip(made, wanted, strict=True):
                np.testing.assert_allclose(y, right, rtol=1e-4, atol=1e-5)
            del made, _  # memory is freed in the streams that it was made in
        with device.current():
            for stream in streams:
                device.call("cuStreamSynchronize", stream)
                device.call("cuStreamDestroy", stream)

    on_standin(executing(artifact, work))


def test_what_lies_in_a_buffer_is_no_other_input(on_standin: OnStandIn, artifact: Path) -> None:
    """Rows with gaps between them are refused; others are copied before the run, which writes after them."""

    def work(path: Path) -> None:
        with load(path, device="cuda", donate=["past_*"]) as loaded:
            ((_, caches),) = decoded(loaded.run, 1)
            with pytest.raises(InputError, match="leave it out"):
                loaded.run({"x": np.zeros((2, HEADS, 1, WIDTH), np.float32), **caches}, {"k": np.zeros(1)})
            with pytest.raises(InputError, match="not C-contiguous"):
                loaded.run({"x": caches["past_k"], **caches})
            whole = caches["past_k"].buffer
            kept = {name: np.asarray(rows) for name, rows in caches.items()}
            with load(path, device="cuda") as plain:
                x = np.zeros((2, HEADS, 16, WIDTH), np.float32)
                x[:] = whole.numpy()
                right = plain.run({"x": x, "past_k": kept["past_k"][:, :, :0], "past_v": kept["past_v"][:, :, :0]})
                buffers = {name: DeviceRows(rows.buffer, 2, 0) for name, rows in caches.items()}
                results = loaded.run({"x": whole, **buffers})
                np.testing.assert_array_equal(results["y"], right["y"])
                np.testing.assert_array_equal(np.asarray(results["v"]), x)

    on_standin(executing(artifact, work))
