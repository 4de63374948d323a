"""Mixtures of experts as compiled for GPUs: as for CPUs, matrices are chosen by index and stay packed; on the emulated
device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.compiler.test_experts import HIDDEN, INNER, experts
from tests.frontend.checks import assert_close, floats
from tests.frontend.microsoft.checks import run_ort
from tilestitch.compiler import CompiledModel, compile_model
from tilestitch.compiler.frontend import import_model
from tilestitch.compiler.ir.evaluate import evaluate
from tilestitch.passes.plan.schedules import GemmSchedule
from tilestitch.runtime import Module, load
from tilestitch.runtime.emulator import EmulatorOptions

BLOCKED = 8
"""Bits with which ONNX Runtime's kernel rounds tokens, too, where scales are those of blocks."""


def compiled(model: ModelProto, target: str = "cuda:sm_80", **options: Any) -> CompiledModel:
    return compile_model(model, target=target, host_steps=False, keep_source=True, **options)


def emulated(model: ModelProto, target: str = "cuda:sm_80", **options: Any) -> Module:
    return load(compiled(model, target, **options).to_bytes(), device="emulator")


def exact(model: ModelProto, x: np.ndarray) -> np.ndarray:
    found = evaluate(import_model(model, {"x": x.shape}).graph, {"x": x})[0]
    assert isinstance(found, np.ndarray)
    return found


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_any_number_of_tokens(bits: int, zeros: bool) -> None:
    """Few, whose experts are computed one by one, many, whose experts share them, and none."""
    model = experts(("tokens",), bits=bits, zeros=zeros)
    loaded = emulated(model)
    for tokens in (1, 2, 6, 7, 41, 0):
        x = floats(tokens, HIDDEN, seed=tokens)
        found = loaded.run({"x": x})["y"]
        if not tokens:
            assert found.shape == x.shape
        else:
            assert_close(found, exact(model, x) if bits == BLOCKED else run_ort(model, {"x": x})[0])


@pytest.mark.parametrize("block", [0, 16, 64, 128])
@pytest.mark.parametrize("tokens", [1, 61])
def test_sizes_of_blocks(block: int, tokens: int) -> None:
    model, x = experts((tokens,), count=7, best=3, block=block, zeros=True), floats(tokens, HIDDEN)
    assert_close(emulated(model, "cuda:sm_90a").run({"x": x})["y"], run_ort(model, {"x": x})[0])


@pytest.mark.parametrize(("count", "best"), [(1, 1), (5, 1), (3, 3), (32, 4)])
@pytest.mark.parametrize("tokens", [1, 3, 67])
def test_experts_and_the_best_of_them(count: int, best: int, tokens: int) -> None:
    """Some experts get no token."""
    model, x = experts((tokens,), count, best), floats(tokens, HIDDEN)
    assert_close(emulated(model).run({"x": x})["y"], run_ort(model, {"x": x})[0])


@pytest.mark.parametrize("tokens", [2, 53])
def test_odd_sizes(tokens: int) -> None:
    model, x = experts((tokens,), count=7, best=2, block=16, hidden=46, inner=74), floats(tokens, 46)
    assert_close(emulated(model).run({"x": x})["y"], exact(model, x))


def test_layers_whose_weights_do_not_all_stay_packed() -> None:
    """A column of 74 codes of 4 bits is no whole number of words; copies of its matrices would be many."""
    model, x = experts((53,), count=7, block=0, inner=74), floats(53, HIDDEN)
    made = compiled(model)
    assert not any(kernel["name"].startswith("gather") for kernel in made.specialisations[0].explanation["kernels"])
    assert_close(load(made.to_bytes(), device="emulator").run({"x": x})["y"], run_ort(model, {"x": x})[0])


@pytest.mark.parametrize(("precision", "error"), [("tf32", 1e-3), ("fp16", 2e-3), ("bf16", 1e-2)])
@pytest.mark.parametrize("tokens", [1, 47])
def test_lower_precision(precision: str, error: float, tokens: int) -> None:
    model, x = experts((tokens,), zeros=True), floats(tokens, HIDDEN)
    wanted = run_ort(model, {"x": x})[0]
    found = emulated(model, precision=precision).run({"x": x})["y"]
    assert np.linalg.norm(found - wanted) <= error * np.linalg.norm(wanted)


@pytest.mark.parametrize("sync", ["tile", "model"])
@pytest.mark.parametrize("tokens", [3, 40])
def test_indices_that_the_same_launch_computes(tokens: int, sync: str) -> None:
    """A kernel waits for them before it fetches weights."""
    model, x = experts((tokens,)), floats(tokens, HIDDEN)
    made = compiled(model, sync=sync)
    assert [launch.kind for launch in made.specialisations[0].plan.launches].count("tickets")
    wanted = run_ort(model, {"x": x})[0]
    for order in ("reversed", "adversarial"):
        options = EmulatorOptions(block_order=order, thread_order="random", seed=5, resident_blocks=7)
        with load(made.to_bytes(), device=options) as loaded:
            assert_close(loaded.run({"x": x})["y"], wanted)


@pytest.mark.parametrize("tokens", [3, 40])
def test_nan_stays_with_its_token(tokens: int) -> None:
    loaded, x = emulated(experts((tokens,))), floats(tokens, HIDDEN)
    wanted = loaded.run({"x": x})["y"]
    x[1, 5] = np.nan
    found = loaded.run({"x": x})["y"]
    assert np.isnan(found[1]).all()
    assert_close(np.delete(found, 1, 0), np.delete(wanted, 1, 0))


def test_weights_stay_packed_once_for_few_and_many_tokens() -> None:
    model = experts(("tokens",), count=256)
    made = compile_model(model, target="cuda:sm_80")
    assert len(made.specialisations) > 1
    assert len(made.to_bytes()) < model.ByteSize() + 400_000


@pytest.mark.parametrize(("tokens", "matrices"), [(1, 4), (8, 32)])
def test_the_bytes_that_are_read_are_those_of_the_chosen_matrices(tokens: int, matrices: int) -> None:
    (made,) = compiled(experts((tokens,), count=32, best=4)).specialisations
    kernels = made.explanation["kernels"]
    read = [kernel["bytes_read"] for kernel in kernels if kernel["name"].startswith("block_matmul")]
    sizes = [2 * INNER * (HIDDEN // 32) * (16 + 4), HIDDEN * (INNER // 32) * (16 + 4)]
    for found, size in zip(read, sizes, strict=True):
        assert matrices * size <= found < 2 * matrices * size


@pytest.mark.parametrize(
    ("tokens", "precision", "tile"),
    [(12, "fp32", "gemv"), (12, "bf16", "gemv"), (20, "fp32", "gemv"), (20, "bf16", "mma"), (200, "fp32", "simt"),
     (200, "tf32", "mma")],
)  # fmt: skip
def test_tiles_are_of_the_kernels_that_suit_the_arithmetic(tokens: int, precision: str, tile: str) -> None:
    (made,) = compiled(experts((tokens,), count=6, best=2), precision=precision).specialisations
    groups = [group for group in made.plan.groups if any(name.startswith("block_matmul") for name in group.nodes)]
    schedules = [group.schedule for group in groups if isinstance(group.schedule, GemmSchedule)]
    assert [schedule.tile.template for schedule in schedules] == [tile, tile]


def test_no_launch_checks_the_indices_of_tokens_of_a_known_number() -> None:
    for tokens in (2, 40):
        (made,) = compiled(experts((tokens,))).specialisations
        assert "check" not in [launch.kind for launch in made.plan.launches]


@pytest.mark.parametrize(("tokens", "all_"), [(1, False), (2, True)])
def test_floats_of_few_tokens_are_copied(tokens: int, all_: bool) -> None:
    """Where the copies take at most half of the time that all experts would."""
    stored = {"router": floats(HIDDEN, 12), "up": floats(12, INNER, HIDDEN), "down": floats(12, HIDDEN, INNER)}
    nodes = [
        helper.make_node("MatMul", ["x", "router"], ["probs"]),
        helper.make_node("MoE", ["x", "probs", "up", "", "down"], ["y"], domain="com.microsoft", k=2),
    ]
    formal = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [tokens, HIDDEN]) for name in "xy"]
    initial = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "floats", formal[:1], formal[1:], initial)
    model, x = helper.make_model(graph, opset_imports=domains, ir_version=10), floats(tokens, HIDDEN)
    made = compiled(model)
    read = sum(kernel["bytes_read"] for kernel in made.specialisations[0].explanation["kernels"])
    assert (read > sum(array.nbytes for array in stored.values())) == all_
    assert_close(load(made.to_bytes(), device="emulator").run({"x": x})["y"], run_ort(model, {"x": x})[0])
