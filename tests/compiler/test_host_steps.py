"""Nothing falls to the host without being said: warnings, counts, reasons and remedies of host steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.models import cnn
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import errors, main
from tilestitch.compiler.errors import HostStepsError
from tilestitch.passes.host_steps import describe_host
from tilestitch.runtime import load

HEADER = '<ir_version: 10, opset_import: ["" : 21]>'
OPEN = """g (float[n,8] x, float[m,m,k,j] z) => (float[n,8] y, float[257] t) <int64[1] flat = {257}> {
  [soft] a = Softmax (x)
  [exp] y = Exp (a)
  [flat] t = Reshape (z, flat)
}"""
BOXES = """g (float[1,50,4] boxes, float[1,1,50] scores) => (int64[k,3] chosen, float[1,1,50] y) <int64 most = {10}> {
  [nms] chosen = NonMaxSuppression (boxes, scores, most)
  [exp] y = Exp (scores)
}"""
X = np.array([1.5, -2.5], np.float32)


def model(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + body)


def host(body: str, **options: Any) -> dict[str, Any]:
    """What the explanation says of the host."""
    return dict(compile_model(model(body), **options).explain()["host"])


def reasons(body: str, **options: Any) -> dict[str, tuple[int, str]]:
    """By rule: how many steps, and why."""
    return {one["rule"]: (one["steps"], one["reason"]) for one in host(body, **options)["reasons"]}


# --- reasons ---


def test_a_model_in_kernels_has_no_host_steps() -> None:
    found = compile_model(cnn()).explain()["host"]
    assert (found["steps"], found["onnx_nodes"], found["predicted_share_at_least"], found["reasons"]) == (0, 0, 0.0, [])
    assert found["of_onnx_nodes"] > 0


def test_open_dimensions_are_blamed_on_the_inputs_that_have_them() -> None:
    found = host(OPEN, target="emulator")
    assert found["onnx_nodes"] == found["of_onnx_nodes"] == 3
    assert found["predicted_share_at_least"] == 1.0
    assert {one["reason"] for one in found["reasons"]} == {
        "input x has dimensions without a size",
        "input z has dimensions without a size",
    }
    assert found["reasons"][0]["remedy"] == "name sizes for them: --shape x=<n>x8 --shape z=<m>x<m>x<k>x<j>"
    assert sum(one["steps"] for one in found["reasons"]) == found["steps"]


def test_naming_the_shapes_of_some_inputs_leaves_the_others() -> None:
    found = host(OPEN, target="emulator", shapes={"x": (2, 8)})
    assert (found["steps"], found["onnx_nodes"]) == (1, 1)
    assert found["reasons"][0]["remedy"] == "name sizes for them: --shape z=<m>x<m>x<k>x<j>"
    assert host(OPEN, shapes={"x": (2, 8), "z": (1, 1, 257, 1)})["steps"] == 0


@pytest.mark.parametrize(
    ("body", "rule", "reason"),
    [
        (BOXES, "host.data_dependent", "the shape of what ONNX node nms gives depends on the data"),
        (
            "g (float[4] x) => (float[1,k] y) { [nz] i = NonZero (x) [wide] y = Cast <to = 1> (i) }",
            "host.data_dependent",
            "the shape of what ONNX node nz gives depends on the data",
        ),
        ("g (string[2] x) => (string[2] y) { y = StringConcat (x, x) }", "host.data_type",
         "there are no kernels for string"),
        (
            """g (bool c, float[2] x) => (float[2] y) { y = If (c) <
              then_branch = t () => (float[2] a) { a = Exp (x) },
              else_branch = e () => (float[2] b) { b = Neg (x) }> }""",
            "host.control_flow",
            "if decides while the model runs what is computed next",
        ),
        ("g (float[4] x) => (float[4] y) { y = RandomNormalLike (x) }", "host.no_kernel",
         "there is no kernel for RandomNormal"),
    ],
)  # fmt: skip
def test_why_a_step_of_a_static_model_is_on_the_host(body: str, rule: str, reason: str) -> None:
    assert reasons(body)[rule][1] == reason


def test_steps_in_branches_count() -> None:
    found = host(
        """g (bool c, float[2] x) => (float[k] y) { [if] y = If (c) <
          then_branch = t () => (float[k] a) { [inner] i = NonZero (x) [cast] f = Cast <to = 1> (i)
            s = Constant <value_ints = [-1]> () [flat] a = Reshape (f, s) },
          else_branch = e () => (float[k] b) { [same] b = Identity (x) }> }"""
    )
    assert found["steps"] == 2  # the branch itself, and the size of NonZero in it
    assert {"host.control_flow", "host.data_dependent"} <= {one["rule"] for one in found["reasons"]}


def test_sizes_in_a_loop_are_not_blamed_on_inputs_of_the_model() -> None:
    found = host(
        """g (int64 n, float[1] x) => (float[k] y) <bool go = {1}> { [loop] y = Loop (n, go, x) <
          body = b (int64 i, bool c, float[m] v) => (bool d, float[p] w) {
            d = Identity (c) [grow] w = Concat <axis = 0> (v, v) }> }"""
    )
    assert {one["rule"] for one in found["reasons"]} == {"host.control_flow"}
    assert not any("--shape" in one["remedy"] for one in found["reasons"])


def test_of_many_reasons_the_first_are_told() -> None:
    many = {"rule": "r", "reason": "why", "steps": 1, "operators": ["A"], "remedy": "do"}
    told = describe_host({"steps": 99, "onnx_nodes": 99, "of_onnx_nodes": 100, "reasons": [many] * 99})
    assert len(told.splitlines()) == 10
    assert "and 91 more reasons" in told


def test_every_host_step_has_its_reason() -> None:
    (step,) = compile_model(model(BOXES)).explain()["host_steps"]
    assert (step["op"], step["onnx_nodes"], step["rule"]) == ("host.Extent", ["nms"], "host.data_dependent")


# --- the command line ---


@pytest.fixture
def boxes(tmp_path: Path) -> Path:
    onnx.save(model(BOXES), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_compile_warns_on_standard_error(boxes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["compile", str(boxes), "-o", str(tmp_path / "m.tsm"), "--json"]) == errors.OK
    told = capsys.readouterr()
    assert told.err.startswith(
        "warning: 1 step runs on the host with numpy, slower than kernels, for 1 of 2 ONNX nodes\n"
    )
    assert "1 (Extent): the shape of what ONNX node nms gives depends on the data; " in told.err
    assert json.loads(told.out)["host"]["steps"] == 1
    onnx.save(cnn(), tmp_path / "cnn.onnx")
    assert main.main(["compile", str(tmp_path / "cnn.onnx"), "-o", str(tmp_path / "m.tsm")]) == errors.OK
    assert capsys.readouterr().err == ""


def test_specialisations_that_are_alike_warn_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model(OPEN), tmp_path / "m.onnx")
    arguments = ["compile", tmp_path / "m.onnx", "-o", tmp_path / "m.tsm", "--shape", "x=2x8", "--shape", "x=3x8",
                 "--target", "emulator"]  # fmt: skip
    assert main.main([*map(str, arguments)]) == errors.OK
    told = [line for line in capsys.readouterr().err.splitlines() if "warning:" in line]
    assert len(told) == len(set(told)) == 2  # why all sizes were not compiled, and what is left to the host


def test_no_host_refuses(boxes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m.tsm"
    assert main.main(["compile", str(boxes), "-o", str(out), "--no-host"]) == errors.UNSUPPORTED
    told = capsys.readouterr().err
    assert "ONNX node nms" in told
    assert "compile without --no-host" in told
    assert not out.exists()
    with pytest.raises(
        HostStepsError, match="input x has dimensions without a size; name sizes for them: --shape x=<n>x8"
    ):
        compile_model(model(OPEN), "emulator", host_steps=False)
    compile_model(cnn(), host_steps=False)


def test_explain_bench_and_report_count_them(boxes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact, report = tmp_path / "m.tsm", tmp_path / "r.html"
    assert main.main(["compile", str(boxes), "-o", str(artifact), "--report", str(report)]) == errors.OK
    assert '"steps": 1' in report.read_text()
    capsys.readouterr()
    assert main.main(["explain", str(artifact)]) == errors.OK
    told = capsys.readouterr().out
    assert "1 step runs on the host with numpy" in told
    assert "predicted of these: at least 10 µs" in told
    assert main.main(["explain", str(artifact), "--node", "exp"]) == errors.OK
    assert "on the host" not in capsys.readouterr().out
    assert main.main(["bench", str(artifact), "--rounds", "2", "--warmup", "1", "--json"]) == errors.OK
    measured = json.loads(capsys.readouterr().out)["host"]
    assert measured["steps"] == 1
    assert 0 < measured["share"] < 1
    assert main.main(["bench", str(artifact), "--rounds", "2", "--warmup", "1"]) == errors.OK
    assert "1 steps on the host" in capsys.readouterr().out


def test_bench_of_a_model_in_kernels_has_nothing_to_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_model(cnn()).save(tmp_path / "m.tsm")
    assert main.main(["bench", str(tmp_path / "m.tsm"), "--rounds", "2", "--warmup", "1", "--json"]) == errors.OK
    assert json.loads(capsys.readouterr().out)["host"] is None


def test_a_compiled_model_shows_its_host_steps() -> None:
    compiled = compile_model(model(BOXES))
    assert "7 kernels and 1 host steps" in repr(compiled)
    with load(compiled.to_bytes()) as loaded:
        times = loaded.profile([np.zeros((1, 50, 4), np.float32), np.zeros((1, 1, 50), np.float32)])
    assert [(time.symbol, time.on_host) for time in times if time.on_host] == [("host.Extent", True)]


# --- tensors of unknown rank ---


@pytest.mark.parametrize(("body", "wanted"), [
    ("b = Floor(a)  d = Cast<to=7>(b)  y = Cast<to=1>(d)", np.floor),
    ("b = Greater(a, x)  y = Cast<to=1>(b)", lambda a: (a > X).astype(np.float32)),
    ("y = HardSwish(a)", lambda a: a * np.clip(a / 6 + 0.5, 0, 1)),
])  # fmt: skip
def test_operators_on_elements_take_tensors_of_any_rank(body: str, wanted: Any) -> None:
    proto = model(f"""g (bool c, float[2] x, float[2,2] w) => (float[2] y) {{
      a = If (c) <then_branch = one () => (float[2] u) {{ u = Neg (x) }},
                  else_branch = two () => (float[2] v) {{ v = Neg (w) }}>
      {body}
    }}""")
    for output in (proto.graph.output[0], *(a.g.output[0] for n in proto.graph.node for a in n.attribute if a.g.node)):
        output.type.tensor_type.ClearField("shape")
    with load(compile_model(proto).to_bytes()) as module:
        for flag, negative in ((True, X), (False, np.stack([X, -X]))):
            given = {"c": np.array(flag), "x": X, "w": np.stack([X, -X])}
            np.testing.assert_allclose(module.run(given)["y"], wanted(-negative), rtol=1e-6)
