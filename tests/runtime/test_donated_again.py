"""Donated caches in run after run: what was found out once is not found out again, and what changes is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

from tilestitch.compiler import compile_model
from tilestitch.runtime import Module, caches, load
from tilestitch.runtime.caches import Caches
from tilestitch.runtime.errors import InputError
from tilestitch.runtime.feeds import MOST_SHAPES
from tilestitch.runtime.sizes import SizeError

MODEL = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[b,2,p,4] past_k, float[b,2,p,4] past_v, float[b,2,s,4] x)
    => (float[b,2,t,4] k, float[b,2,t,4] v, float[b,2,s,4] y) {
      k = Concat <axis = 2> (past_k, x)
      v = Concat <axis = 2> (past_v, x)
      y = Add (x, x)
    }"""
PASTS = {"past_k": "k", "past_v": "v"}
X = np.full((1, 2, 1, 4), 5, np.float32)


@cache
def artifact() -> bytes:
    return compile_model(onnx.parser.parse_model(MODEL), num_threads=1, donate=["past_*"]).to_bytes()


def loaded() -> Module:
    return load(artifact(), num_threads=1, donate=["past_*"])


def views(length: int = 3, room: int = 9) -> dict[str, np.ndarray]:
    """Caches of ones at the beginning of buffers of their own."""
    return {name: np.ones((1, 2, room, 4), np.float32)[:, :, :length] for name in PASTS}


def base(array: np.ndarray) -> np.ndarray:
    assert isinstance(array.base, np.ndarray)
    return array.base


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the functions are called that work out what follows from shapes and addresses."""
    calls: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        before: Callable[..., Any] = getattr(owner, name)

        def called(*args: Any) -> Any:
            calls[name] += 1
            return before(*args)

        monkeypatch.setattr(owner, name, called)

    for owner, names in ((Caches, ["_plan"]), (caches, ["with_size", "_are_apart"])):
        for name in names:
            count(owner, name)
    return calls


def test_equal_shapes_are_planned_once(counted: Counter[str]) -> None:
    with loaded() as module:
        given = views()
        for _ in range(5):
            found = module.run({"x": X, **given})
            np.testing.assert_array_equal(found["k"], np.concatenate([given["past_k"], X], 2))
            np.testing.assert_array_equal(found["y"], X + X)
        module.run({"x": X, **views()})  # other buffers of the same shape
    assert counted["_plan"] == 1 and counted["with_size"] == 2
    assert counted["_are_apart"] == 2 + 1  # for each buffers once, and in the plan


def test_plans_do_not_pile_up() -> None:
    with loaded() as module:
        for length in range(MOST_SHAPES + 9):
            module.run({"x": X, **views(length, 100)})
        assert 0 < len(module._caches._plans) <= MOST_SHAPES


def test_a_whole_buffer_without_new_rows_is_the_result_itself() -> None:
    with loaded() as module:
        buffers = {name: base(view) for name, view in views().items()}
        for _ in range(3):
            found = module.run({"x": X[:, :, :0], **buffers})
            assert all(found[PASTS[name]] is buffer for name, buffer in buffers.items())


def refused(module: Module, feeds: dict[str, Any], out: dict[str, Any] | None = None) -> str:
    with pytest.raises(InputError) as caught:
        module.run(feeds, out)
    return str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"past_k": np.ones((1, 2, 3, 4), np.float64)},
        {"past_k": np.ones((1, 2, 12), np.float32)},
        {"past_k": np.ones((1, 2, 3, 5), np.float32)},
        {"past_k": np.ones((2, 2, 3, 4), np.float32)},
        {"past_k": np.ones((1, 2, 4, 4), np.float32)},
        {"past_k": [1.0, 2.0]},
        {"x": np.ones((1, 2, 4), np.float32)},
        {"x": np.ones((3, 2, 1, 4), np.float32)},
        {"x": np.ones((1, 2, 1, 4), np.int32)},
    ],
)
def test_what_does_not_fit_is_refused_as_in_the_first_run(change: dict[str, Any]) -> None:
    with loaded() as first, loaded() as module:
        for _ in range(3):
            module.run({"x": X, **views()})
        assert refused(module, {"x": X, **views(), **change}) == refused(first, {"x": X, **views(), **change})
        missing = {"x": X, "past_k": views()["past_k"]}
        assert refused(module, missing) == refused(first, missing)
        assert refused(module, views()) == refused(first, views())


def test_inputs_of_other_types_beside_caches() -> None:
    """Sequences of arrays that are alike or not, optional tensors that are there, None or left out."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[p,4] past, float[s,4] x, seq(float[n,4]) more, optional(float[4]) last)
    => (float[t,4] k, float[u,4] y, bool there) {
      k = Concat <axis = 0> (past, x)
      y = ConcatFromSequence <axis = 0> (more)
      there = OptionalHasElement (last)
    }"""
    rows = np.ones((3, 4), np.float32)
    with load(compile_model(onnx.parser.parse_model(text), donate=["past"]).to_bytes(), donate=["past"]) as module:
        for more in ([rows, rows[:2]], [rows, rows], [rows]):
            for last in ({"last": rows[0]}, {"last": None}, {}):
                found = module.run({"past": rows, "x": rows[:1], "more": more, **last})
                np.testing.assert_array_equal(found["k"], np.ones((4, 4)))
                assert len(found["y"]) == sum(map(len, more)) and found["there"] == (last.get("last") is not None)
        assert "'x' must be float32[s, 4]" in refused(module, {"past": rows, "x": [[1.0], [1.0, 2.0]], "more": []})


def moved(found: dict[str, np.ndarray], buffers: dict[str, np.ndarray]) -> bool:
    """Whether the results lie elsewhere than in the buffers, which then still hold only ones."""
    is_moved = not any(np.shares_memory(found[PASTS[name]], buffer) for name, buffer in buffers.items())
    assert is_moved == all((buffer == 1).all() for buffer in buffers.values())
    return is_moved


def test_views_of_other_libraries_stay_in_their_buffers() -> None:
    """These do not say what they are views of. Those that begin elsewhere, or are dense, are no first rows."""
    torch = pytest.importorskip("torch")
    with loaded() as module:
        given, places = dict.fromkeys(PASTS, torch.zeros(1, 2, 0, 4)), []
        for length in range(1, 14):
            found = module.run({"x": X, **given}, like="torch")
            given = {name: found[output] for name, output in PASTS.items()}
            assert all(tensor.shape[2] == length and (tensor == 5).all() for tensor in given.values())
            places.append([tensor.data_ptr() for tensor in given.values()])
        assert places == places[:1] * 13
        for change in (lambda rows: rows[:, :, 1:], lambda rows: rows.contiguous(), lambda rows: rows.flip(1)):
            kept = {name: tensor.clone() for name, tensor in given.items()}
            changed = {name: change(tensor) for name, tensor in given.items()}
            found = module.run({"x": X + 1, **changed}, like="torch")
            assert not {found[output].data_ptr() for output in PASTS.values()} & {*places[0]}
            assert all((tensor == kept[name]).all() for name, tensor in given.items())
        del given, found, changed
        module.run({"x": X, **views()})
        assert len(module._caches._memory._made) == 0


def test_tensors_that_cannot_be_read_as_they_are() -> None:
    """With gradients, which are left; of a data type that numpy lacks; and of numbers in lists, as other inputs."""
    torch = pytest.importorskip("torch")
    rows = torch.ones(1, 2, 3, 4, requires_grad=True)
    with loaded() as module:
        for given in (rows, rows.tolist()):
            found = module.run({"x": X, **dict.fromkeys(PASTS, given)})
            np.testing.assert_array_equal(found["k"], np.concatenate([np.ones((1, 2, 3, 4)), X], 2))
        half = dict.fromkeys(PASTS, torch.ones(1, 2, 3, 4, dtype=torch.bfloat16))
        assert "'past_k' of Tensor cannot be read as an array of float32" in refused(module, {"x": X, **half})
        assert "'past_k' is None" in refused(module, {"x": X, **dict.fromkeys(PASTS)})


@pytest.mark.parametrize("locked", ["rows", "buffer"])
def test_what_becomes_read_only_is_not_written_any_more(locked: str) -> None:
    with loaded() as module:
        given = views()
        buffers = {name: base(view) for name, view in given.items()}
        assert not moved(module.run({"x": X, **given}), buffers)
        for view in given.values():
            base(view)[...] = 1
            (view if locked == "rows" else base(view)).flags.writeable = False
        assert moved(module.run({"x": X, **given}), buffers)


def test_views_that_change_are_seen() -> None:
    """Shorter ones, those that begin later, and with the rows in another order."""
    with loaded() as module:
        given = views()
        buffers = {name: base(view) for name, view in given.items()}
        cases: list[tuple[bool, Callable[[np.ndarray], np.ndarray]]] = [
            (False, lambda buffer: buffer[:, :, :2]),
            (True, lambda buffer: buffer[:, :, 2:5]),
            (True, lambda buffer: buffer[:, :, 2::-1]),
            (True, lambda buffer: buffer[:, ::-1, :3]),
            (False, lambda buffer: buffer[:, :, :3]),
            (True, lambda buffer: np.asfortranarray(buffer)[:, :, :3]),
        ]
        for is_moved, of in cases:
            module.run({"x": X, **given})
            for buffer in buffers.values():
                buffer[...] = 1
            found = module.run({"x": X, **{name: of(buffer) for name, buffer in buffers.items()}})
            assert moved(found, buffers) is is_moved
            np.testing.assert_array_equal(found["v"][:, :, -1:], X)


def test_caches_of_which_one_takes_the_others_buffer() -> None:
    with loaded() as module:
        given = views()
        for _ in range(2):
            module.run({"x": X, **given})
        base(given["past_k"])[...] = 1
        found = module.run({"x": X, **dict.fromkeys(PASTS, given["past_k"])})
        assert moved(found, dict.fromkeys(PASTS, base(given["past_k"])))
        assert not np.shares_memory(found["k"], found["v"])


def test_inputs_and_results_in_a_buffer_are_seen() -> None:
    with loaded() as module:
        given, out = views(), np.zeros((1, 2, 1, 4), np.float32)
        for _ in range(2):
            module.run({"x": X, **given}, {"y": out})
        row = np.ascontiguousarray(base(given["past_v"])).reshape(-1)[8:16].reshape(1, 2, 1, 4)
        assert np.shares_memory(row, base(given["past_v"]))
        row[...] = 3
        wanted = np.concatenate([given["past_k"], row], 2)
        np.testing.assert_array_equal(module.run({"x": row, **given})["k"], wanted)
        assert "'y' lies in the buffer of a cache" in refused(module, {"x": X, **given}, {"y": row})


def test_the_only_references_to_caches_are_the_callers() -> None:
    with loaded() as module:
        buffer = np.ones((1, 2, 9, 4), np.float32)
        given = {"past_k": buffer, "past_v": buffer.copy()}
        module.run({"x": X[:, :, :0], **given})
        del given
        buffer.resize((1, 2, 10, 4))  # numpy refuses where anything else refers to it
        assert buffer.shape[2] == 10


def test_scratch_that_grows_a_little_in_each_run_is_seldom_made_anew() -> None:
    with loaded() as module:
        module.run({"x": X, **views()})
        team = module._pool._idle[0].worker._team  # type: ignore[attr-defined]
        made = []
        for nbytes in range(4096, 8192, 64):
            team.reserve(nbytes)
            made.append(team._scratch)
            assert team._scratch.nbytes >= nbytes
        assert len({id(scratch) for scratch in made}) <= 5


REST = {
    "If": """y = If (on) <then_branch = one () => (float[b,2,t,4] a) { a = Neg (k) },
                         else_branch = other () => (float[b,2,t,4] c) { c = Abs (k) }>""",
    "NonZero": """places = NonZero (k)
                  kept = Compress (k, on)
                  y = Transpose <perm = [1, 0]> (places)""",
}


@pytest.mark.parametrize("rest", REST)
def test_small_caches_of_programs_that_one_native_call_runs(rest: str) -> None:
    """From the second run of a shape on, intermediate results and small outputs have memory of the program's own."""
    given, results = ("bool on", "y") if rest == "If" else ("bool[m] on", "y, kept")
    kinds = {"y": "float[b,2,t,4] y" if rest == "If" else "int64[n,4] y", "kept": "float[l] kept"}
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[b,2,p,4] past, float[b,2,s,4] x, {given})
    => (float[b,2,t,4] k, {", ".join(kinds[name] for name in results.split(", "))}) {{
      k = Concat <axis = 2> (past, x)
      {REST[rest]}
    }}"""
    compiled = compile_model(onnx.parser.parse_model(text), num_threads=1, donate=["past"])
    with load(compiled.to_bytes(), num_threads=1, donate=["past"]) as module:
        for seed in range(4):
            past = np.random.default_rng(seed).standard_normal((1, 2, 9, 4)).astype(np.float32)[:, :, :3]
            wanted = np.concatenate([past, X], 2)
            found = module.run({"past": past, "x": X, "on": np.array(True) if rest == "If" else wanted.ravel() > 0})
            np.testing.assert_array_equal(found["k"], wanted)
            read = -wanted if rest == "If" else np.argwhere(wanted)
            np.testing.assert_array_equal(found["y"], read)


def test_native_code_and_python_find_the_same_sizes_and_faults() -> None:
    """`ts_resize` computes all sizes; what does not hold is left to Python, whose error says what."""
    with loaded() as module:
        found = Counter[bool]()
        for sizing in module._reader._sizings:
            assert sizing is not None and sizing.native is not None
            for number in range(200):
                symbols = [int(n) for n in np.random.default_rng(number).integers(1, 1 << (number % 40 + 1), 9)]
                known = tuple(symbols[: len(sizing.program.symbols)])
                given, native = dict(zip([s.name for s in sizing.program.symbols], known)), sizing.native(known)
                found[native is None] += 1
                if native is not None:
                    np.testing.assert_array_equal(native, sizing.table.values(known))
                    assert sizing._required.problem(native) is None
                elif all(s.low <= given[s.name] <= s.high for s in sizing.program.symbols):
                    with suppress(SizeError):
                        values = sizing.table.values(known)
                        held = [holds(values[left], values[right]) for left, holds, right, _ in sizing._checks]
                        assert not all(held) or sizing._required.problem(values) is not None
        assert min(found[True], found[False]) > 20


def test_sizes_are_found_by_several_threads_at_once() -> None:
    with loaded() as module:

        def decoded(batch: int) -> bool:
            given, x = (
                {name: np.zeros((batch, 2, 0, 4), np.float32) for name in PASTS},
                np.ones((batch, 2, 1, 4), np.float32),
            )
            for _ in range(60):
                found = module.run({"x": batch * x, **given})
                given = {name: found[output] for name, output in PASTS.items()}
            return all(bool((array == batch).all()) and array.shape == (batch, 2, 60, 4) for array in given.values())

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(decoded, range(1, 7)))
