"""Loading and running: inputs from anywhere, clear errors, several shapes, threads, forks."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.kernels import SIZE
from tests.runtime.programs import (
    FLOAT4,
    TARGET,
    chain_program,
    chain_reference,
    contents,
    increment_program,
    module,
    pick_program,
    reverse_program,
    write_weights,
)
from tests.runtime.signed import plain
from tilestitch.runtime import Module, hostmemory, load
from tilestitch.runtime.artifact_writer import write_artifact
from tilestitch.runtime.cpu import threads
from tilestitch.runtime.cpu.backend import CpuBackend, CpuWorker
from tilestitch.runtime.errors import (
    ArtifactError,
    ArtifactSchemaError,
    DeviceError,
    ExecutionError,
    InputError,
    TilestitchRuntimeError,
    UnsupportedError,
)
from tilestitch.runtime.feeds import convert_feeds
from tilestitch.runtime.manifest import TargetInfo
from tilestitch.runtime.program import (
    Arg,
    Constant,
    Heap,
    HostStep,
    Input,
    Launch,
    NativeStep,
    Program,
    TensorType,
    ValueSpec,
)

X = np.arange(4, dtype=np.float32)
W = np.array([10, 20, 30, 40], np.float32)


@pytest.fixture(params=["small", "large"])
def increment(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    """With values that are copied to where kernels look for them, and with values whose address kernels are told."""
    if request.param == "large":
        monkeypatch.setattr(hostmemory, "SMALL_BYTES", 0)
    with module(tmp_path, increment_program(), weights={"w": W}) as loaded:
        yield loaded


def passes_through(type_: TensorType, output_count: int = 1) -> Program:
    """A program whose outputs are its input."""
    names = tuple(f"y{i}" for i in range(output_count))
    return Program("through", (0,), (0,) * output_count, (ValueSpec("x", type_, Input(0)),), (), 0, names)


def test_outputs_by_name(increment: Module) -> None:
    outputs = increment.run({"x": X})
    np.testing.assert_array_equal(outputs["u"], X + 2)
    np.testing.assert_array_equal(outputs["w"], W)


def test_inputs_and_outputs_are_described(increment: Module) -> None:
    (x,) = increment.inputs
    assert (x.name, x.dtype, x.shape) == ("x", "float32", (4,))
    assert [info.name for info in increment.outputs] == ["u", "w"]
    assert increment.get_inputs() == increment.inputs


def test_call_by_position_and_by_name(increment: Module) -> None:
    for outputs in (increment(X), increment(x=X), increment({"x": X})):
        np.testing.assert_array_equal(outputs["u"], X + 2)


def test_outputs_belong_to_the_caller(increment: Module) -> None:
    first = increment(X)
    first["u"][...] = 0
    first["w"][...] = 0
    np.testing.assert_array_equal(increment(X)["w"], W)


def test_results_stay_as_they_are_in_later_runs(increment: Module) -> None:
    results = [increment(X + i)["u"] for i in range(5)]
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, X + i + 2)


def test_memory_of_results_is_used_again_when_nothing_refers_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostmemory, "SMALL_BYTES", 0)
    with module(tmp_path, increment_program(), weights={"w": W}) as loaded:
        part = loaded(X)["u"][2:]
        second = loaded(X + 1)["u"]
        place = second.ctypes.data
        assert place != part.ctypes.data - part.itemsize * 2
        del second
        third = loaded(X + 2)["u"]
        assert third.ctypes.data == place
        np.testing.assert_array_equal(part, (X + 2)[2:])
    np.testing.assert_array_equal(third, X + 4)  # also after the module is closed


def test_inputs_are_read_anew_in_every_run(increment: Module) -> None:
    x = X.copy()
    increment(x)
    x += 5
    np.testing.assert_array_equal(increment(x)["u"], X + 7)


class WithArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return X


class WithDlpack:
    def __dlpack__(self, **options: Any) -> Any:
        return X.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return X.__dlpack_device__()


@pytest.mark.parametrize(
    "given",
    [
        X, WithArray(), WithDlpack(), [0, 1, 2, 3], (0.0, 1.0, 2.0, 3.0), np.repeat(X, 2)[::2], X[::-1][::-1],
        X.astype(">f4"),
        np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32), np.broadcast_to(X, (1, 4))[0],
    ],
    ids=["ndarray", "array", "dlpack", "list", "tuple", "strided", "reversed", "big-endian", "unaligned", "read-only"],
)  # fmt: skip
def test_inputs_of_many_kinds(increment: Module, given: Any) -> None:
    np.testing.assert_array_equal(increment.run({"x": given})["u"], X + 2)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, r"missing x; expected \(x: float32\[4\]\)"),
        ({"x": X, "z": X}, "unexpected z"),
        ({"X": X}, "missing x; unexpected X"),
        ({"x": X.astype(np.float64)}, r"data type float64, not float32.*\.astype"),
        ({"x": X.reshape(2, 2)}, r"no specialisation fits.*x: \[2, 2\].*x: float32\[4\].*--shape"),
        ({"x": X[:3]}, r"x: \[3\]"),
        ({"x": np.float32(1)}, r"x: \[\]"),
        ({"x": "text"}, "cannot be read"),
        ({"x": None}, "input 'x' is None"),
        ({"x": [[1], [1, 2]]}, "cannot be read"),
        ({"x": np.array(["a"] * 4)}, "data type string"),
        ([X, X], "2 inputs were given; expected"),
        ([], "0 inputs were given"),
        (X, "given as a dict of name to array, or as a list"),
        (None, "given as a dict of name to array, or as a list"),
    ],
)
def test_wrong_inputs_are_explained(increment: Module, feeds: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        increment.run(feeds)
    assert caught.value.exit_code == 1


def test_wrong_inputs_are_explained_after_right_ones(increment: Module) -> None:
    increment.run({"x": X})
    for feeds, message in [
        ({"x": X.reshape(2, 2)}, r"no specialisation fits.*x: \[2, 2\]"),
        ({"x": X.astype(np.float64)}, "data type float64, not float32"),
        ({"X": X}, "missing x; unexpected X"),
        ({"x": X, "z": X}, "unexpected z"),
        ({}, "missing x"),
    ]:
        with pytest.raises(InputError, match=message):
            increment.run(feeds)
    for given in (X, X.astype(">f4"), np.repeat(X, 2)[::2], [0, 1, 2, 3]):
        np.testing.assert_array_equal(increment.run({"x": given})["u"], X + 2)


def converted(value: Any, dtype: str) -> np.ndarray:
    """What VALUE becomes as the only input, of DTYPE and any shape."""
    program = reverse_program()
    types = [replace(v, type=TensorType(dtype, None)) for v in program.values]
    (array,) = convert_feeds({program.values[program.inputs[0]].name: value}, [replace(program, values=tuple(types))])
    assert array.dtype.name == dtype
    return array


@pytest.mark.parametrize(
    ("value", "dtype"),
    [([1.5, 2], "int64"), (2.0, "int8"), ([0, 1], "bool"), ([300], "int8"), ([-1], "uint8"), ([1j], "float32")]
    + [
        ([8], "int4"),
        ([-1], "uint4"),
        ([1.5], "int4"),
        ([1 << 64], "bool"),
        (["1"], "bool"),
        ([1 << 63, -1], "uint64"),
    ],
)
def test_numbers_without_a_type_are_never_changed(value: Any, dtype: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        converted(value, dtype)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [([1, 2], "float32"), ([True, False], "bool"), ([True], "int64"), ([], "int64"), (3, "float16")]
    + [([-8, 7], "int4"), ([15], "uint4"), ([(1 << 64) - 1, 1], "uint64")],
)
def test_numbers_without_a_type_get_that_of_the_input(value: Any, dtype: str) -> None:
    np.testing.assert_array_equal(converted(value, dtype), value)


def test_bfloat16_comes_through_dlpack() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([[1.0, -2.5], [0.0, 3.0]], dtype=torch.bfloat16)
    np.testing.assert_array_equal(converted(tensor, "bfloat16").astype(np.float32), [[1, -2.5], [0, 3]])
    np.testing.assert_array_equal(converted(tensor.T, "bfloat16").astype(np.float32), [[1, 0], [-2.5, 3]])
    np.testing.assert_array_equal(converted(torch.zeros(2).bfloat16().requires_grad_(), "bfloat16"), [0, 0])
    with pytest.raises(InputError, match="cannot be read"):
        converted(torch.zeros(2, dtype=torch.float8_e5m2), "bfloat16")


def test_too_many_positional_inputs(increment: Module) -> None:
    with pytest.raises(InputError, match="2 inputs were given"):
        increment(X, X)


# --- out ---


def test_out_receives_the_result(increment: Module) -> None:
    u, w = np.empty(4, np.float32), np.empty(4, np.float32)
    outputs = increment.run({"x": X}, out={"u": u, "w": w})
    assert outputs["u"] is u and outputs["w"] is w
    np.testing.assert_array_equal(u, X + 2)
    np.testing.assert_array_equal(w, W)


def test_out_may_be_one_array_twice(increment: Module) -> None:
    """The outputs are stored in their order."""
    both = np.empty(4, np.float32)
    outputs = increment.run({"x": X}, out={"u": both, "w": both})
    assert outputs["u"] is both and outputs["w"] is both
    np.testing.assert_array_equal(both, W)


def test_out_may_be_a_part_of_an_array(increment: Module) -> None:
    whole = np.zeros((3, 4), np.float32)
    increment.run({"x": X}, out={"u": whole[1]})
    np.testing.assert_array_equal(whole, [X * 0, X + 2, X * 0])


def test_out_may_be_an_input(increment: Module) -> None:
    x = X.copy()
    increment.run({"x": x}, out={"u": x})
    np.testing.assert_array_equal(x, X + 2)


@pytest.mark.parametrize(
    "out",
    [
        {"v": X.copy()},
        {"u": np.empty(3, np.float32)},
        {"u": np.empty(4)},
        {"u": np.empty(8, np.float32)[::2]},
        {"u": [0] * 4},
    ],
)
def test_out_that_does_not_fit(increment: Module, out: Any) -> None:
    with pytest.raises(InputError, match="out: "):
        increment.run({"x": X}, out=out)


# --- odd programs ---


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool", "complex64"])
def test_an_output_may_be_an_input_of_any_shape(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    x = np.ones(shape, dtype)
    outputs = module(tmp_path, passes_through(TensorType(dtype, shape), 2), kernels=b"").run({"x": x})
    for name in ("y0", "y1"):
        assert outputs[name].shape == shape and outputs[name].dtype == x.dtype
        assert not np.shares_memory(outputs[name], x)
    assert not np.shares_memory(outputs["y0"], outputs["y1"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4"])
def test_types_that_numpy_lacks(tmp_path: Path, dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([1, 2, -3], getattr(ml_dtypes, dtype))
    program = Program("p", (0,), (0, 1), (
        ValueSpec("x", TensorType(dtype, (3,)), Input(0)), ValueSpec("w", TensorType(dtype, (3,)), Constant("w")),
    ), ())  # fmt: skip
    outputs = module(tmp_path, program, weights={"w": values}, kernels=b"").run({"x": values})
    for output in outputs.values():
        assert output.dtype == values.dtype
        np.testing.assert_array_equal(output.astype(np.float32), values.astype(np.float32))


def test_a_launch_of_no_tasks(tmp_path: Path) -> None:
    empty = TensorType("float32", (0,))
    values = (ValueSpec("x", empty, Input(0)), ValueSpec("y", empty))
    program = Program("p", (0,), (1,), values, (NativeStep((Launch("increment", 0, (Arg(0), Arg(1))),)),))
    for count in (1, 2):
        assert module(tmp_path, program, threads=count)(np.empty(0, np.float32))["y"].shape == (0,)


def test_arguments_with_offsets_are_views(tmp_path: Path) -> None:
    pair = TensorType("float32", (8,))
    values = (ValueSpec("x", pair, Input(0)), ValueSpec("y", pair))
    launches = tuple(Launch("increment", 1, (Arg(0, offset), Arg(1, offset))) for offset in (0, 16))
    x = np.arange(8, dtype=np.float32)
    program = Program("p", (0,), (1,), values, (NativeStep(launches),))
    np.testing.assert_array_equal(module(tmp_path, program)(x)["y"], x + 1)


def test_scratch_memory_is_each_threads_own(tmp_path: Path) -> None:
    x = np.arange(SIZE, dtype=np.float32)
    loaded = module(tmp_path, reverse_program(), threads=4)
    for _ in range(200):
        np.testing.assert_array_equal(loaded(x)["y"], x[::-1])


def test_host_and_native_steps_alternate(tmp_path: Path) -> None:
    """y = transposed(x + 1) + 1, with a strided array between host and kernel, and an unused output."""
    square, flat = TensorType("float32", (2, 2)), FLOAT4
    values = (
        ValueSpec("x", square, Input(0)), ValueSpec("a", square, Heap()), ValueSpec("t", square), ValueSpec("y", flat),
    )  # fmt: skip
    steps = (
        NativeStep((Launch("increment", 1, (Arg(0), Arg(1))),)),
        HostStep("transpose", (1,), (2,), {"perm": [1, 0]}, ("transpose_1",)),
        NativeStep((Launch("increment", 1, (Arg(2), Arg(3))),)),
    )
    program = Program("p", (0,), (3,), values, steps)
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    np.testing.assert_array_equal(module(tmp_path, program)(x)["y"], (x + 1).T.reshape(-1) + 1)


def test_a_host_result_of_the_wrong_shape_never_reaches_a_kernel(tmp_path: Path) -> None:
    values = (ValueSpec("x", FLOAT4, Input(0)), ValueSpec("t", TensorType("float32", (8,))), ValueSpec("y", FLOAT4))
    steps = (
        HostStep("transpose", (0,), (1,), {"perm": [0]}, ("node_3",)),
        NativeStep((Launch("increment", 1, (Arg(1), Arg(2))),)),
    )
    with pytest.raises(ExecutionError, match=r"node_3 \(transpose\): value 't' came out as float32\[4\]"):
        module(tmp_path, Program("p", (0,), (2,), values, steps))(X)


def test_unknown_host_operators_are_named_at_load(tmp_path: Path) -> None:
    values = (ValueSpec("x", FLOAT4, Input(0)), ValueSpec("y", FLOAT4))
    program = Program("p", (0,), (1,), values, (HostStep("frobnicate", (0,), (1,)),))
    with pytest.raises(UnsupportedError, match="frobnicate") as caught:
        module(tmp_path, program)
    assert caught.value.exit_code == 2


def test_unknown_kernels_are_named(tmp_path: Path) -> None:
    values = (ValueSpec("x", FLOAT4, Input(0)), ValueSpec("y", FLOAT4))
    program = Program("p", (0,), (1,), values, (NativeStep((Launch("nothing", 1, (Arg(0), Arg(1))),)),))
    with pytest.raises(ArtifactSchemaError, match="nothing"):
        module(tmp_path, program)
    with pytest.raises(TilestitchRuntimeError, match="no such member"):
        module(tmp_path, program, kernels=b"")


def test_constants_beyond_their_weight_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactSchemaError, match="ends beyond"):
        module(tmp_path, increment_program(), weights={"w": W[:3]})


def test_faults_of_kernels_name_the_onnx_node(tmp_path: Path) -> None:
    loaded = module(tmp_path, pick_program())
    np.testing.assert_array_equal(loaded(X, np.array([3, 0, 0, 1]))["y"], [3, 0, 0, 1])
    with pytest.raises(ExecutionError, match="gather_7: index is negative"):
        loaded(X, np.array([0, -1, 0, 0]))
    with pytest.raises(ExecutionError, match="gather_7: index is too large"):
        loaded(X, np.array([0, 0, 4, 0]))
    np.testing.assert_array_equal(loaded(X, np.array([1, 1, 1, 1]))["y"], [1, 1, 1, 1])


def test_specialisations_are_chosen_by_shape(tmp_path: Path) -> None:
    programs = [passes_through(TensorType("float32", shape)) for shape in ((2, 3), (4, 3), ("n", 5))]
    loaded = module(tmp_path, *programs, kernels=b"")
    assert str(loaded.inputs[0]) == "x: float32[x_0, x_1]"
    for shape in ((2, 3), (4, 3), (7, 5)):
        assert loaded(np.zeros(shape, np.float32))["y0"].shape == shape
    with pytest.raises(
        InputError, match=r"\[3, 3\].*float32\[2, 3\]\) or \(x: float32\[4, 3\]\) or \(x: float32\[n, 5\]"
    ):
        loaded(np.zeros((3, 3), np.float32))


def test_equal_symbols_are_equal_sizes(tmp_path: Path) -> None:
    type_ = TensorType("float32", ("n",))
    program = Program("p", (0, 1), (0,), (ValueSpec("a", type_, Input(0)), ValueSpec("b", type_, Input(1))), ())
    loaded = module(tmp_path, program, kernels=b"")
    loaded(X, X)
    with pytest.raises(InputError):
        loaded(X, X[:2])


def test_profile_names_every_launch(increment: Module) -> None:
    times = increment.profile({"x": X})
    assert [(plain(time.symbol), time.origins) for time in times] == [
        ("increment", ("first",)),
        ("increment", ("second", "third")),
    ]
    assert all(time.microseconds >= 0 for time in times)


def test_close(increment: Module) -> None:
    increment(X)
    increment.close()
    increment.close()
    with pytest.raises(ExecutionError, match="closed"):
        increment(X)


# --- devices and machines ---


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda:0", "compiled for cpu.*device='cpu'.*compile MODEL.onnx --target cuda:sm_XX"),
        ("cuda", "compiled for cpu"),
        ("emulator", "compiled for cpu.*--keep-source"),
        ("tpu", "'tpu' is unknown; give cpu, cuda"),
        ("cuda:-1", "unknown"),
    ],
)
def test_other_devices(tmp_path: Path, device: str, message: str) -> None:
    path = tmp_path / "m.tsm"
    write_artifact(path, contents(increment_program(), weights={"w": W}))
    with pytest.raises(DeviceError, match=message) as caught:
        load(path, device=device)
    assert caught.value.exit_code == (1 if "unknown" in message else 4)


@pytest.mark.parametrize("option", [{"sync": "off"}, {"verify": 0}])
def test_flags_of_another_type_are_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    path = tmp_path / "m.tsm"
    write_artifact(path, contents(increment_program(), weights={"w": W}))
    with pytest.raises(InputError, match="; give True or False"):
        load(path, **option)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            TargetInfo("cpu", TARGET.triple, "future", ("avx2048", "sse2")),
            "like future with avx2048.*, which this one lacks",
        ),
        (TargetInfo("cpu", "riscv64-linux-gnu"), "compiled for riscv64"),
        (TargetInfo("cuda", architectures=("sm_90a",)), "compiled for cuda.*device='cuda' or 'emulator'.*--target cpu"),
    ],
)
def test_other_machines(tmp_path: Path, target: TargetInfo, message: str) -> None:
    path = tmp_path / "m.tsm"
    write_artifact(path, contents(increment_program(), weights={"w": W}, target=target))
    with pytest.raises(DeviceError, match=message):
        load(path)


def test_kernels_that_are_no_library(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot be loaded"):
        module(tmp_path, increment_program(), weights={"w": W}, kernels=b"no library")


def test_two_artifacts_do_not_mix_up_their_kernels(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = module(tmp_path / "a", increment_program(), weights={"w": W})
    second = module(tmp_path / "b", reverse_program())
    x = np.arange(SIZE, dtype=np.float32)
    np.testing.assert_array_equal(first(X)["u"], X + 2)
    np.testing.assert_array_equal(second(x)["y"], x[::-1])


def test_an_artifact_may_be_replaced_while_it_is_loaded(tmp_path: Path) -> None:
    loaded = module(tmp_path, increment_program(), weights={"w": W})
    write_artifact(tmp_path / "model.tsm", contents(increment_program(), weights={"w": W * 0}))
    np.testing.assert_array_equal(loaded(X)["w"], W)


# --- threads ---


def test_threads_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loaded = module(tmp_path, increment_program(), weights={"w": W}, threads=4)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(DeviceError, match=r"4 threads cannot be started.*fewer"):
        loaded(X)
    monkeypatch.undo()
    np.testing.assert_array_equal(loaded(X)["u"], X + 2)


def test_more_memory_than_there_is(tmp_path: Path) -> None:
    program = Program("p", (0,), (0,), (ValueSpec("x", FLOAT4, Input(0)),), (), 1 << 61)
    with pytest.raises(DeviceError, match="no memory for 2305843009213693952 bytes"):
        module(tmp_path, program, kernels=b"")(X)


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "99999"])
def test_wrong_thread_counts(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(threads.ALIAS, value)
    with pytest.raises(DeviceError, match="TILESTITCH_NUM_THREADS"):
        threads.thread_count(None)
    assert threads.thread_count(3) == 3
    with pytest.raises(DeviceError, match="num_threads is 0"):
        threads.thread_count(0)


def test_thread_count_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.ALIAS, "5")
    assert threads.thread_count(None) == 5
    monkeypatch.delenv(threads.ALIAS)
    assert 1 <= threads.thread_count(None) <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_launches_wait_for_the_launches_before(tmp_path: Path, count: int) -> None:
    x = np.arange(SIZE, dtype=np.int32)
    expected = chain_reference(x, 20)
    with module(tmp_path, chain_program(20, serial=(0, 5, 6, 19)), threads=count) as loaded:
        for _ in range(1000):
            np.testing.assert_array_equal(loaded(x)["z"], expected)


@pytest.mark.parametrize("count", [1, 3])
def test_concurrent_runs(tmp_path: Path, count: int) -> None:
    loaded = module(tmp_path, chain_program(10), threads=count)

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).integers(0, 1000, SIZE, np.int32)
        expected = chain_reference(x, 10)
        for _ in range(100):
            np.testing.assert_array_equal(loaded(x)["z"], expected)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


@pytest.mark.parametrize("most", [1, 2])
def test_runs_wait_for_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Eight threads and few workers: no more are made, and none waits for ever."""
    made = []
    worker = CpuBackend.worker

    def counted(backend: CpuBackend) -> CpuWorker:
        made.append(worker(backend))
        return made[-1]

    monkeypatch.setattr("tilestitch.runtime.cpu.backend.available_cores", lambda: most)
    monkeypatch.setattr(CpuBackend, "worker", counted)
    x = np.arange(SIZE, dtype=np.int32)
    expected = chain_reference(x, 10)
    with module(tmp_path, chain_program(10)) as loaded, ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda _: loaded(x)["z"], range(2000)):
            np.testing.assert_array_equal(result, expected)
    assert 1 <= len(made) <= most


def test_closing_while_others_run(tmp_path: Path) -> None:
    x = np.arange(SIZE, dtype=np.int32)
    expected = chain_reference(x, 10)
    loaded = module(tmp_path, chain_program(10))

    def work(_: int) -> str:
        try:
            while True:
                np.testing.assert_array_equal(loaded(x)["z"], expected)
        except ExecutionError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        ends = [pool.submit(work, i) for i in range(4)]
        loaded(x)
        loaded.close()
    assert all("closed" in end.result() for end in ends)


def test_many_modules_come_and_go(tmp_path: Path) -> None:
    import gc
    import threading

    x = np.arange(SIZE, dtype=np.int32)
    gc.collect()
    before, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for index in range(20):
        loaded = module(tmp_path, chain_program(3), threads=3)
        loaded(x)
        if index % 2:
            loaded.close()
    del loaded
    gc.collect()
    assert threading.active_count() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


FORK = """
import os, sys
import numpy as np
from tests.runtime.signed import plain
from tilestitch.runtime import load
module = load(sys.argv[1], num_threads=2)
x = np.arange(64, dtype=np.int32)
expected = module(x)["z"]
child = os.fork()
same = all((module(x)["z"] == expected).all() for _ in range(100))
if child == 0:
    os._exit(0 if same else 1)
assert same and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("fine")
"""


def test_forked_children_can_run(tmp_path: Path) -> None:
    path = tmp_path / "m.tsm"
    write_artifact(path, contents(chain_program(10)))
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "fine", result.stderr


# --- pickle and copy ---


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_are_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: Any) -> None:
    monkeypatch.chdir(tmp_path)
    write_artifact("m.tsm", contents(increment_program(), weights={"w": W}, strip_weights=True))
    write_weights("w.safetensors", {"w": W})
    with load("m.tsm", num_threads=2, weights="w.safetensors") as loaded:
        monkeypatch.chdir("/")
        other = again(loaded)
        np.testing.assert_array_equal(other(X)["u"], loaded(X)["u"])
    assert other.num_threads == 2
    np.testing.assert_array_equal(other(X)["u"], X + 2)
    other.close()


def test_a_copy_of_another_file_is_refused(tmp_path: Path) -> None:
    with module(tmp_path, increment_program(), weights={"w": W}) as loaded:
        data = pickle.dumps(loaded)
    write_artifact(tmp_path / "model.tsm", contents(increment_program(), weights={"w": 2 * W}))
    with pytest.raises(ArtifactError, match=r"model\.tsm: this is another artifact"):
        pickle.loads(data)


def test_what_came_from_memory_says_what_to_pickle(tmp_path: Path) -> None:
    path = tmp_path / "m.tsm"
    write_artifact(path, contents(increment_program(), weights={"w": W}))
    for arguments in ({"source": path.read_bytes()}, {"source": path, "weights": {"w": W}}):
        with load(**arguments) as loaded, pytest.raises(TypeError, match="pickle the bytes or arrays instead"):
            copy.deepcopy(loaded)
