"""Scans and loops whose trip counts are known when a model is compiled are launches of one device step."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tilestitch.codegen.device_loops import _in_sequence
from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions
from tilestitch.runtime.program import DeviceLaunch, DeviceStep, LoopStep, Program, ScanStep

HEADER = '<ir_version: 10, opset_import: ["" : 21]>'
DECAY = """step (float[ROWS,3] s, float[ROWS,3] x) => (float[ROWS,3] n, float[ROWS,3] y) {
      a = Mul (s, f)  n = Add (a, x)  t = Tanh (n)  y = MatMul (t, w)
    }"""


def scan(trip_count: int = 5, rows: int = 4, attributes: str = "", body: str = DECAY) -> onnx.ModelProto:
    """A state that decays and takes in a slice each iteration; what each iteration gives is a product of the state."""
    text = f"""g (float[ROWS,3] s0, float[TURNS,ROWS,3] x, float[ROWS,3] f, float[3,3] w, float[TURNS,ROWS,3] r)
    => (float[ROWS,3] last, float[TURNS,ROWS,3] z) {{
      c = Sigmoid (x)
      last, y = Scan <num_scan_inputs = 1{attributes}, body = {body}> (s0, c)
      z = Add (y, r)
    }}""".replace("TURNS", str(trip_count)).replace("ROWS", str(rows))
    return onnx.parser.parse_model(HEADER + text)


TRIPS = """step (int64 i, bool c, float[8] s) => (bool k, float[8] t, float[8] y) {
      k = Identity (c)  j = Cast <to = 1> (i)  a = Mul (j, f)  h = Mul (s, half)  t = Add (h, a)  y = Sin (t)
    }"""


def loop(known: str = "int64 n = {6}, bool go = {1}", given: str = "", body: str = TRIPS) -> onnx.ModelProto:
    """Adds the number of the iteration, times a factor, to a state that is halved; collects the states' sines."""
    return onnx.parser.parse_model(
        f"{HEADER}g (float[8] s0, float[8] f{given}) => (float[8] last, float[6,8] y)\n"
        f"<{known}, float half = {{0.5}}> {{ last, y = Loop <body = {body}> (n, go, s0) }}"
    )


def steps(model: onnx.ModelProto) -> tuple[Any, ...]:
    (program,) = compile_model(model, "emulator:sm_90a").contents.programs
    return program.steps


def check(model: onnx.ModelProto, **feeds: np.ndarray) -> Program:
    """The model's program, which gives what ONNX says on the emulated device, in a random order too."""
    rng = np.random.default_rng(0)
    for info in model.graph.input:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        feeds.setdefault(info.name, rng.standard_normal(shape).astype(np.float32))
    compiled = compile_model(model, "emulator:sm_90a")
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    with load(compiled.to_bytes(), device=EmulatorOptions(block_order="random", side_by_side=True)) as module:
        for _ in range(2):  # counters, and what a run leaves, do not matter to the next
            for ours, theirs in zip(module.run(feeds).values(), expected, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    (program,) = compiled.contents.programs
    return program


@pytest.mark.parametrize("trip_count", [1, 2, 5])
def test_a_scan_is_launches_of_one_step_with_what_is_around_it(trip_count: int) -> None:
    (step,) = check(scan(trip_count)).steps
    assert isinstance(step, DeviceStep)
    assert len({launch.symbol for launch in step.launches}) < len(step.launches) or trip_count == 1


@pytest.mark.parametrize("attributes", [", scan_input_directions = [1]", ", scan_output_directions = [1]"])
def test_slices_are_taken_and_left_from_the_end(attributes: str) -> None:
    assert [type(step) for step in check(scan(3, attributes=attributes)).steps] == [DeviceStep]


def test_a_loop_knows_the_number_of_its_turn() -> None:
    (step,) = check(loop()).steps
    assert isinstance(step, DeviceStep)


def test_iterations_share_kernels_and_come_one_after_the_other() -> None:
    (step,) = steps(scan(64))
    assert len({launch.symbol for launch in step.launches}) <= 5
    waiting = {edge.after for edge in step.dependences}
    assert waiting == set(range(1, len(step.launches)))


def test_iterations_of_many_launches_side_by_side_wait_for_each_other_by_few_edges() -> None:
    width, launch = 300, DeviceLaunch("kernel", (1, 1, 1), (1, 1, 1), 0, ())
    step = _in_sequence([DeviceStep((launch,) * width, ())] * 3)
    assert len(step.dependences) < 5 * width
    before: list[set[int]] = []
    for number in range(3 * width):
        found = {edge.before for edge in step.dependences if edge.after == number}
        before.append(found.union(*(before[one] for one in found)))
    for turn in (1, 2):
        assert all(set(range(turn * width)) <= before[turn * width + one] for one in range(width))


def test_a_scan_within_a_scan_is_launches_too() -> None:
    inner = """inner (float[4,3] s, float[4,3] x) => (float[4,3] n, float[4,3] y) {
      b = Mul (s, x)  n = Add (b, f)  y = MatMul (n, w)
    }"""
    body = f"""step (float[4,3] s, float[4,3] x) => (float[4,3] n, float[4,3] y) {{
      e = Concat <axis = 0> (x, s, f)  shape = Constant <value_ints = [3, 4, 3]> ()  d = Reshape (e, shape)
      m, v = Scan <num_scan_inputs = 1, body = {inner}> (s, d)
      n = Tanh (m)  axes = Constant <value_ints = [0]> ()  y = ReduceSum <keepdims = 0> (v, axes)
    }}"""
    assert [type(step) for step in check(scan(2, body=body)).steps] == [DeviceStep]


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        pytest.param(scan(rows=1, trip_count=2), ScanStep, id="slices that begin where no kernel reads"),
        pytest.param(scan(trip_count=1025), ScanStep, id="more launches than a graph shall have"),
        pytest.param(loop("bool go = {1}", ", int64 n"), LoopStep, id="a trip count that the data decides"),
        pytest.param(loop("int64 n = {6}", ", bool go"), LoopStep, id="a beginning that the data decides"),
    ],
)  # fmt: skip
def test_other_loops_stay_the_hosts(model: onnx.ModelProto, kind: type) -> None:
    assert kind in map(type, steps(model))


def test_a_condition_that_iterations_decide_stays_the_hosts() -> None:
    body = """step (int64 i, bool c, float[8] s) => (bool k, float[8] t, float[8] y) {
      t = Mul (s, f)  y = Sin (t)  m = ReduceMax <keepdims = 0> (t)  k = Less (m, half)
    }"""
    assert LoopStep in map(type, steps(loop(body=body)))


@pytest.mark.parametrize("trip_count", [1, 2, 3])
def test_a_state_that_is_collected_too_is_left_by_itself_by_a_last_iteration_that_runs_twice(trip_count: int) -> None:
    body = """step (float[4,3] s, float[4,3] x) => (float[4,3] n, float[4,3] y) {
      m = MatMul (s, w)  a = Mul (m, f)  n = Add (a, x)  y = Identity (n)
    }"""
    assert [type(step) for step in check(scan(trip_count, body=body)).steps] == [DeviceStep]
