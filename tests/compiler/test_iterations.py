"""Scans and loops whose bodies are kernels: native code goes from iteration to iteration."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilestitch.compiler import compile_model
from tilestitch.runtime import iterations, load
from tilestitch.runtime.chain import Chain
from tilestitch.runtime.cpu.segment import Repeated
from tilestitch.runtime.errors import ExecutionError
from tilestitch.runtime.execution import Execution

INPUT, HIDDEN = 5, 12
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What executed bodies: `repeat` for native iterations, `run` for an iteration that Python asked for."""
    made: list[str] = []
    repeat, run_nested = Repeated.run, Execution.run_nested

    def counted_repeat(*args: Any) -> int:
        made.append("repeat")
        return repeat(*args)

    def counted_run(*args: Any) -> list[Any]:
        made.append("run")
        return run_nested(*args)

    monkeypatch.setattr(Repeated, "run", counted_repeat)
    monkeypatch.setattr(Execution, "run_nested", counted_run)
    return made


@pytest.fixture
def chained(monkeypatch: pytest.MonkeyPatch) -> list[Chain]:
    """Whose runs there were."""
    made: list[Chain] = []
    run = Chain.run
    monkeypatch.setattr(Chain, "run", lambda chain, values: (made.append(chain), run(chain, values)))
    return made


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def compare(got: Any, wanted: list[np.ndarray]) -> None:
    for one, other in zip(got.values(), wanted, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def value(name: str, dtype: int, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def made(nodes: list[Any], inputs: list[Any], outputs: list[Any], tensors: Any = ()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def recurrent(op: str, direction: str, lengths: bool) -> onnx.ModelProto:
    random = np.random.default_rng(3)
    ways, gates = 1 + (direction == "bidirectional"), GATES[op]
    shapes = {"W": (ways, gates * HIDDEN, INPUT), "R": (ways, gates * HIDDEN, HIDDEN), "B": (ways, 2 * gates * HIDDEN)}
    tensors = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) / 3, name)
        for name, shape in shapes.items()
    ]
    outputs = ["Y", "Y_h", "Y_c"][: 2 + (op == "LSTM")]
    attrs: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
    inputs = ["X", "W", "R", "B", "lengths" if lengths else ""]
    node = helper.make_node(op, inputs, outputs, "layer", hidden_size=HIDDEN, direction=direction, **attrs)
    given = [value("X", TensorProto.FLOAT, ["steps", "batch", INPUT])]
    given += [value("lengths", TensorProto.INT32, ["batch"])] if lengths else []
    return made([node], given, [value(name, TensorProto.FLOAT, None) for name in outputs], tensors)


@pytest.mark.parametrize(
    ("op", "direction", "lengths", "threads"),
    [
        ("LSTM", "forward", False, 1),
        ("LSTM", "bidirectional", True, 2),
        ("GRU", "reverse", False, 2),
        ("RNN", "bidirectional", True, 1),
    ],
)
def test_recurrent_layers(op: str, direction: str, lengths: bool, threads: int, calls: list[str]) -> None:
    model = recurrent(op, direction, lengths)
    compiled = compile_model(model, num_threads=threads)
    assert all("scan" not in reason["operators"] for reason in compiled.explain()["host"]["reasons"])
    loaded = load(compiled.to_bytes(), num_threads=threads)
    random = np.random.default_rng(5)
    for steps, batch in ((1, 1), (2, 3), (7, 1), (31, 17)):
        calls.clear()
        feeds = {"X": random.standard_normal((steps, batch, INPUT)).astype(np.float32)}
        if lengths:
            feeds["lengths"] = random.integers(1, steps + 1, batch).astype(np.int32)
        compare(loaded.run(feeds), expected(model, feeds))
        assert calls == ["repeat"] * (1 + (direction == "bidirectional"))


@pytest.mark.parametrize(("op", "direction", "lengths"), [
    ("LSTM", "forward", False), ("GRU", "bidirectional", False), ("RNN", "reverse", False), ("LSTM", "forward", True),
])  # fmt: skip
def test_later_runs_with_the_same_sizes(op: str, direction: str, lengths: bool, chained: list[Chain]) -> None:
    """From the second run on, all steps are executed as they were made ready: on copies of small inputs and outputs, on
    large ones where they lie. Results are the caller's nevertheless.
    """
    model = recurrent(op, direction, lengths)
    loaded = load(compile_model(model, num_threads=1).to_bytes(), num_threads=1)
    random = np.random.default_rng(5)
    kept = []
    for steps, batch in [(7, 2)] * 4 + [(1, 1)] * 3 + [(40, 30)] * 3 + [(7, 2)] * 3:
        feeds = {"X": random.standard_normal((steps, batch, INPUT)).astype(np.float32)}
        if lengths:
            feeds["lengths"] = random.integers(1, steps + 1, batch).astype(np.int32)
        wanted = expected(model, feeds)
        given = {name: np.full_like(array, np.nan) for name, array in loaded.run(feeds).items()}
        loaded.run(feeds, out=given)
        compare(given, wanted)
        loaded.profile(feeds)
        kept.append((loaded.run(feeds), wanted))
    for results, wanted in kept:
        compare(results, wanted)
    assert len(set(map(id, chained))) == 4 and len(chained) == 3 * len(kept) - 4


def test_a_fault_in_a_later_run() -> None:
    """In a scan whose operands are computed by kernels, too."""
    body = helper.make_graph(
        [helper.make_node("Gather", ["table", "index"], ["row"]), helper.make_node("Add", ["s", "row"], ["s_out"])],
        "body",
        [value("s", TensorProto.FLOAT, ["batch"]), value("index", TensorProto.INT64, ["batch"])],
        [value("s_out", TensorProto.FLOAT, ["batch"]), value("row", TensorProto.FLOAT, ["batch"])],
        [numpy_helper.from_array(np.arange(6, dtype=np.float32), "table")],
    )
    nodes = [
        helper.make_node("Add", ["at", "at"], ["twice"]),
        helper.make_node("Scan", ["s0", "twice"], ["s1", "ys"], "scan", body=body, num_scan_inputs=1),
        helper.make_node("Neg", ["ys"], ["y"]),
    ]
    given = [value("s0", TensorProto.FLOAT, ["batch"]), value("at", TensorProto.INT64, ["steps", "batch"])]
    model = made(nodes, given, [value("s1", 1, ["batch"]), value("y", 1, ["steps", "batch"])])
    loaded = load(compile_model(model).to_bytes(), num_threads=1)
    feeds = {"s0": np.zeros(2, np.float32), "at": np.array([[0, 1], [2, 1], [1, 0]], np.int64)}
    for _ in range(3):
        compare(loaded.run(feeds), expected(model, feeds))
    with pytest.raises(ExecutionError, match=r"outside|out of"):
        loaded.run({**feeds, "at": np.array([[0, 1], [2, 7], [1, 0]], np.int64)})
    compare(loaded.run(feeds), expected(model, feeds))


def loop_model(limit: bool, *, constant_condition: bool = False) -> onnx.ModelProto:
    """s -> s * 0.999 + 1, and i, until s is above a bound; with s of all iterations, and the trip number times s."""
    body_nodes = [
        helper.make_node("Mul", ["s", "rate"], ["product"]),
        helper.make_node("Add", ["product", "one"], ["s_out"]),
        helper.make_node("Cast", ["i"], ["turn"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s_out", "turn"], ["weighed"]),
        helper.make_node("ReduceMax", ["s_out"], ["largest"], keepdims=0),
        helper.make_node("Less", ["largest", "bound"], ["going"]),
    ]
    if constant_condition:
        body_nodes[-2:] = [helper.make_node("Identity", ["cond"], ["going"])]
    tensors = [
        numpy_helper.from_array(np.array(number, np.float32), name)
        for name, number in {"rate": 0.999, "one": 1.0, "bound": 900.0}.items()
    ]
    body = helper.make_graph(
        body_nodes,
        "body",
        [value("i", TensorProto.INT64, []), value("cond", TensorProto.BOOL, []), value("s", TensorProto.FLOAT, [3])],
        [
            value("going", TensorProto.BOOL, []),
            value("s_out", TensorProto.FLOAT, [3]),
            value("s_out_all", TensorProto.FLOAT, [3]),
            value("weighed", TensorProto.FLOAT, [3]),
        ],
        tensors,
    )
    body.node.append(helper.make_node("Identity", ["s_out"], ["s_out_all"]))
    loop = helper.make_node("Loop", ["n" if limit else "", "start", "s0"], ["last", "all", "sums"], "loop", body=body)
    start = numpy_helper.from_array(np.array(True), "start")
    given = [value("s0", TensorProto.FLOAT, [3])] + ([value("n", TensorProto.INT64, [])] if limit else [])
    outputs = [value("last", TensorProto.FLOAT, [3])]
    outputs += [value(name, TensorProto.FLOAT, ["turns", 3]) for name in ("all", "sums")]
    return made([loop], given, outputs, [start])


@pytest.mark.parametrize("turns", [0, 1, 2, iterations.MOST_ITERATIONS, iterations.MOST_ITERATIONS + 3, 5000])
def test_loops_end_at_their_limit_or_condition(turns: int, calls: list[str]) -> None:
    model = loop_model(limit=True)
    loaded = load(compile_model(model).to_bytes(), num_threads=1)
    feeds = {"s0": np.array([1, -2, 0.5], np.float32), "n": np.array(turns, np.int64)}
    wanted = expected(model, feeds)
    for _ in range(3):  # the later ones as they were made ready
        compare(loaded.run(feeds), wanted)
    assert set(calls) == ({"repeat"} if turns else set())


@pytest.mark.parametrize("width", [3, 40])
def test_results_of_later_runs_of_a_loop(width: int) -> None:
    """Small results lie in memory that stays while the loop runs; those that were given before do not change, nor does
    a state that is handed on.
    """
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
      net (float[{width}] s, float[{width}] rate, int64 n)
          => (float[{width}] last, float[{width}] same, float[k,{width}] all) {{
        last, same, all = Loop (n, , s, rate)
        <body = step (int64 i, bool c, float[{width}] a, float[{width}] r)
              => (bool d, float[{width}] b, float[{width}] q, float[{width}] o) {{
          b = Mul (a, r)  t = Cast <to = 1> (i)  o = Add (b, t)  d = Identity (c)  q = Identity (r) }}> }}""")
    loaded = load(compile_model(model, num_threads=1).to_bytes(), num_threads=1)
    random, kept = np.random.default_rng(2), []
    for turns in (4, 1, 0, 9, 1030, 2):
        feeds: dict[str, np.ndarray] = {"n": np.array(turns)}
        feeds |= {name: random.uniform(0.9, 1, width).astype(np.float32) for name in ("s", "rate")}
        made_now = loaded.run(feeds)
        assert not any(np.may_share_memory(feeds[name], array) for name in ("s", "rate") for array in made_now.values())
        kept.append((made_now, expected(model, feeds)))
    for results, wanted in kept:
        compare(results, wanted)


@pytest.mark.parametrize("width", [3, 40])
def test_later_runs_of_loops_and_branches_between_kernels(width: int, chained: list[Chain]) -> None:
    """They are executed as they were made ready, whichever the branch and however many the iterations; results are the
    caller's.
    """
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
      net (float[{width}] s, float[{width}] rate, int64 n, bool begins, bool second)
          => (float[{width}] last, float[k,{width}] all, float[{width}] y, float[m] z) {{
        start = Neg (s)
        last, all = Loop (n, begins, start)
        <body = step (int64 i, bool c, float[{width}] a) => (bool d, float[{width}] b, float[{width}] o) {{
          b = Mul (a, rate)  t = Cast <to = 1> (i)  o = Add (b, t)  d = Identity (c) }}>
        sum = ReduceSum <keepdims = 0> (last)
        zero = Constant <value = float {{0}}> ()
        above = Greater (sum, zero)
        y, z = If (above)
        <then_branch = above_zero () => (float[{width}] p, float[{width}] q) {{ p = Exp (last)  q = Sin (start) }},
         else_branch = below_zero () => (float[{width}] r, float[1] u) {{
           v = Cos (last)
           r = If (second) <then_branch = both () => (float[{width}] e) {{ e = Abs (v) }},
                            else_branch = one () => (float[{width}] f) {{ f = Tanh (start) }}>
           u = ReduceMax <axes = [0]> (v) }}> }}""")
    loaded = load(compile_model(model, num_threads=1).to_bytes(), num_threads=1)
    random, kept = np.random.default_rng(2), []
    cases = [(4, 1, 1), (4, 1, 0), (0, 1, 1), (9, 0, 0), (1030, 1, 0), (2, 1, 0), (3, 1, 1)]
    for number, (turns, begins, second) in enumerate(cases):
        feeds: dict[str, np.ndarray] = {"n": np.array(turns), "begins": np.array(bool(begins))}
        feeds |= {name: random.uniform(0.9, 1, width).astype(np.float32) for name in ("s", "rate")}
        feeds |= {"s": feeds["s"] * (-1) ** number, "second": np.array(bool(second))}
        wanted, given = expected(model, feeds), {name: np.full(width, np.nan, np.float32) for name in ("last", "y")}
        compare(loaded.run(feeds, out=given), wanted)
        compare(given, [wanted[0], wanted[2]])
        loaded.profile(feeds)
        kept.append((loaded.run(feeds), wanted))
    for results, wanted in kept:
        compare(results, wanted)
    branches = set(map(id, chained))
    assert len(branches) == 6, "the program, what it calls, its two branches and those of one"


@pytest.mark.parametrize("step", ["Loop (n, , s) <", "Scan (s, xs) <num_scan_inputs = 1, "])
def test_what_a_later_run_was_given_is_let_go(step: str, chained: list[Chain]) -> None:
    loop = step.startswith("Loop")
    formal = "int64 i, bool c, float[5000] a" if loop else "float[5000] a, float[5000] x"
    first, own = ("bool d, ", "d = Identity (c)  o = Exp (b)") if loop else ("", "o = Mul (b, x)")
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
      net (float[5000] s, float[40,5000] xs, int64 n) => (float[5000] last, float[k,5000] all) {{
        last, all = {step} body = step ({formal}) => ({first}float[5000] b, float[5000] o) {{
          b = Sin (a)  {own} }}> }}""")
    loaded = load(compile_model(model, num_threads=1).to_bytes(), num_threads=1)
    for _ in range(3):
        feeds = {"s": np.ones(5000, np.float32), "xs": np.ones((40, 5000), np.float32), "n": np.array(3)}
        results = loaded.run(feeds)
        arrays = [weakref.ref(array) for array in (feeds["s"], feeds["xs"], *results.values())]
        memory = [weakref.ref(array.base) for array in results.values() if isinstance(array.base, np.ndarray)]
        del feeds, results
        assert not any(each() is not None for each in (*arrays, *memory))
    assert len(chained) == 2


def test_loops_whose_results_are_not_all_wanted(chained: list[Chain]) -> None:
    """ONNX Runtime takes no loop whose results have no names."""
    body = onnx.parser.parse_graph("""step (int64 i, bool c, float[3] a) => (bool d, float[3] b, float[3] o) {
      b = Exp (a)  o = Neg (a)  d = Identity (c) }""")
    loop = helper.make_node("Loop", ["n", "", "s"], ["", "all"], "loop", body=body)
    given = [value("n", TensorProto.INT64, []), value("s", TensorProto.FLOAT, [3])]
    model = made([loop], given, [value("all", TensorProto.FLOAT, ["k", 3])])
    loaded = load(compile_model(model, num_threads=1).to_bytes(), num_threads=1)
    start = np.array([-1, 0, -2], np.float32)
    slices = [-start, -np.exp(start), -np.exp(np.exp(start))]
    for turns in (2, 2, 0, 3):
        wanted = np.array(slices[:turns], np.float32).reshape(turns, 3)
        compare(loaded.run({"n": np.array(turns), "s": start}), [wanted])
    assert len(chained) == 3


def test_a_fault_in_a_later_run_of_a_loop(chained: list[Chain]) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
      net (float[6] table, int64 n, bool begins) => (float[k] all) {
        all = Loop (n, begins)
        <body = step (int64 i, bool c) => (bool d, float o) { o = Gather (table, i)  d = Identity (c) }> }""")
    loaded = load(compile_model(model, num_threads=1).to_bytes(), num_threads=1)
    for turns in (2, 6, 7, 6, 7):
        feeds = {"table": np.arange(6, dtype=np.float32), "n": np.array(turns), "begins": np.array(True)}
        if turns < 7:
            compare(loaded.run(feeds), expected(model, feeds))
            continue
        with pytest.raises(ExecutionError, match=r"outside|out of"):
            loaded.run(feeds)
    assert len(chained) == 4


def test_memory_for_turns_that_may_not_be_made(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop without an end that is known takes memory for some of its iterations at a time."""
    monkeypatch.setattr(iterations, "MOST_BYTES", 7 * 2 * 12)  # two slices of three float32 for seven iterations
    model = loop_model(limit=True)
    loaded = load(compile_model(model).to_bytes(), num_threads=1)
    feeds = {"s0": np.array([1, -2, 0.5], np.float32), "n": np.array(2**62, np.int64)}
    got = loaded.run(feeds)
    compare(got, expected(model, {**feeds, "n": np.array(9999, np.int64)}))
    assert calls == ["repeat"] * -(-len(got["all"]) // 7)


def test_a_loop_without_limit(calls: list[str]) -> None:
    model = loop_model(limit=False)
    loaded = load(compile_model(model).to_bytes(), num_threads=1)
    feeds = {"s0": np.zeros(3, np.float32)}
    compare(loaded.run(feeds), expected(model, feeds))
    assert set(calls) == {"repeat"} and len(calls) == 3


def test_a_condition_that_is_handed_on(calls: list[str]) -> None:
    model = loop_model(limit=True, constant_condition=True)
    loaded = load(compile_model(model).to_bytes(), num_threads=1)
    feeds = {"s0": np.zeros(3, np.float32), "n": np.array(5, np.int64)}
    compare(loaded.run(feeds), expected(model, feeds))
    assert calls in (["repeat"], [])  # without a condition the frontend may unroll the loop


def scan_model(axes: tuple[int, int], reverse: tuple[int, int], steps: int | str = "steps") -> onnx.ModelProto:
    """A running sum and the running greatest, which change places each time; slices along any axis."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["a", "x"], ["b_out"]),
            helper.make_node("Max", ["b", "x"], ["a_out"]),
            helper.make_node("Sub", ["b_out", "a_out"], ["y"]),
        ],
        "body",
        [value(name, TensorProto.FLOAT, [4]) for name in ("a", "b", "x")],
        [value(name, TensorProto.FLOAT, [4]) for name in ("a_out", "b_out", "y")],
    )
    scan = helper.make_node(
        "Scan", ["a0", "b0", "xs"], ["a1", "b1", "ys"], "scan", body=body, num_scan_inputs=1,
        scan_input_axes=[axes[0]], scan_output_axes=[axes[1]],
        scan_input_directions=[reverse[0]], scan_output_directions=[reverse[1]],
    )  # fmt: skip
    shape = [steps, 4] if axes[0] == 0 else [4, steps]
    given = [value("a0", TensorProto.FLOAT, [4]), value("b0", TensorProto.FLOAT, [4])]
    given.append(value("xs", TensorProto.FLOAT, shape))
    outputs = [value("a1", TensorProto.FLOAT, [4]), value("b1", TensorProto.FLOAT, [4]), value("ys", 1, None)]
    return made([scan], given, outputs)


@pytest.mark.parametrize("axes", [(0, 0), (1, 1)])
@pytest.mark.parametrize("reverse", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_scans(axes: tuple[int, int], reverse: tuple[int, int], calls: list[str]) -> None:
    model = scan_model(axes, reverse)
    loaded = load(compile_model(model).to_bytes(), num_threads=1)
    random = np.random.default_rng(1)
    for steps in (1, 2, 3, 8):
        calls.clear()
        xs = random.standard_normal((steps, 4)).astype(np.float32)
        feeds = {"a0": np.ones(4, np.float32), "b0": np.zeros(4, np.float32), "xs": xs if axes[0] == 0 else xs.T.copy()}
        compare(loaded.run(feeds), expected(model, feeds))
        assert calls == ["repeat"]


@pytest.mark.parametrize("reverse", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_later_runs_of_a_scan_of_fixed_length(reverse: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second on they are made ready, as those of an open length that stays the same."""
    chained: list[Chain] = []
    run = Chain.run
    monkeypatch.setattr(Chain, "run", lambda chain, values: (chained.append(chain), run(chain, values)))
    model = scan_model((0, 0), reverse, steps=40)
    loaded = load(compile_model(model, num_threads=1).to_bytes(), num_threads=1)
    random = np.random.default_rng(1)
    kept = []
    for _ in range(4):
        feeds = {name: random.standard_normal(4).astype(np.float32) for name in ("a0", "b0")}
        feeds["xs"] = random.standard_normal((40, 4)).astype(np.float32)
        kept.append((loaded.run(feeds), expected(model, feeds)))
    for results, wanted in kept:
        compare(results, wanted)
    assert len(chained) == 3


def growing_model() -> onnx.ModelProto:
    """A state that is longer after each iteration."""
    body = helper.make_graph(
        [
            helper.make_node("Concat", ["s", "one"], ["s_out"], axis=0),
            helper.make_node("Identity", ["cond"], ["going"]),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("cond", TensorProto.BOOL, []), value("s", 1, ["grown"])],
        [value("going", TensorProto.BOOL, []), value("s_out", 1, ["more"])],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    loop = helper.make_node("Loop", ["n", "", "s0"], ["last"], "loop", body=body)
    given = [value("n", TensorProto.INT64, []), value("s0", TensorProto.FLOAT, ["length"])]
    return made([loop], given, [value("last", TensorProto.FLOAT, ["end"])])


def test_states_that_grow_take_native_turns(calls: list[str]) -> None:
    model = growing_model()
    loaded = load(compile_model(model).to_bytes(), num_threads=1)
    feeds = {"n": np.array(3, np.int64), "s0": np.array([2.0, 3.0], np.float32)}
    compare(loaded.run(feeds), expected(model, feeds))
    assert calls == ["repeat"]
    assert "loop" in compile_model(model).explain()["host"]["reasons"][0]["operators"]


def test_a_fault_in_a_turn_is_told() -> None:
    """An index out of range in the third iteration."""
    body = helper.make_graph(
        [helper.make_node("Gather", ["table", "index"], ["y"]), helper.make_node("Identity", ["s"], ["s_out"])],
        "body",
        [value("s", TensorProto.FLOAT, [1]), value("index", TensorProto.INT64, [])],
        [value("s_out", TensorProto.FLOAT, [1]), value("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "table")],
    )
    scan = helper.make_node("Scan", ["s0", "at"], ["s1", "ys"], "scan", body=body, num_scan_inputs=1)
    given = [value("s0", TensorProto.FLOAT, [1]), value("at", TensorProto.INT64, ["steps"])]
    model = made([scan], given, [value("s1", 1, [1]), value("ys", 1, ["steps", 2])])
    loaded = load(compile_model(model).to_bytes(), num_threads=1)
    feeds = {"s0": np.zeros(1, np.float32), "at": np.array([0, 2, 1, 0], np.int64)}
    compare(loaded.run(feeds), expected(model, feeds))
    with pytest.raises(ExecutionError, match=r"outside|out of"):
        loaded.run({**feeds, "at": np.array([0, 2, 7, 0], np.int64)})
    compare(loaded.run(feeds), expected(model, feeds))


def test_profiles_have_each_turn() -> None:
    loaded = load(compile_model(recurrent("GRU", "forward", lengths=False)).to_bytes(), num_threads=2)
    for steps in (1, 5):
        profile = loaded.profile({"X": np.zeros((steps, 2, INPUT), np.float32)})
        counts = [sum(launch.symbol == one.symbol for launch in profile) for one in profile]
        assert steps in counts
