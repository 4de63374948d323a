"""What converters say they honour, against the schemas that ONNX Runtime itself has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, parser

from tests.frontend.checks import assert_close, floats, run
from tests.frontend.microsoft.checks import node_model, run_ort, typed
from tilestitch.compiler.frontend import ConversionError, UnsupportedOperatorsError, import_model
from tilestitch.compiler.frontend.converters.microsoft import FAMILIES, OPERATORS


def schemas() -> dict[str, Any]:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    return {s.name: s for s in state.get_all_operator_schema() if s.domain == "com.microsoft"}


@pytest.mark.parametrize("name", OPERATORS)
def test_names_are_those_of_onnx_runtime(name: str) -> None:
    """Positions, too: an operand added to the middle of a list would shift all after it."""
    schema = schemas().get(name)
    if schema is None:
        pytest.skip(f"this release of ONNX Runtime has no {name}")
    operator = OPERATORS[name]
    operands, outputs = [p.name for p in schema.inputs], [p.name for p in schema.outputs]
    stated = [operand.rstrip("?*") for operand in operator.operands.split()]
    assert stated == operands[: len(stated)]
    assert list(operator.output_names()) == outputs[: len(operator.output_names())]
    assert {*operator.attributes.split(), *operator.only} <= set(schema.attributes)
    assert set(operator.refused) <= {*operands, *outputs}


def test_no_operator_is_in_two_families() -> None:
    assert sum(len(family) for family in FAMILIES.values()) == len(OPERATORS)


def import_error(op: str, operands: list[np.ndarray | None], attrs: dict[str, Any], outputs: int = 1) -> str:
    model = typed(node_model(op, operands, attrs, outputs=outputs), [floats(2, 3)] * outputs)
    with pytest.raises(ConversionError) as raised:
        import_model(model)
    return str(raised.value)


def test_what_a_node_may_not_have_is_named() -> None:
    x = floats(2, 3)
    assert "'the_node'" in import_error("Gelu", [x], {"novel": 3}) and "'novel'" in import_error(
        "Gelu", [x], {"novel": 3}
    )
    assert "operand 'bias'" in import_error("BiasAdd", [x, None, x], {})
    assert "operand 'skip' is missing" in import_error("BiasAdd", [x, x], {})
    assert "2 operands" in import_error("Gelu", [x, x], {})
    assert "2 outputs" in import_error("Gelu", [x], {}, outputs=2)
    assert "only 0 is supported" in import_error("MatMulBnb4", [x, x, x], {"training_mode": 1})


def test_operators_that_are_missing_are_named() -> None:
    model = typed(node_model("BeamSearch", [floats(2)]), [floats(2)])
    with pytest.raises(UnsupportedOperatorsError, match="BeamSearch"):
        import_model(model)


@pytest.mark.parametrize("search", ["BeamSearch", "WhisperBeamSearch", "GreedySearch", "Sampling"])
def test_for_searches_the_models_of_one_step_are_named(search: str) -> None:
    model = typed(node_model(search, [floats(2)]), [floats(2)])
    with pytest.raises(UnsupportedOperatorsError, match=r"Compile the models of one step.* decoder"):
        import_model(model)


def test_the_set_need_not_be_named() -> None:
    """ONNX Runtime runs such models, and its tools write them."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[3] x, bool chosen) => (float[3] y) {
            a = com.microsoft.FastGelu(x)
            y = If (chosen) <then_branch = g () => (float[3] b) { b = com.microsoft.Gelu(a) },
                             else_branch = h () => (float[3] c) { c = com.microsoft.QuickGelu(a) }>
        }""")
    before = model.SerializeToString()
    for chosen in (False, True):
        feeds = {"x": floats(3), "chosen": np.array(chosen)}
        (wanted,), (got,) = run_ort(model, feeds), run(model, feeds)
        assert_close(got, wanted)
    assert model.SerializeToString() == before


def test_a_function_has_to_name_the_set() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "local" : 1, "com.microsoft" : 1]>
        g (float[3] x) => (float[3] y) { y = local.activated(x) }
        <domain: "local", opset_import: ["" : 17]> activated (x) => (y) { y = com.microsoft.Gelu(x) }""")
    with pytest.raises(UnsupportedOperatorsError, match="none imported"):
        import_model(model)


def test_a_function_of_the_model_comes_first() -> None:
    model = typed(node_model("Gelu", [floats(2)]), [floats(2)])
    body = [helper.make_node("Neg", ["x"], ["y"])]
    imports = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("com.microsoft", "Gelu", ["x"], ["y"], body, imports))
    assert [n.op for n in import_model(model).graph.nodes] == ["neg"]
