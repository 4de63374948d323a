"""Schedules of open plans edited at random: kernels are right at all sizes, or the plan is refused."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from onnx import ModelProto, parser

from tests.compiled import assert_close
from tests.guarded import run_guarded
from tests.open_graphs import open_models
from tests.tolerances import MODELS
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.driver import CompiledModel
from tilestitch.passes import StitchPlan
from tilestitch.passes.errors import PassError
from tilestitch.runtime import load

pytest.importorskip("onnxruntime")

TARGETS = ("cpu", "emulator:sm_90a")
RANGES = {"b": (1, 7), "s": (1, 80)}
HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
KERNELS = {
    "rows": "(float[b, s, 24] x, float[24, 8] w) => (float[b, s, 8] y)\n"
    "{ t = Tanh(x)  p = MatMul(t, w)  c = Softmax<axis=1>(p)  d = Softmax<axis=-1>(c)  y = Add(c, d) }",
    "attention": "(float[b, s, 8] q, float[b, s, 8] k, float[b, s, 8] v) => (float[b, s, 8] y)\n"
    "{ kt = Transpose<perm=[0, 2, 1]>(k)  a = MatMul(q, kt)  p = Softmax(a)  y = MatMul(p, v) }",
    "image": "(float[b, 4, s, 5] x, float[8, 4, 3, 3] f, float[8, 1, 3, 3] g) => (float[b, 8, s, 5] y)\n"
    "{ c = Conv<pads=[1, 1, 1, 1]>(x, f)  d = Conv<pads=[1, 1, 1, 1], group=8>(c, g)\n"
    "m = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(d)  y = Relu(m) }",
    "sums, orders and places": "(float[b, s] x, int64[b, s] i, float[b, s] u) => (float[b, s] y, float[b, t] z)\n"
    "<int64 one = {1}, int64[1] o = {1}> { c = CumSum(x, one)  j = Mod(i, one)  y = ScatterElements<axis=1>(c, j, u)\n"
    "h = Shape(x)  k = Gather(h, o)  z, n = TopK(y, k) }",
}
VALUES = st.one_of(st.sampled_from((0, 1, 2, 3, 4, 8, 16, 32, 64, 256, 1024, 1 << 20)), st.integers(0, 40))


@cache
def compiled_at_first(name: str, target: str) -> tuple[ModelProto, CompiledModel]:
    proto = parser.parse_model(HEAD + KERNELS[name])
    return proto, compile_model(proto, target, dims=RANGES, num_threads=2)


def fields(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of numbers, truths and sizes in a schedule."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, entry in entries:
        if isinstance(entry, int | bool):
            yield (*path, key)
        elif key not in ("template", "dot"):
            yield from fields(entry, (*path, key))


def feeds_of(proto: ModelProto, sizes: dict[str, int], seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    found = {}
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in dims]
        is_float = value.type.tensor_type.elem_type == 1
        found[value.name] = random.uniform(-1, 1, shape).astype(np.float32) if is_float else np.zeros(shape, np.int64)
    return found


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulated device needs g++")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
@given(data=st.data())
@settings(
    max_examples=max(4, settings().max_examples // 8), suppress_health_check=list(HealthCheck), deadline=None
)  # fmt: skip
def test_an_edited_schedule_is_right_at_all_sizes_or_refused(name: str, target: str, data: st.DataObject) -> None:
    proto, compiled = compiled_at_first(name, target)
    (plan,) = copy.deepcopy(json.loads(json.dumps(compiled.contents.plan[:1])))
    plan["launches"] = plan["edges"] = None
    group = data.draw(st.sampled_from([g for g in plan["groups"] if g["schedule"] is not None]))
    for *inside, last in data.draw(st.lists(st.sampled_from([*fields(group["schedule"])]), min_size=1, max_size=2)):
        at = group["schedule"]
        for key in inside:
            at = at[key]
        at[last] = data.draw(st.booleans() if isinstance(at[last], bool) else VALUES)
    note(json.dumps(group["schedule"]))
    try:
        edited = compile_model(proto, target, plan=StitchPlan.from_json(plan), num_threads=2)
    except PassError:
        return
    reference = rivals.onnxruntime(proto, 1)
    with load(edited.to_bytes(), device=target.partition(":")[0], num_threads=2) as module:
        for seed, sizes in enumerate(({"b": 1, "s": 1}, {"b": 7, "s": 80}, {"b": 2, "s": 13})):
            feeds = feeds_of(proto, sizes, seed)
            results = run_guarded(module, feeds) if target == "cpu" else module.run(feeds)
            for ours, theirs in zip(results.values(), reference(feeds), strict=True):
                assert_close(ours, theirs, MODELS["float32"])


@pytest.mark.parametrize("target", TARGETS)
@given(fixture=open_models(), is_given=st.booleans())
@settings(
    max_examples=max(4, settings().max_examples // 25), suppress_health_check=list(HealthCheck), deadline=None
)  # fmt: skip
def test_plans_of_random_models_are_replayed(target: str, fixture: Any, is_given: bool) -> None:
    dims = dict(fixture.ranges) if is_given else None
    compiled = compile_model(fixture.model, target, dims=dims, num_threads=2)
    text = json.dumps(compiled.contents.plan)
    plans = [StitchPlan.from_json(data) for data in json.loads(text)]
    assert plans == list(compiled.plans)
    assert json.dumps([plan.to_json() for plan in plans]) == text
    assert compile_model(fixture.model, target, plan=plans, num_threads=2).to_bytes() == compiled.to_bytes()
