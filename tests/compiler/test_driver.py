"""compile_model from end to end: results, specialisations, plans, weights, reproducibility, errors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import models
from tests.compiled import assert_close
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.compile import COST_MODELS
from tilestitch.compiler.cli.explain import read_explain
from tilestitch.compiler.errors import OptionError
from tilestitch.compiler.frontend.errors import FrontendError, ModelError, UnsupportedOperatorsError
from tilestitch.cost_model.models import MODELS
from tilestitch.passes.api import CostModel, CpuDevice, Device, KernelFacts
from tilestitch.passes.errors import PlanError, PlanMismatchError
from tilestitch.runtime import load
from tilestitch.runtime.errors import InputError, NotAnArtifactError, WeightsError


def ort_outputs(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def random_feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        draw = rng.integers(0, 2, shape) if dtype.kind in "iub" else rng.standard_normal(shape)
        feeds[value.name] = draw.astype(dtype)
    return feeds


def chain(*ops: str, shape: tuple[Any, ...] = (2, "n")) -> onnx.ModelProto:
    """A chain of unary operators from `x` to `y`."""
    names = ["x", *(f"v{i}" for i in range(len(ops) - 1)), "y"]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]], name=f"/{op}_{i}") for i, op in enumerate(ops)]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("planner", ["none", "injective", "stitch"])
@pytest.mark.parametrize(
    "model",
    [
        models.transformer(),
        models.transformer(layers=1, hidden=24, heads=3, sequence=7, batch=2, causal=True, seed=3),
        models.cnn(),
    ],
    ids=["transformer", "causal", "cnn"],
)
def test_every_planner_matches_onnx_runtime(model: onnx.ModelProto, planner: str) -> None:
    feeds = random_feeds(model)
    with load(compile_model(model, planner=planner).to_bytes()) as module:
        outputs = module.run(feeds)
    assert list(outputs) == [o.name for o in model.graph.output]
    for actual, expected in zip(outputs.values(), ort_outputs(model, feeds), strict=True):
        assert_close(actual, expected, 1e-4)


def test_stitching_leaves_fewer_kernels() -> None:
    counts = {
        p: len(compile_model(models.transformer(), planner=p).explain()["kernels"])
        for p in ("none", "injective", "stitch")
    }
    assert counts["none"] > 2 * counts["injective"] > 2 * counts["stitch"]


def test_the_same_model_gives_the_same_bytes() -> None:
    model = models.cnn()
    assert compile_model(model).to_bytes() == compile_model(model, cache=False).to_bytes()


def test_save_writes_what_to_bytes_gives(tmp_path: Path) -> None:
    compiled = compile_model(chain("Exp", shape=(2, 3)))
    assert compiled.save(tmp_path / "m.tsm").read_bytes() == compiled.to_bytes()


def test_one_specialisation_for_each_set_of_shapes() -> None:
    compiled = compile_model(chain("Exp", "Neg"), shapes=[{"x": (2, 3)}, {"x": (2, 17)}])
    with load(compiled.to_bytes()) as module:
        for n in (3, 17):
            x = np.linspace(-1, 1, 2 * n, dtype=np.float32).reshape(2, n)
            assert_close(module.run({"x": x})["y"], -np.exp(x), 1e-6)
        with pytest.raises(InputError, match=r"2, 3.*2, 17"):
            module.run({"x": np.zeros((2, 4), np.float32)})
    assert len(compiled.explain()["specialisations"]) == 1


def test_open_dimensions_run_on_the_host() -> None:
    with load(compile_model(chain("Exp", "Neg")).to_bytes()) as module:
        x = np.ones((2, 5), np.float32)
        assert_close(module.run({"x": x})["y"], -np.exp(x), 1e-6)


def test_a_plan_is_saved_and_replayed(tmp_path: Path) -> None:
    model = models.cnn()
    first = compile_model(model, planner="injective")
    path = tmp_path / "plan.json"
    first.plan.save(path)
    again = compile_model(model, plan=path)
    assert again.plan == first.plan
    assert again.to_bytes() == first.to_bytes()


def test_a_plan_of_another_model_is_refused(tmp_path: Path) -> None:
    plan = compile_model(chain("Exp", shape=(2, 3))).plan
    with pytest.raises(PlanMismatchError, match="leave out --plan"):
        compile_model(chain("Exp", "Neg", shape=(2, 3)), plan=plan)
    broken = tmp_path / "plan.json"
    broken.write_text("{")
    with pytest.raises(PlanError, match=r"plan\.json is no JSON"):
        compile_model(chain("Exp", shape=(2, 3)), plan=broken)
    with pytest.raises(OptionError, match="for 1 sets of sizes, but 2"):
        compile_model(chain("Exp"), plan=plan, shapes=[{"x": (2, 3)}, {"x": (2, 4)}])


def test_stripped_weights_are_supplied_at_load(tmp_path: Path) -> None:
    model = models.cnn()
    feeds = random_feeds(model)
    path = compile_model(model, strip_weights=True).save(tmp_path / "m.tsm")
    weights = tmp_path / "m.tsm.weights.safetensors"
    assert path.stat().st_size + weights.stat().st_size // 2 < len(compile_model(model).to_bytes())
    with pytest.raises(WeightsError):
        load(path)
    with load(path, weights=weights) as module:
        (output,) = module.run(feeds).values()
    assert_close(output, ort_outputs(model, feeds)[0], 1e-4)


def test_intermediate_values_can_be_exposed() -> None:
    with load(compile_model(chain("Exp", "Neg", shape=(2, 3)), expose=["v0"]).to_bytes()) as module:
        x = np.ones((2, 3), np.float32)
        outputs = module.run({"x": x})
    assert list(outputs) == ["y", "v0"]
    assert_close(outputs["v0"], np.exp(x), 1e-6)


def test_sources_and_explanation_travel_in_the_artifact(tmp_path: Path) -> None:
    import zipfile

    path = compile_model(chain("Exp", "Neg", shape=(2, 3)), keep_source=True).save(tmp_path / "m.tsm")
    with zipfile.ZipFile(path) as archive:
        members = archive.namelist()
        assert "explain.json" in members
    explanation = read_explain(path)
    assert any(m.startswith("kernels/") and m.endswith(".ll") for m in members)
    assert [k["onnx_nodes"] for k in explanation["kernels"]] == [["/Exp_0", "/Neg_1"]]


def test_ir_dumps_are_numbered_by_pass(tmp_path: Path) -> None:
    compile_model(models.cnn(), dump_ir=tmp_path / "ir")
    names = sorted(p.name for p in (tmp_path / "ir").iterdir())
    assert names
    assert all(name[:3].isdigit() for name in names if name.endswith(".tsir"))
    assert {"final.dot", "final.onnx"} < set(names)


def test_all_missing_operators_are_named_at_once() -> None:
    model = chain("Exp", "Neg", shape=(2, 3))
    model.graph.node[0].op_type, model.graph.node[0].domain = "Frobnicate", "com.example"
    model.graph.node[1].op_type, model.graph.node[1].domain = "Whirl", "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedOperatorsError, match=r"(?s)Frobnicate.*/Exp_0.*Whirl.*/Neg_1"):
        compile_model(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "rocm:gfx942"}, "there is no target .*; give cpu, cpu:NAME, cuda:sm_90a"),
        ({"target": "cpu:frobnicator"}, "LLVM knows no processor"),
        ({"target": "cpu:"}, "names no processor; write cpu"),
        ({"target": "cpu:,+avx2"}, "names no processor; write cpu"),
        ({"frozen": True}, "frozen needs records"),
        ({"precision": "fp8"}, "precision 'fp8'"),
        ({"precision": "tf32"}, "tf32.*CPUs have no"),
        ({"planner": "clever"}, "clever"),
        ({"shapes": {"z": (2, 3)}}, "z"),
        ({"shapes": {"x": (3, 3)}}, "x"),
        ({"shapes": {"x": "2x3"}}, "shapes: .* sequences of integers; give"),
        ({"shapes": {"x": 6}}, "shapes: .* sequences of integers; give"),
        ({"shapes": "x=2x3"}, "shapes: 'x=2x3' is no mapping"),
        ({"target": None}, "target is None"),
        ({"num_threads": 0}, "num_threads is 0; give"),
        ({"num_threads": "2"}, "num_threads is '2'; give"),
        ({"num_threads": True}, "num_threads is True; give"),
        ({"num_threads": 1025}, "num_threads is 1025; give an integer from 1 to 1024"),
        ({"passes": ["no.such.module:Pass"]}, "no.such.module"),
        ({"passes": ""}, "the name of a pass is missing"),
        ({"passes": [" "]}, "the name of a pass is missing"),
        ({"installed_plugins": None}, "installed_plugins is None; give True or False"),
        ({"winograd": "no"}, "winograd is 'no'; give True or False"),
        ({"dims": "n=1..4"}, "dims is 'n=1..4'; give ranges by the names"),
        ({"dims": {1: (1, 2)}}, "dims is {1: .*; give ranges by the names"),
        ({"favour": {"n": 1}}, "favour is {'n': 1}; give a list of points"),
        ({"favour": None}, "favour is None; give a list of points"),
        ({"keep_fp32": [1], "precision": "bf16"}, "keep_fp32 is .*; give a list of names"),
        ({"expose": "y"}, "expose is the text 'y'; give a list of names"),
        ({"expose": ["y"]}, "expose adds 'y' to the outputs, where it is already; leave it out"),
        ({"expose": ["h", "h"]}, "expose adds 'h' to the outputs, where it is already; leave it out"),
        ({"donate": "past_*"}, "donate is the text 'past_.'; give a list of names"),
        ({"plan": ""}, "plan is '', no StitchPlan"),
        ({"plan": 1}, "plan is 1, no StitchPlan"),
        ({"plan": "nowhere.json"}, "nowhere.json cannot be read: No such file"),
        ({"plan": "."}, ". cannot be read: Is a directory"),
        ({"cost_model": 1}, "cost_model is 1; give its name"),
        ({"sync": None}, "sync is None; give off"),
        ({"plan_budget_s": "1"}, "plan_budget_s is '1'; give seconds"),
        ({"records": 1}, "records is 1; give a path"),
        ({"dump_ir": ""}, "dump_ir is ''; give a path"),
        ({"dump_ir": __file__}, "test_driver.py', which is a file; give a folder"),
        ({"report": ""}, "report is ''; give a path"),
        ({"nvcc": 1}, "nvcc is 1; give a path"),
        ({"progress": 1}, "progress is 1; give a function"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        compile_model(chain("Exp"), **options)
    assert caught.value.exit_code in (1, 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", [None, 1, "", "a\0b"])
def test_what_is_no_path_is_refused_when_it_is_saved_or_loaded(path: Any) -> None:
    compiled = compile_model(chain("Exp"))
    with pytest.raises(OptionError, match="give the path of the artifact"):
        compiled.save(path)
    with pytest.raises(NotAnArtifactError):
        load(path)


def test_none_is_no_shapes_and_no_passes() -> None:
    assert compile_model(chain("Exp"), shapes=None, passes=None).to_bytes() == compile_model(chain("Exp")).to_bytes()


def test_a_model_without_outputs_is_refused_alike_in_every_form(tmp_path: Path) -> None:
    model = chain("Exp")
    del model.graph.output[:]
    onnx.save(model, tmp_path / "m.onnx")
    for form in (model, model.SerializeToString(), tmp_path / "m.onnx"):
        with pytest.raises(ModelError, match="it holds no graph with outputs"):
            compile_model(form)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x08this is no protobuf")
    with pytest.raises(FrontendError, match=r"m\.onnx"):
        compile_model(path)


# -- cost models -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flat(CostModel):
    name: ClassVar[str] = "flat"

    def latency_us(self, kernel: KernelFacts, device: Device | CpuDevice) -> float:
        return 1.0


def test_the_cost_model_that_was_chosen_predicts() -> None:
    for name in COST_MODELS:
        assert compile_model(models.cnn(), cost_model=name).explain()["prediction"]["model"] == name
    assert set(COST_MODELS) == set(MODELS)


def test_a_cost_model_that_is_not_known_or_is_one_of_two_is_refused() -> None:
    with pytest.raises(OptionError, match="cost model 'learnt' is not known; give one of analytical, learned, random"):
        compile_model(models.cnn(), cost_model="learnt")
    with pytest.raises(OptionError, match="both analytical and the plug-in flat are cost models"):
        compile_model(models.cnn(), cost_model="analytical", passes=[Flat()])
