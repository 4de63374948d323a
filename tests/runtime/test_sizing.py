"""Programs with symbols run at any size: values of the symbols, memory that grows, results, errors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.programs import contents, module
from tilestitch.runtime import Module, hostmemory, load
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.buffers import address_of
from tilestitch.runtime.cpu import recycled, segment
from tilestitch.runtime.errors import ArtifactSchemaError, DeviceError, ExecutionError, InputError
from tilestitch.runtime.execution import Execution
from tilestitch.runtime.program import (
    Arena,
    Arg,
    Body,
    Heap,
    HostStep,
    Input,
    Launch,
    LoopStep,
    NativeStep,
    Program,
    SizeCheck,
    Sizes,
    Symbol,
    TensorType,
    ValueSpec,
    size_reference,
)

ROWS = TensorType("float32", ("batch", "seq"))
SIZES = ValueSpec("sizes", TensorType("int64", (2,)), Sizes())
BATCH, SEQ, PAST = Symbol("batch", 1, 64), Symbol("seq", 1, 3000), Symbol("past", 0)
INCREMENT_TASKS = "(batch*seq + 31)//32"


def increment(*args: int, packed: bool = False) -> Launch:
    return Launch("sized_increment", INCREMENT_TASKS, tuple(map(Arg, args)), ("add",), packed=packed)


def rows_program() -> Program:
    """y = x + 2 backwards in each row, and u = x + 1, which lies in the arena."""
    nbytes = "4*batch*seq"
    values = (
        ValueSpec("x", ROWS, Input(0)), SIZES,
        ValueSpec("u", ROWS, Arena(0, nbytes)),
        ValueSpec("v", ROWS, Arena(f"({nbytes} + 63)//64*64", nbytes)),
        ValueSpec("y", ROWS, Heap()),
    )  # fmt: skip
    reverse = Launch("sized_reverse", "batch", (Arg(2), Arg(1), Arg(3)), ("reverse",), "4*seq")
    steps = (NativeStep((increment(0, 1, 2), reverse, increment(3, 1, 4))),)
    arena = f"({nbytes} + 63)//64*64 + {nbytes}"
    return Program("rows", (0,), (4, 2), values, steps, arena, (), (BATCH, SEQ))


def expected(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": (x + 1)[:, ::-1] + 1, "u": x + 1}


def sample(batch: int, seq: int) -> np.ndarray:
    return np.random.default_rng(batch * 10_000 + seq).normal(size=(batch, seq)).astype(np.float32)


def check(loaded: Module, batch: int, seq: int) -> dict[str, Any]:
    x = sample(batch, seq)
    results = loaded.run({"x": x})
    for name, value in expected(x).items():
        np.testing.assert_array_equal(results[name], value)
    return results


@pytest.fixture(params=["resized", "bound"])
def rows(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    """In memory that is resized, and, as on devices, in memory for each of the values last used."""
    if request.param == "bound":
        bind_anew(monkeypatch)
    with module(tmp_path, rows_program(), threads=2) as loaded:
        yield loaded


def bind_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the CPU execute the program that is bound to values, as devices do."""
    from tilestitch.runtime.cpu.backend import CpuWorker

    monkeypatch.setattr(CpuWorker, "resizes", False)
    monkeypatch.setattr(CpuWorker, "most_kept", 8)


SHAPES = [(1, 1), (2, 7), (64, 3000), (1, 1), (3, 64), (64, 1), (1, 3000), (2, 7)]


def test_one_program_runs_at_all_sizes(rows: Module) -> None:
    for batch, seq in SHAPES:
        check(rows, batch, seq)
    for seq in range(1, 40):
        check(rows, 5, seq)


def test_results_stay_as_they_are_when_sizes_change(rows: Module) -> None:
    kept = [(shape, check(rows, *shape)) for shape in SHAPES]
    for shape, results in kept:
        for name, value in expected(sample(*shape)).items():
            np.testing.assert_array_equal(results[name], value)


def test_results_are_written_to_the_callers_arrays(rows: Module) -> None:
    for batch, seq in SHAPES[:4]:
        x, y = sample(batch, seq), np.empty((batch, seq), np.float32)
        results = rows.run({"x": x}, out={"y": y})
        assert results["y"] is y
        np.testing.assert_array_equal(y, expected(x)["y"])
        with pytest.raises(InputError, match=rf"'y' needs .* array of float32\[{batch}, {seq}\]"):
            rows.run({"x": x}, out={"y": np.empty((batch, seq + 1), np.float32)})


def test_small_values_have_addresses_that_stay_when_sizes_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[np.ndarray] = []

    def address(array: np.ndarray) -> int:
        looked_up.append(array)
        return address_of(array)

    monkeypatch.setattr(segment, "address_of", address)
    with module(tmp_path, rows_program()) as loaded:
        results, counts = [], []
        for seed in range(4):
            x = sample(3, 7) + seed
            results.append((x.copy(), loaded.run({"x": x})))
            counts.append(len(looked_up))
            x[...] = -1
        assert counts[0] > 0 and len(set(counts)) == 1, "only the first run looks up addresses"
        for x, found in results:
            for name, value in expected(x).items():
                np.testing.assert_array_equal(found[name], value)
        out = np.empty_like(results[0][1]["y"])
        assert loaded.run({"x": results[0][0]}, out={"y": out})["y"] is out
        np.testing.assert_array_equal(out, results[0][1]["y"])
        check(loaded, 64, 3000)
        assert len(looked_up) > counts[0], "what is large is not copied"


def test_concurrent_runs_have_sizes_of_their_own(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with module(tmp_path, rows_program()) as loaded, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: check(loaded, *SHAPES[number % len(SHAPES)]), range(64)))


def test_profiles_and_other_ways_to_run(rows: Module) -> None:
    x = sample(3, 5)
    assert [time.origins for time in rows.profile({"x": x})] == [("add",), ("reverse",), ("add",)]
    np.testing.assert_array_equal(rows(x)["u"], x + 1)
    (u,) = rows.run(["u"], {"x": x.tolist()})
    np.testing.assert_array_equal(u, x + 1)


def test_symbols_are_printed_with_their_ranges(rows: Module) -> None:
    assert str(rows.inputs[0]) == "x: float32[batch:1..64, seq:1..3000]"
    assert rows.inputs[0].shape == ("batch", "seq")
    assert str(rows.outputs[0]) == "y: float32[batch:1..64, seq:1..3000]"
    assert str(Symbol("n")) == "n:1.."
    assert "batch:1..64" in repr(rows)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((65, 3), r"input 'x' of type float32\[batch, seq\]: dimension 0 is 65: batch, which must be from 1 to 64; "
                  r"expected \(x: float32\[batch:1..64, seq:1..3000\]\)"),
        ((1, 3001), "dimension 1 is 3001: seq, which must be from 1 to 3000"),
        ((0, 3), "dimension 0 is 0: batch"),
        ((3,), r"\[3\] has rank 1; give 2 dimensions"),
        ((3, 3, 3), "has rank 3"),
    ],
)  # fmt: skip
def test_shapes_outside_of_the_ranges_are_refused(rows: Module, shape: tuple[int, ...], message: str) -> None:
    check(rows, 2, 2)  # the errors are the same before and after a run
    with pytest.raises(InputError, match=message):
        rows.run({"x": np.zeros(shape, np.float32)})
    check(rows, 2, 2)


def two_inputs(first: Any, second: Any, *symbols: Symbol, checks: tuple[SizeCheck, ...] = ()) -> Program:
    values = (
        ValueSpec("a", TensorType("float32", first), Input(0)), ValueSpec("b", TensorType("float32", second), Input(1)),
        ValueSpec("shape", TensorType("int64", (len(symbols),))),
    )  # fmt: skip
    attrs = {"values": [size_reference(symbol.name) for symbol in symbols], "dtype": "int64"}
    steps = (HostStep("tell_sizes", (), (2,), attrs),)
    return Program("two", (0, 1), (2,), values, steps, 0, (), symbols, checks)


@pytest.fixture(autouse=True)
def tell_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host step whose result are numbers of its attributes."""
    from tilestitch.runtime import loaded

    table = {**loaded.host_table(), "tell_sizes": lambda inputs, attrs: [np.array(attrs["values"], np.int64)]}
    monkeypatch.setattr(loaded, "host_table", lambda: table)


@pytest.mark.parametrize(
    ("first", "second", "given", "solved"),
    [
        (("past + seq",), ("seq",), ((9,), (2,)), [7, 2]),
        (("seq",), ("seq + past",), ((2,), (9,)), [7, 2]),
        (("seq",), ("past*4 + seq*2 + 1",), ((2,), (13,)), [2, 2]),
        (("seq",), ("40 - past",), ((2,), (9,)), [31, 2]),
        (("seq", "seq*past"), ("past", 3), ((2, 8), (4, 3)), [4, 2]),
        (("max(past, seq)", "past"), ("seq", "past//2"), ((6, 5), (6, 2)), [5, 6]),
    ],
)
def test_symbols_are_solved(first: Any, second: Any, given: Any, solved: list[int], tmp_path: Path) -> None:
    with module(tmp_path, two_inputs(first, second, PAST, replace(SEQ, low=0))) as loaded:
        for _ in range(2):
            result = loaded.run([np.zeros(shape, np.float32) for shape in given])
            assert result["shape"].tolist() == solved


@pytest.mark.parametrize(
    ("first", "second", "given", "message"),
    [
        (("past + seq",), ("seq",), ((1,), (2,)), "dimension 0 is 1: past is -1, which must be from 0 to"),
        (("seq",), ("past*4",), ((2,), (9,)), "dimension 0 is 9: there is no past for it"),
        (("seq", "past"), ("seq",), ((2, 1), (3,)), r"input 'b' .*: dimension 0 is 3, but seq is 2, for past=1, seq=2"),
        (("seq", "past"), (7,), ((2, 1), (3,)), "dimension 0 is 3, but must be 7; make"),
        (("seq", "past"), ("past//seq",), ((0, 1), (3,)), r"past=1, seq=0: past//seq divides by zero"),
        (("seq", "past"), ("past*past*past*past",), ((1, 2**31 - 1), (3,)), r"past\*past\*past\*past is too large"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_agree_are_refused(
    first: Any, second: Any, given: Any, message: str, tmp_path: Path
) -> None:
    with module(tmp_path, two_inputs(first, second, PAST, replace(SEQ, low=0))) as loaded:
        (sizing,) = loaded._reader._sizings
        assert sizing is not None
        huge = np.zeros(1, np.float32)
        arrays = [np.lib.stride_tricks.as_strided(huge, shape, (0,) * len(shape)) for shape in given]
        with pytest.raises(InputError, match=message):
            sizing.bind(arrays)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (SizeCheck("past*seq % 6", "==", 0, "ONNX node R: six to a row"),
         r"ONNX node R: six to a row: past\*seq % 6 must be 0, but past\*seq % 6 is 2 for past=4, seq=2; give inputs"),
        (SizeCheck("past", "<=", "seq", "ONNX node S: no more"), "must be at most seq, but past is 4 and seq is 2"),
    ],
)  # fmt: skip
def test_rules_of_the_model_are_checked(check: SizeCheck, message: str, tmp_path: Path) -> None:
    with module(tmp_path, two_inputs(("past",), ("seq",), PAST, SEQ, checks=(check,))) as loaded:
        loaded.run([np.zeros(6, np.float32), np.zeros(6, np.float32)])
        with pytest.raises(InputError, match=message):
            loaded.run([np.zeros(4, np.float32), np.zeros(2, np.float32)])


def test_the_first_specialisation_that_fits_is_run(tmp_path: Path) -> None:
    def program(name: str, shape: Any, *symbols: Symbol, more: int) -> Program:
        values = (ValueSpec("x", TensorType("float32", shape), Input(0)), ValueSpec("y", TensorType("int64", (1,))))
        step = HostStep("tell_sizes", (), (1,), {"values": [more]})
        return Program(name, (0,), (1,), values, (step,), 0, (), symbols)

    favoured = program("favoured", (8, 3), more=1)
    narrow = program("narrow", ("batch", 3), replace(BATCH, high=16), more=2)
    wide = program("wide", ("batch", "n"), BATCH, Symbol("n"), more=3)
    with module(tmp_path, favoured, narrow, wide) as loaded:
        assert str(loaded.inputs[0]) == "x: float32[batch:1..64, n:1..]"
        for _ in range(2):
            for shape, number in [((8, 3), 1), ((9, 3), 2), ((16, 3), 2), ((17, 3), 3), ((8, 4), 3)]:
                assert loaded.run([np.zeros(shape, np.float32)])["y"].tolist() == [number]
        with pytest.raises(InputError, match=r"from 1 to 16; or .* from 1 to 64; expected \(x: float32\[8, 3\]\) or"):
            loaded.run([np.zeros((65, 3), np.float32)])


def decoder_program() -> Program:
    """present = past and then new, along the second axis: a cache that grows."""
    symbols = (BATCH, PAST, Symbol("seq"))
    values = (
        ValueSpec("past", TensorType("float32", ("batch", "past")), Input(0)),
        ValueSpec("new", TensorType("float32", ("batch", "seq")), Input(1)),
        ValueSpec("sizes", TensorType("int64", (3,)), Sizes()),
        ValueSpec("present", TensorType("float32", ("batch", "past + seq")), Heap()),
    )
    launch = Launch("sized_append", "batch", tuple(map(Arg, (0, 1, 2, 3))), ("concat",))
    return Program("decoder", (0, 1), (3,), values, (NativeStep((launch,)),), 0, (), symbols)


def test_a_cache_grows_from_step_to_step(tmp_path: Path) -> None:
    with module(tmp_path, decoder_program()) as loaded:
        cache, tokens = np.zeros((2, 0), np.float32), []
        for step in range(200):
            tokens.append(np.full((2, 1), step, np.float32))
            cache = loaded.run({"past": cache, "new": tokens[-1]})["present"]
            np.testing.assert_array_equal(cache, np.concatenate(tokens, axis=1))


def test_memory_of_a_growing_result_is_seldom_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    allocated = recycled.allocated
    monkeypatch.setattr(recycled, "allocated", lambda nbytes, what: made.append(nbytes) or allocated(nbytes, what))
    with module(tmp_path, decoder_program()) as loaded:
        cache = np.zeros((1, 100), np.float32)
        for _ in range(400):
            cache = loaded.run({"past": cache, "new": np.ones((1, 1), np.float32)})["present"]
    assert len(made) < 30


def test_the_arena_grows_and_never_shrinks(tmp_path: Path) -> None:
    with module(tmp_path, rows_program()) as loaded:
        sizes = []
        for shape in [(1, 8), (64, 100), (1, 8), (64, 101)]:
            check(loaded, *shape)
            sizes.append(arena_of(loaded).size)
        assert sizes[0] < sizes[1] == sizes[2] < sizes[3] == sizes[1] * 5 // 4


def test_the_old_arena_is_given_back_before_a_larger_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with module(tmp_path, rows_program()) as loaded:
        check(loaded, 1, 8)
        old = weakref.ref(arena_of(loaded).base)
        alive: list[bool] = []
        aligned_bytes = hostmemory.aligned_bytes

        def watched(size: int) -> np.ndarray:
            alive.append(old() is not None)
            return aligned_bytes(size)

        monkeypatch.setattr(hostmemory, "aligned_bytes", watched)
        check(loaded, 64, 100)
        assert alive[0] is False  # the first that is taken is the arena
        assert old() is None


def test_a_run_after_one_that_lacked_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with module(tmp_path, rows_program()) as loaded:
        check(loaded, 2, 3)
        with monkeypatch.context() as patch:
            patch.setattr(hostmemory, "aligned_bytes", _no_memory)
            with pytest.raises(DeviceError, match=r"no memory for .* bytes for intermediate values; free some"):
                loaded.run({"x": sample(64, 100)})
        check(loaded, 64, 100)
        check(loaded, 2, 3)


def _no_memory(size: int) -> np.ndarray:
    raise MemoryError


def arena_of(loaded: Module) -> np.ndarray:
    (context,) = loaded._pool._idle
    executions: Any = context._executions[0]
    (execution,) = executions._kept.values()
    raw: np.ndarray = execution._memory._arena.raw
    return raw


def test_executions_for_values_not_used_lately_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bind_anew(monkeypatch)
    with module(tmp_path, rows_program()) as loaded:
        for seq in range(1, 30):
            check(loaded, 1, seq)
            check(loaded, 2, 5)
        (context,) = loaded._pool._idle
        gc.collect()
        kept: Any = context._executions[0]
        assert len(kept._kept) == 8 and (2, 5) in kept._kept and (1, 29) in kept._kept


def test_bodies_have_symbols_of_their_own(tmp_path: Path) -> None:
    """A loop whose body appends a column to what it carries, in a kernel."""
    body = replace(
        decoder_program(),
        inputs=(4, 5, 0, 1),
        outputs=(5, 3),
        values=(
            ValueSpec("past", TensorType("float32", ("batch", "past")), Input(2)),
            ValueSpec("new", TensorType("float32", ("batch", "seq")), Input(3)),
            *decoder_program().values[2:],
            ValueSpec("trip", TensorType("int64", ()), Input(0)),
            ValueSpec("go", TensorType("bool", ()), Input(1)),
        ),
    )
    values = (
        ValueSpec("trips", TensorType("int64", ()), Input(0)),
        ValueSpec("go", TensorType("bool", ()), Input(1)),
        ValueSpec("x", TensorType("float32", (2, 3)), Input(2)),
        ValueSpec("new", TensorType("float32", (2, 1)), Input(3)),
        ValueSpec("y", TensorType("float32", (2, "length"))),
    )
    loop = LoopStep(0, 1, (2,), Body(body, (3,)), (4,), ("loop",))
    with module(tmp_path, Program("loop", (0, 1, 2, 3), (4,), values, (loop,))) as loaded:
        x, new = sample(2, 3), np.full((2, 1), 7, np.float32)
        for trips in (0, 1, 5, 2):
            result = loaded.run([np.int64(trips), np.bool_(True), x, new])["y"]
            np.testing.assert_array_equal(result, np.concatenate([x, *[new] * trips], axis=1))
    body = replace(body, symbols=(replace(BATCH, low=3), *body.symbols[1:]))
    narrow = Program("loop", (0, 1, 2, 3), (4,), values, (replace(loop, body=Body(body, (3,))),))
    message = r"ONNX node loop .*: in its body, input 'past'.*must be from 3 to 64"
    with module(tmp_path, narrow) as loaded, pytest.raises(ExecutionError, match=message):
        loaded.run([np.int64(1), np.bool_(True), x, new])


def _arena(number: int, **changes: Any) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        value = program.values[number]
        values = list(program.values)
        values[number] = replace(value, location=replace(value.location, **changes))
        return replace(program, values=tuple(values))

    return change


def _tasks(tasks: str) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        (step,) = program.steps
        assert isinstance(step, NativeStep)
        first, *others = step.launches
        return replace(program, steps=(NativeStep((replace(first, tasks=tasks), *others)),))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_arena(3, offset_bytes="4*batch*seq"), "does not begin at a multiple of 16 bytes, for batch=1, seq=3"),
        (_arena(3, offset_bytes="16*(batch - 1)"), "share memory that it writes"),
        (_arena(3, offset_bytes="-16*batch"), "begins before the arena"),
        (_arena(3, nbytes="4*batch*seq - 4"), "does not fit its"),
        (_arena(3, offset_bytes="64*batch + 64*seq"), "ends beyond the arena"),
        (lambda p: replace(p, arena_bytes="128 - batch*seq*64"), "ends beyond the arena|the size of the arena"),
        (_tasks("2147483648*seq"), "the number of tasks is 2147483648.seq; at most 2147483647"),
        (_tasks("batch - 2"), "the number of tasks is batch - 2; at least 0"),
    ],
)  # fmt: skip
def test_what_would_touch_other_memory_is_refused_in_the_run(
    change: Callable[[Program], Program], message: str
) -> None:
    """The signatures are right for the forged programs, as a faulty compiler's would be."""
    forged = artifact_bytes(contents(change(rows_program())))
    with load(forged, num_threads=1) as loaded, pytest.raises(ArtifactSchemaError, match=message):
        loaded.run([sample(1, 3)])


def test_many_launches_with_long_expressions_are_packed(tmp_path: Path) -> None:
    """The text of all of their tasks together would be longer than an expression may be."""
    tasks = f"{INCREMENT_TASKS} + {' + '.join(['seq - seq'] * 100)}"
    values = (ValueSpec("x", ROWS, Input(0)), SIZES, *(ValueSpec(f"y{i}", ROWS) for i in range(20)))
    launches = [replace(increment(0, 1, 2 + i, packed=i > 0), tasks=tasks) for i in range(20)]
    outputs = tuple(range(2, 22))
    program = Program("packed", (0,), outputs, values, (NativeStep(tuple(launches)),), 0, (), (BATCH, SEQ))
    with module(tmp_path, program, threads=2) as loaded:
        for batch, seq in SHAPES:
            x = sample(batch, seq)
            for result in loaded.run({"x": x}).values():
                np.testing.assert_array_equal(result, x + 1)


def test_equal_values_are_not_put_in_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resized: list[Any] = []
    with module(tmp_path, rows_program()) as loaded:
        check(loaded, 2, 3)
        (context,) = loaded._pool._idle
        executions: Any = context._executions[0]
        (execution,) = executions._kept.values()
        assert isinstance(execution, Execution)
        monkeypatch.setattr(execution._memory, "resize", resized.append)
        check(loaded, 2, 3)
        assert resized == []
