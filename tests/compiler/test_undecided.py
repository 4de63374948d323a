"""What open sizes leave undecided is told with the ONNX node, the value, the reason and a remedy."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
from onnx import parser

from tilestitch.codegen import assemble
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler import compile_model, prepare
from tilestitch.compiler.errors import OpenSizeError
from tilestitch.compiler.ir.errors import UndecidedError

MODEL = parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[b, s] x) => (float[b, t] y) '
    "{ [doubled] c = Concat<axis=1>(x, x)  [squashed] y = Tanh(c) }"
)


def raising(claim: str) -> Any:
    def raises(*_: Any, **__: Any) -> NoReturn:
        raise UndecidedError(claim)

    return raises


def test_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "lower_with", raising("2 * s > 7"))
    with pytest.raises(KernelError, match=r"%\w+.* whether 2 \* s > 7 depends.*--shape.*ONNX nodes: .*squashed"):
        compile_model(MODEL, dims={"s": (1, 64)})


def test_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "run_pipeline", raising("2 * s > 7"))
    told = r"2 \* s > 7 depends on sizes.*%c .*\[b,2 \* s\].* ONNX node doubled .*--dim s=LOW"
    with pytest.raises(OpenSizeError, match=told):
        compile_model(MODEL, dims={"s": (1, 64)})


def test_of_a_size_that_no_value_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "run_pipeline", raising("7 * s - 1 > 0"))
    with pytest.raises(OpenSizeError, match=r"%x .* of the model .*--dim s=LOW"):
        compile_model(MODEL, dims={"s": (1, 64)})
