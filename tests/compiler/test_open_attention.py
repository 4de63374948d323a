"""Attention over open sizes on GPUs: where there are few queries, keys are split at run time (decoding)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser
from onnx.reference import ReferenceEvaluator

from tests.compiled import assert_close
from tests.tolerances import MODELS
from tilestitch.compiler import CompiledModel, compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.compiler.ir.substitute import nodes_at
from tilestitch.compiler.latency_models import chosen_model
from tilestitch.cost_model.protocol import latency_us
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.schedules import OpenAttentionSchedule
from tilestitch.passes.schedule.device import device_of
from tilestitch.passes.schedule.facts import group_facts
from tilestitch.runtime import load

pytest.importorskip("onnxruntime")
if shutil.which("g++") is None:
    pytest.skip("the emulated device needs g++", allow_module_level=True)

HEAD = '<ir_version: 10, opset_import: ["" : 17]>\nmain '
TEXT = (
    "({0}[b, H, s, D] q, {0}[b, H, D, t] k, {0}[b, H, t, D] v, {0}[b, 1, s, t] m) => ({0}[b, H, s, D] y)\n"
    "{{ a = MatMul(q, k)  c = Add(a, m)  p = Softmax<axis=-1>(c)  y = MatMul(p, v) }}"
)


def attention(dtype: str = "float", heads: int = 2, width: int = 8) -> ModelProto:
    return parser.parse_model(HEAD + TEXT.format(dtype).replace("H", str(heads)).replace("D", str(width)))


def attended(compiled: CompiledModel) -> Group:
    (group,) = compiled.specialisations[0].plan.groups
    assert isinstance(group.schedule, OpenAttentionSchedule)
    return group


def feeds(b: int, s: int, t: int, dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(b + s + t)
    shapes = {"q": (b, 2, s, 8), "k": (b, 2, 8, t), "v": (b, 2, t, 8)}
    mask = np.where(rng.random((b, 1, s, t)) < 0.4, -np.inf, rng.standard_normal((b, 1, s, t)))
    mask[..., :1] = 0
    values = {name: rng.standard_normal(shape) for name, shape in shapes.items()} | {"m": mask}
    return {name: value.astype(dtype) for name, value in values.items()}


SIZES = [
    (1, 1, 1), (1, 1, 700), (2, 1, 1300), (1, 3, 130), (1, 67, 600), (2, 130, 70), (1, 1, 5000), (9, 2, 300), (1, 1, 1),
]  # fmt: skip
"""Batch, queries and keys, in this order with one module: what counts the parts is used by different numbers."""


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_one_kernel_for_any_number_of_queries_and_keys(dtype: str) -> None:
    model = attention(dtype.replace("float32", "float"))
    compiled = compile_model(model, "emulator")
    (launch,) = compiled.specialisations[0].plan.launches or ()
    assert "min(" in str(launch.grid[0]) and launch.temporaries and launch.counter_bytes
    reference = rivals.onnxruntime(model, 1)
    with load(compiled.to_bytes(), device="emulator") as module:
        for sizes in SIZES:
            given = feeds(*sizes, dtype)
            (actual,), (wanted,) = module.run(given).values(), reference(given)
            assert_close(actual, wanted, MODELS[dtype])


FOUND = (
    "(float[n, 8] x, float[t, 8] k, bool[n] chosen) => (float[?, 8] y)\n"
    "{ q = Compress<axis=0>(x, chosen)  K = Transpose<perm=[1, 0]>(k)  a = MatMul(q, K)\n"
    "p = Softmax<axis=-1>(a)  y = MatMul(p, k) }"
)


def test_queries_that_are_found_may_be_none() -> None:
    """The memory for sums has room for so many parts of as many tiles of queries as there are, or of one."""
    model = parser.parse_model(HEAD + FOUND)
    rng, wanted = np.random.default_rng(0), ReferenceEvaluator(model)
    with load(compile_model(model, target="cuda:sm_80", keep_source=True).to_bytes(), device="emulator") as module:
        for t, chosen in ((700, [0, 0, 0]), (5, [0]), (700, [1, 0, 1])):
            given = {"x": rng.standard_normal((len(chosen), 8)), "k": rng.standard_normal((t, 8))}
            inputs = {name: value.astype("float32") for name, value in given.items()}
            inputs["chosen"] = np.array(chosen, bool)
            assert_close(module.run(inputs)["y"], wanted.run(None, inputs)[0], MODELS["float32"])


def predicted_us(compiled: CompiledModel, group: Group, **sizes: int) -> float:
    (one, *_), model = compiled.specialisations, chosen_model(None, None)
    nodes = nodes_at([node for node in one.graph.nodes if node.name in group.nodes], sizes)
    return latency_us(model, group_facts(nodes, group, one.plan.target), device_of(one.plan.target))


def test_few_queries_with_many_keys_are_predicted_to_gain_and_others_not_to_lose() -> None:
    compiled = compile_model(attention("float16", 8, 64), "cuda:h200")
    group = attended(compiled)
    assert isinstance(group.schedule, OpenAttentionSchedule) and group.schedule.kept_rows
    whole = replace(group, schedule=replace(group.schedule, kept_rows=0))

    def gain(**sizes: int) -> float:
        return predicted_us(compiled, whole, **sizes) / predicted_us(compiled, group, **sizes)

    assert gain(b=1, s=1, t=16384) > 8
    assert gain(b=1, s=1, t=100) == gain(b=64, s=1, t=4096) == gain(b=1, s=2048, t=2048) == 1


def test_keys_are_never_split_if_they_are_few_or_blocks_many() -> None:
    for dims in ({"t": (1, 500)}, {"b": (100, 1000)}):
        compiled = compile_model(attention(), "emulator", dims=dims)
        schedule = attended(compiled).schedule
        assert isinstance(schedule, OpenAttentionSchedule) and not schedule.kept_rows
        (launch,) = compiled.specialisations[0].plan.launches or ()
        assert not launch.temporaries and not launch.counter_bytes


def test_attentions_beside_each_other_do_not_wait_for_each_other() -> None:
    """Their sums have separate memory, at open places."""
    model = parser.parse_model(
        HEAD + "(float[b, 2, s, 8] q, float[b, 2, t, 8] k, float[b, 2, 8, t] l) => (float[b, 2, s, 8] y, "
        "float[b, 2, s, 8] z, float[b, 2, s, 8] w)\n"
        "{ a = MatMul(q, l)  p = Softmax<axis=-1>(a)  y = MatMul(p, k)  n = Neg(q)  c = MatMul(n, l)\n"
        "  d = Softmax<axis=-1>(c)  z = MatMul(d, k)  w = Neg(y) }"
    )
    plan = compile_model(model, "emulator").specialisations[0].plan
    launches = plan.launches or ()
    numbers = [number for number, launch in enumerate(launches) if launch.temporaries]
    assert len(numbers) == 2
    assert not [edge for edge in plan.edges or () if [edge.before, edge.after] == numbers]


OPERATOR: dict[str, tuple[Any, ...]] = {
    "plain": ("q, k, v", ""),
    "causal": ("q, k, v", "<is_causal = 1>"),
    "window": ("q, k, v", "<is_causal = 1, left_window_size = 2>", 25),
    "past": ("q, k, v, , pk, pv", "<is_causal = 1>"),
    "mask": ("q, k, v, m", "<scale = 0.5>"),
    "bool mask": ("q, k, v, f", "<softcap = 2.0>"),
    "lengths": ("q, k, v, , , , n", "<is_causal = 1>"),
    "several inputs": ("q, k, v, m", "<is_causal = 1, q_num_heads = 6, kv_num_heads = 3>"),
}
SHAPES = {
    "q": "float[b, 6, s, 8]", "k": "float[b, 3, t, 8]", "v": "float[b, 3, t, 8]", "pk": "float[b, 3, p, 8]",
    "pv": "float[b, 3, p, 8]", "m": "float[s, t]", "f": "bool[s, t]", "n": "int64[b]",
}  # fmt: skip


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@pytest.mark.parametrize("case", OPERATOR)
def test_the_operator_is_one_kernel_over_open_sizes(case: str, target: str) -> None:
    """The operator's definition in ONNX scales the keys in memory, and adds a mask of zeros where there is none."""
    names, attributes, *opset = OPERATOR[case]
    given = ", ".join(f"{SHAPES[name.strip()]} {name.strip()}" for name in names.split(",") if name.strip())
    outputs, result = ("y, whole, w", ", float[b, 3, u, 8] whole, float[b, 3, u, 8] w") if "pk" in names else ("y", "")
    model = parser.parse_model(
        f'<ir_version: 11, opset_import: ["" : {opset[0] if opset else 24}]> '
        f"main ({given}) => (float[b, 6, s, 8] y{result})"
        f" {{ {outputs} = Attention {attributes} ({names}) }}"
    )
    compiled = compile_model(model, target)
    kinds = [group.kind.value for group in compiled.specialisations[0].plan.groups]
    assert compiled.explain()["host"]["steps"] == 0 and kinds.count("attention") == 1
    if target == "emulator":
        assert len(kinds) == (3 if case == "past" else 1)  # the caches grow
    reference = ReferenceEvaluator(model)
    with load(compiled.to_bytes(), device=target) as module:
        for b, s, t, p in (1, 1, 1, 1), (2, 3, 7, 5), (1, 13, 13, 0), (2, 1, 67, 3):
            rng = np.random.default_rng(s)
            extents = {"b": b, "s": s, "t": s if "pk" in names else t, "p": p}
            feeds = {}
            for info in model.graph.input:
                shape = [d.dim_value or extents[d.dim_param] for d in info.type.tensor_type.shape.dim]
                feeds[info.name] = rng.standard_normal(shape).astype(np.float32)
            if "f" in feeds:
                feeds["f"] = feeds["f"] > -1
            if "n" in feeds:
                feeds["n"] = rng.integers(1, extents["t"] + 1, b)
            for actual, wanted in zip(module.run(feeds).values(), reference.run(None, feeds), strict=True):
                assert_close(actual, wanted, MODELS["float32"])
