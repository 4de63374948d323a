"""The registers that are estimated from schedules are within a quarter of the machine code's, on average."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from onnx import ModelProto

pytest.importorskip("cuda.bindings.nvrtc")

from benchmarks.cuda_registers import Compared, compare
from benchmarks.replay.catalogue import attention, gated_mlp, group_norm, mobile_block
from tests.models import cnn, transformer
from tests.networks import residual_block
from tilestitch.compiler.driver import compile_model

MOST_MEAN_ERROR = 0.25
MODELS: dict[str, Callable[[], ModelProto]] = {
    "convolutions, a pool, element-wise work": lambda: mobile_block(channels=40, size=20),
    "statistics": lambda: group_norm(channels=64, size=12),
    "GEMMs of many rows": lambda: gated_mlp(rows=200, width=384, hidden=1000),
    "attention": lambda: attention(300, 500, heads=3, width=80),
    "a transformer of odd length": partial(transformer, hidden=64, sequence=33, causal=True),
    "a network of images": cnn,
    "channels last and first": residual_block,
}
"""None of them is one that the estimate's constants were fitted to."""


@pytest.mark.parametrize(("target", "precision"), [("cuda:sm_80", "fp16"), ("cuda:sm_90a", "fp32")])
def test_estimates_are_within_a_quarter_on_average(target: str, precision: str) -> None:
    found: dict[str, Compared] = {}
    for make in MODELS.values():
        found.update((one.symbol, one) for one in compare(compile_model(make(), target, precision=precision)))
    assert len(found) >= 8
    errors = [abs(one.error) for one in found.values()]
    assert sum(errors) / len(errors) <= MOST_MEAN_ERROR, sorted(found.values(), key=lambda one: -abs(one.error))
