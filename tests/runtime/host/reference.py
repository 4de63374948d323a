"""Runs one host function, and what it is compared with: onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TypeProto, helper
from onnx.reference import ReferenceEvaluator

from tilestitch.runtime.host import TABLE


def run(name: str, *operands: Any, **attrs: Any) -> Any:
    """The one output of a host function."""
    (result,) = TABLE[name](operands, attrs)
    return result


def onnx_outputs(
    op: str, operands: Sequence[Any], outputs: int = 1, opset: int = 24, domain: str = "", **attrs: Any
) -> list[Any]:
    """What onnx's reference evaluator computes for one node; None stands for an absent operand."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(operands)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attrs)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_value_info(n, TypeProto()) for n in names if n],
        [helper.make_value_info(r, TypeProto()) for r in results],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 5)]
    model = helper.make_model(graph, opset_imports=opsets)
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, {n: x for n, x in zip(names, operands, strict=True) if n})


def check_against_onnx(
    op: str, *operands: Any, outputs: int = 1, opset: int = 24, rtol: float = 1e-5, **attrs: Any
) -> None:
    """The host function `op` and onnx's reference agree in dtype, shape and value."""
    actual = TABLE[op](operands, attrs)
    expected = onnx_outputs(op, operands, outputs, opset, **attrs)
    for got, want in zip(actual, expected):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        if got.dtype.kind in "fc":
            scale = np.abs(want).max(initial=0, where=np.isfinite(want))
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * float(scale))
        else:
            np.testing.assert_array_equal(got, want)
