"""Plans of open dimensions: replayed they give the same bytes, and an edited one is obeyed or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, parser

from tests.compiled import assert_close
from tests.compiler.test_caches import CACHES, decoder, emulated_decoder
from tests.compiler.test_open_results import CONTROL, MODELS_BY_NAME
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.cli.main import main
from tilestitch.compiler.errors import OptionError
from tilestitch.compiler.plan_files import read_plans
from tilestitch.passes import StitchPlan
from tilestitch.passes.errors import PlanError, PlanMismatchError
from tilestitch.runtime import load

HEAD = '<ir_version: 10, opset_import: ["": 21]> open '
TARGETS = ("cpu", "emulator:sm_90a")
ROWS = (
    "(float[b, s, 24] x, float[24, 8] w, float[8, 8] v) => (float[b, s, 8] y)\n"
    "{ t = Tanh(x)  p = MatMul(t, w)  c = Softmax<axis=1>(p)  q = MatMul(c, v)  y = Add(c, q) }"
)
MODELS_TO_REPLAY = {
    "rows": ROWS,
    "attention": "(float[b, 2, s, 8] q, float[b, 2, t, 8] k, float[b, 2, t, 8] v) => (float[b, 2, s, 8] y)\n"
    "{ kt = Transpose<perm=[0, 1, 3, 2]>(k)  a = MatMul(q, kt)  p = Softmax(a)  y = MatMul(p, v) }",
    "image": "(float[b, 3, h, w] x, float[8, 3, 3, 3] f) => (float[b, 8, h, w] y)\n"
    "{ c = Conv<pads=[1, 1, 1, 1]>(x, f)  m = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(c)  y = Relu(m) }",
    "two sizes that may be 1": "(float[n, 4] x, float[m, 4] z) => (float[k, 4] y) { a = Add(x, z)  y = Exp(a) }",
    "rows that a short input has none of": "(float[n, 8] x) => (float[m] y) <int64[1] two = {2}, int64[1] end = {99},\n"
    "int64[1] one = {1}> { late = Slice(x, two, end)  y = ReduceSum<keepdims=0>(late, one) }",
    "steps of a recurrence": "(float[s, b, 4] x, float[1, 16, 4] w, float[1, 16, 4] r) => (float[s, 1, b, 4] y)\n"
    "{ y = LSTM<hidden_size=4>(x, w, r) }",
    "as many rows as another slice has": "(float[n, 3] x, float[m, 3] w, int64[1] i) => (float[b, 3] y,\n"
    "float[c, 3] z) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {9999}>\n"
    "{ a = Slice(x, i, end, zero)  b = Slice(w, i, end, zero)  s = Shape(b)  r = Slice(s, zero, one)\n"
    "c = Slice(a, zero, r, zero)  sc = Shape(c)  rc = Slice(sc, zero, one)  d = Slice(b, rc, end, zero)\n"
    "e = ReduceSum<keepdims=1>(d, zero)  y = Add(c, e)  z = Exp(d) }",
    "the first row, if any": "(float[n, 3] x, bool[n] q) => (float[a, 3] y) <int64[1] zero = {0}, int64[1] one = {1}>\n"
    "{ c = Compress<axis=0>(x, q)  r = Slice(c, zero, one, zero)  y = Exp(r) }",
    "dimensions whose names are words of Python": "(float[in, 3] x, float[None, 3] w) => (float[k, 3] y)\n"
    "{ c = Concat<axis=0>(x, w)  y = Softmax<axis=0>(c) }",
    "found sizes": MODELS_BY_NAME["joined_with_all"],
    "a loop": CONTROL["a_loop_that_finds"],
    "sizes that not all kernels can have": "(float[a] x) => (float[3, c] y) <int64[2] s = {3, -1}>\n"
    "{ t = Exp(x)  u = Reshape(t, s)  y = Softmax<axis=0>(u) }",
}
SIZES: Mapping[str, dict[str, Any]] = {
    "none": {},
    "one favoured": {"favour": [{"b": 2}]},
    "ranges from 0 on": {"dims": {"b": (0, 9)}},
    "ranges, and all favoured": {"dims": {"b": (1, 9), "s": (2, 64)}, "favour": [{"b": 1, "s": 7}, {"b": 9}]},
    "two sets of shapes": {"shapes": [{"x": (2, 3, 24)}, {"x": (4, 5, 24)}]},
}


def model(text: str) -> ModelProto:
    return parser.parse_model(HEAD + text)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS_TO_REPLAY)
def test_a_replayed_plan_gives_the_same_bytes(name: str, target: str, tmp_path: Path) -> None:
    proto = model(MODELS_TO_REPLAY[name])
    compiled = compile_model(proto, target, num_threads=2)
    path, text = compiled.save(tmp_path / "model.tsm"), tmp_path / "plan.json"
    text.write_text(json.dumps(compiled.contents.plan))
    for plan in (path, text):
        assert read_plans(plan) == list(compiled.plans)
        assert compile_model(proto, target, num_threads=2, plan=plan).to_bytes() == compiled.to_bytes()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", SIZES)
def test_a_plan_says_for_which_sizes_it_is(sizes: str, target: str) -> None:
    """They need not be given again, and may be."""
    compiled = compile_model(model(ROWS), target, num_threads=2, **SIZES[sizes])
    for again in ({}, SIZES[sizes]):
        replayed = compile_model(model(ROWS), target, num_threads=2, plan=compiled.plans, **again)
        assert replayed.to_bytes() == compiled.to_bytes()


@pytest.mark.parametrize("target", ["cpu", "emulator"])
def test_caches_that_grow_are_replayed(target: str) -> None:
    proto, compiled = decoder()
    compiled = compiled if target == "cpu" else emulated_decoder()
    again = compile_model(proto, target, donate=CACHES, num_threads=2, host_steps=False, plan=compiled.plans)
    assert again.to_bytes() == compiled.to_bytes()
    with pytest.raises(PlanMismatchError, match="capacity"):
        compile_model(proto, target, num_threads=2, plan=compiled.plans)


def test_other_sizes_than_the_plans_are_refused() -> None:
    plans = compile_model(model(ROWS), num_threads=2, dims={"b": (1, 9)}).plans
    said = r"the plan is for b 1\.\.9, but b 1\.\.8 is asked for; leave out sizes"
    with pytest.raises(OptionError, match=said):
        compile_model(model(ROWS), num_threads=2, plan=plans, dims={"b": (1, 8)})
    with pytest.raises(OptionError, match=r"b 2\.\.2.*|b 2 \(favoured\)"):
        compile_model(model(ROWS), num_threads=2, plan=plans, favour=[{"b": 2}])


def test_the_plan_of_another_model_is_refused() -> None:
    plans = compile_model(model(ROWS), num_threads=2, dims={"b": (1, 9)}).plans
    with pytest.raises(PlanMismatchError, match=r"for b 1\.\.9, for which this model is not compiled: .* dimension b"):
        compile_model(model("(float[n] x) => (float[n] y) { y = Exp(x) }"), num_threads=2, plan=plans)
    other = model(ROWS.replace("Tanh", "Sigmoid"))
    with pytest.raises(PlanMismatchError, match="fingerprint"):
        compile_model(other, num_threads=2, plan=plans)


@cache
def _planned(target: str, text: str) -> str:
    return json.dumps(compile_model(model(text), target, num_threads=2, dims={"b": (1, 9)}).contents.plan)


def _edited(target: str, change: Callable[[Any], None], text: str = ROWS) -> Callable[[], bytes]:
    """What compiles by the plan of a model after it was changed; as JSON, the first specialisation alone."""
    plans = json.loads(_planned(target, text))
    change(plans[0])

    def compile_edited() -> bytes:
        read = [StitchPlan.from_json(data) for data in plans]
        return compile_model(model(text), target, num_threads=2, plan=read).to_bytes()

    return compile_edited


def _group(plan: Any, template: str) -> Any:
    return next(g for g in plan["groups"] if g["schedule"] and g["schedule"]["template"] == template)


def _with(template: str, field: str, value: Any) -> Callable[[Any], None]:
    """Another value of a field of the schedule of the first group of a template, and launches anew."""

    def change(plan: Any) -> None:
        *inside, last = field.split("/")
        group = _group(plan, template)
        group.pop("cases", None)  # one schedule for all sizes
        at = group["schedule"]
        for name in inside:
            at = at[name]
        at[last] = value
        plan["launches"] = plan["edges"] = None

    return change


ELEMENTWISE = "(float[b, s, 24] x) => (float[b, s, 24] y) { t = Tanh(x)  y = Neg(t) }"
SIMT = {"template": "simt", "bm": 64, "bn": 64, "bk": 16, "tm": 4, "tn": 4, "slices": 1}
OBEYED: Mapping[str, tuple[str, str, str, Any]] = {
    "lower register tiles": ("cpu", "cpu_gemm", "rows", 2),
    "smaller tasks": ("cpu", "cpu_rows", "rows", 3),
    "another tile": ("emulator:sm_90a", "gemm", "tile", SIMT),
    "a tile that nothing chooses": ("emulator:sm_90a", "gemm", "tile", {**SIMT, "bm": 32, "bk": 32, "slices": 2}),
    "more threads": ("emulator:sm_90a", "open_rows", "team", 8),
}


@pytest.mark.parametrize("edit", OBEYED)
def test_an_edited_plan_is_obeyed_at_all_sizes(edit: str) -> None:
    pytest.importorskip("onnxruntime")
    target, template, field, value = OBEYED[edit]
    artifact = _edited(target, _with(template, field, value))()
    reference = rivals.onnxruntime(model(ROWS), 1)
    random = np.random.default_rng(1)
    with load(artifact, device=target.partition(":")[0], num_threads=2) as module:
        for b, s in ((1, 1), (9, 37), (2, 200)):
            shapes = {"x": (b, s, 24), "w": (24, 8), "v": (8, 8)}
            feeds = {name: random.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
            for ours, theirs in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(ours, theirs, MODELS["float32"])


def _launched(field: str, value: Any) -> Callable[[Any], None]:
    return lambda plan: plan["launches"][0].update({field: value})


def _arena(plan: Any) -> None:
    plan["buffers"]["arena_bytes"] = "64 * b"


def _together(plan: Any) -> None:
    """Two values that are needed at the same time begin at one place."""
    a, b = plan["buffers"]["buffers"][:2]
    b[1] = a[1]


def _beside(plan: Any) -> None:
    """A value begins where another has not ended, where that is large."""
    starts = sorted({each[1] for each in plan["buffers"]["buffers"]}, key=lambda start: start != 0)
    for each in plan["buffers"]["buffers"]:
        each[1] = "64 * b" if each[1] == starts[-1] else each[1]


REFUSED: Mapping[str, tuple[str, Callable[[Any], None], str]] = {
    "lanes that not all sizes are multiples of": (
        "emulator:sm_90a", _with("open_elementwise", "lanes", 16), r"group \w+: 16 lanes do not divide",
    ),
    "cuts of an open dimension": (
        "emulator:sm_90a", _with("open_elementwise", "cuts", [24]), r"group \w+: .* that of cut_axis 0 is open",
    ),
    "a reduction in parts": (
        "emulator:sm_90a", _with("gemm", "split_k", 4), r"group \w+: split_k is 4 .* so both are 1",
    ),
    "extents of another number": (
        "cpu", _with("cpu_loops", "extents", ["b"]), r"group \w+: loops over \(b,\) have not \d+ \* b \* s elements",
    ),
    "an unknown symbol": (
        "cpu", _with("cpu_loops", "extents", ["q * 24"]),
        r"groups\[\d\] \(\w+\)\.schedule\.extents\[0\] is 'q \* 24'.* over the plan's symbols: b, s",
    ),
    "an open size where a number must be": (
        "emulator:sm_90a", _with("gemm", "split_k", "s"), r"groups\[\d\] \(\w+\)\.schedule\.split_k is 's', no natural",
    ),
    "a template for known sizes": (
        "emulator:sm_90a",
        lambda plan: _group(plan, "open_elementwise").update(
            schedule={"template": "elementwise", "threads": 256, "lanes": 1, "vectors": 1, "cut_axis": 0, "cuts": []}
        ),
        "template elementwise are for known sizes only",
    ),
    "a grid that is too small": ("emulator:sm_90a", _launched("grid", ["b", 1, 1]), r"grid is \[b, 1, 1\], its sched"),
    "too few tasks": ("cpu", _launched("grid", [1, 1, 1]), "its schedule gives"),
    "too small an arena": ("cpu", _arena, "is not shown to end by 64 \\* b"),
    "values in one place": ("cpu", _together, "overlap in place and time"),
    "values that overlap at some sizes": ("cpu", _beside, r"not shown to end|no multiple"),
    "another range": (
        "cpu", lambda plan: plan["symbols"][0].update(high=8), r"is for b 1\.\.8, .* but this graph is for b 1\.\.9",
    ),
    "a size below 0": (
        "cpu", _with("cpu_loops", "extents", ["b - 10"]),
        r"groups\[\d\] \(\w+\)\.schedule\.extents\[0\], 'b - 10', is -1, outside 0",
    ),
    "a name that no expression can use": (
        "cpu", lambda plan: plan["symbols"][0].update(name="in"), "symbols.0..name is 'in', which no expression can",
    ),
    "a range that is none": ("cpu", lambda plan: plan["symbols"][0].update(low=8, high=3), "outside 8 to"),
}  # fmt: skip
ON_ELEMENTS = ("lanes that not all sizes are multiples of", "cuts of an open dimension", "a template for known sizes")


@pytest.mark.parametrize("edit", REFUSED)
def test_an_edited_plan_that_holds_not_for_all_sizes_is_refused_in_one_sentence(edit: str) -> None:
    target, change, reason = REFUSED[edit]
    text = ELEMENTWISE if edit in ON_ELEMENTS else ROWS
    with pytest.raises(PlanError, match=reason) as caught:
        _edited(target, change, text)()
    assert "\n" not in str(caught.value)


def test_the_command_replays_shows_checks_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, first, second, plan = (tmp_path / name for name in ("m.onnx", "1.tsm", "2.tsm", "plan.json"))
    onnx.save(model(ROWS), source)
    sizes = ["--dim", "b=1..9", "--favour", "b=1"]
    assert main(["compile", str(source), "-o", str(first), *sizes]) == 0
    capsys.readouterr()
    assert main(["plan", "show", str(first)]) == 0
    plan.write_text(capsys.readouterr().out)
    assert main(["compile", str(source), "-o", str(second), "--plan", str(plan)]) == 0
    assert second.read_bytes() == first.read_bytes()
    assert "compiled for b 1..9" in capsys.readouterr().out
    assert main(["plan", "check", str(plan), str(source)]) == 0
    assert main(["compile", str(source), "-o", str(second), "--plan", str(plan), "--dim", "b=1..8"]) == 1
    assert "the plan is for b 1 (favoured); b 1..9" in capsys.readouterr().err

    data = json.loads(plan.read_text())
    edited = next(one for one in data if one["scope"]["dims"] == {"b": [1, 9]})
    _with("cpu_gemm", "rows", 2)(edited)
    plan.write_text(json.dumps(data[::-1]))
    assert main(["plan", "diff", str(first), str(plan), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["differences"]
    assert {one["sizes"] for one in found} == {"b 1..9"}
    plan.write_text(json.dumps([one for one in data if not one["scope"]["favoured"]]))
    assert main(["plan", "diff", str(first), str(plan)]) == 0
    assert 'b 1 (favoured): plan: "' in capsys.readouterr().out


@pytest.mark.parametrize("target", TARGETS)
def test_what_kernels_of_a_replayed_plan_store_is_shown(target: str) -> None:
    """As `check --bisect` asks for."""
    compiled = compile_model(model(ROWS), target, num_threads=2, planner="none")
    stored = compiled.plan.groups[0].outputs[0]
    again = compile_model(model(ROWS), target, num_threads=2, plan=compiled.plan, expose=[stored])
    feeds = {"x": np.ones((2, 3, 24), np.float32), "w": np.ones((24, 8), np.float32), "v": np.eye(8, dtype=np.float32)}
    with load(again.to_bytes(), device=target.partition(":")[0]) as module:
        results = module.run(feeds)
    assert_close(results[stored], np.tanh(feeds["x"]), MODELS["float32"])
