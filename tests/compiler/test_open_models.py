"""Small models with open dimensions, as exporters write them: compiled once without sizes, and run at twelve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from tests.compiled import assert_close
from tests.open_models.catalogue import BUILDERS, STYLED, fixture_of
from tests.open_models.fixture import OpenFixture
from tests.open_models.sizes import Feeds, spread
from tests.open_models.styles import STYLES
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.runtime import load

pytest.importorskip("onnxruntime")


def expected(model: ModelProto, feeds: Feeds) -> list[Any]:
    return list(rivals.onnxruntime(model, 1)(feeds))


def inputs_at_all_sizes(fixture: OpenFixture) -> Iterator[Feeds]:
    for number, sizes in enumerate(spread(fixture.ranges)):
        yield fixture.feeds(sizes, np.random.default_rng(number))


SIZES_ON_HOST = {"Extent", "if"}
DECODERS = ("llama", "gpt2", "whisper", "older_decoder")
ON_GPUS = ("llama.script", "gpt2.dynamo", "whisper.dynamo")
"""Forms of the decoders, which take longest to compile, that test_open_cuda.py runs: the others are run here."""


@pytest.mark.parametrize("name", [name for name in BUILDERS if name not in ON_GPUS])
def test_one_artifact_is_right_at_twelve_sizes_and_leaves_the_host_at_most_sizes(name: str) -> None:
    """Of a model that both exporters write, one form without ranges and the other one with those that it is run in."""
    fixture = fixture_of(name)
    compiled = compile_model(fixture.model, dims=dict(fixture.ranges) if name.endswith(".dynamo") else None)
    host = [specialisation.explanation["host"] for specialisation in compiled.specialisations]
    if name.startswith(("one_stage", "two_stage")):
        assert {op for one in host for reason in one["reasons"] for op in reason["operators"]} <= SIZES_ON_HOST
    else:
        assert {one["steps"] for one in host} == {0}
    if name.startswith(DECODERS):
        low, empty = (least_past(specialisation) for specialisation in compiled.specialisations[:2])
        assert (low, empty) == (1, 0)
    reference = rivals.onnxruntime(fixture.model, 1)
    with load(compiled.to_bytes(), num_threads=2) as module:
        for feeds in inputs_at_all_sizes(fixture):
            for actual, wanted in zip(module.run(feeds).values(), reference(feeds), strict=True):
                assert_close(actual, wanted, MODELS["float32"])


def least_past(specialisation: Any) -> int:
    symbols = specialisation.explanation["sizes"]["symbols"]
    return next(symbol["low"] for symbol in symbols if symbol["name"] == "past")


@pytest.mark.parametrize("name", STYLED)
def test_both_exporters_write_the_same_model(name: str) -> None:
    """So a difference between them is one of shape arithmetic only."""
    script, dynamo = (fixture_of(f"{name}.{style.name}") for style in STYLES)
    feeds = list(inputs_at_all_sizes(script))[7]
    for one, other in zip(expected(script.model, feeds), expected(dynamo.model, feeds), strict=True):
        assert_close(one, other, MODELS["float32"])


SHAPE_OPERANDS = {
    "Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2), "Slice": (1, 2), "Tile": (1,),
}  # fmt: skip


def shape_arithmetic(model: ModelProto) -> Counter[str]:
    """How often each operator takes part in computing a shape from other shapes."""
    producers = {output: node for node in model.graph.node for output in node.output}
    todo = [
        node.input[place] for node in model.graph.node for place in SHAPE_OPERANDS.get(node.op_type, ())
        if place < len(node.input)
    ]  # fmt: skip
    seen: dict[str, str] = {}
    while todo:
        name = todo.pop()
        if name in producers and name not in seen:
            seen[name] = producers[name].op_type
            todo += [] if seen[name] in ("Shape", "Size") else producers[name].input
    return Counter(seen.values())


WRITTEN = {
    "script": {
        "Shape", "Gather", "Unsqueeze", "Squeeze", "Concat", "Slice", "Cast", "Add", "Sub", "Mul", "Div", "Reshape",
        "ConstantOfShape", "Equal", "Where", "ReduceProd",
    },
    "dynamo": {"Shape", "Slice", "Squeeze", "Concat", "Reshape", "Add", "Mul"},
    "keras": {"Shape", "Gather", "ReduceProd", "Unsqueeze", "Squeeze", "Concat", "Slice", "Cast"},
}  # fmt: skip
"""What real exports compute shapes with."""


@pytest.mark.parametrize("exporter", WRITTEN)
def test_the_models_hold_the_shape_arithmetic_of_real_exports(exporter: str) -> None:
    found = [shape_arithmetic(fixture_of(name).model) for name in BUILDERS if name.endswith(f".{exporter}")]
    assert set().union(*found) >= WRITTEN[exporter]
