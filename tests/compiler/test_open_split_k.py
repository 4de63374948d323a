"""GEMMs over an open number of rows on GPUs: where rows are few, the reduction is split, and partial sums have memory
of known size.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper, parser

from tests.compiled import assert_close
from tests.tolerances import MODELS
from tilestitch.compiler import CompiledModel, compile_model
from tilestitch.compiler.cli import rivals
from tilestitch.passes.errors import PlanError
from tilestitch.passes.open.cases import MOST_KEPT
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.cases import Cases
from tilestitch.passes.plan.gemm.tiles import OpenGemvTile
from tilestitch.passes.plan.schedules import GemmSchedule, OpenGemmSchedule
from tilestitch.passes.plan_check import check_plan
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions

pytest.importorskip("onnxruntime")
if shutil.which("g++") is None:
    pytest.skip("the emulated device needs g++", allow_module_level=True)

DEPTH = 2048


def product(dtype: str, columns: int = 96, rows: str = "b, s") -> ModelProto:
    kind = {"float32": "float"}.get(dtype, dtype)
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 17]> main ({kind}[{rows}, {DEPTH}] x, {kind}[{rows}, {columns}] r)'
        f" => ({kind}[{rows}, {columns}] y) {{ p = MatMul(x, w)  a = Add(p, r)  y = Tanh(a) }}"
    )
    weights = np.random.default_rng(0).standard_normal((DEPTH, columns)) / DEPTH**0.5
    model.graph.initializer.append(numpy_helper.from_array(weights.astype(dtype), "w"))
    return model


def packed_product() -> ModelProto:
    rng, columns = np.random.default_rng(0), 160
    codes = rng.integers(0, 256, (columns, DEPTH // 32, 16)).astype(np.uint8)
    scales = (rng.random(columns * DEPTH // 32) * 0.02).astype(np.float32)
    values = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["b", "s", w])
        for n, w in (("x", DEPTH), ("r", columns), ("y", columns))
    ]
    attributes = {"K": DEPTH, "N": columns, "bits": 4, "block_size": 32}
    nodes = [
        helper.make_node("MatMulNBits", ["x", "w", "c"], ["p"], domain="com.microsoft", **attributes),
        helper.make_node("Add", ["p", "r"], ["y"]),
    ]
    weights = [numpy_helper.from_array(codes, "w"), numpy_helper.from_array(scales, "c")]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def schedules(compiled: CompiledModel) -> list[OpenGemmSchedule]:
    (group,) = compiled.specialisations[0].plan.groups
    assert group.cases is not None
    found = [case.schedule for case in group.cases.cases if isinstance(case.schedule, OpenGemmSchedule)]
    assert len(found) == len(group.cases.cases)
    return found


SIZES = ((1, 1), (1, 3), (2, 4), (1, 17), (3, 21), (1, 130), (0, 3), (1, 1))
"""In this order with one module: counters are those of all cases."""


@pytest.mark.parametrize("model", [product("float32"), product("float16"), packed_product()], ids=["32", "16", "codes"])
def test_few_rows_are_computed_in_parts_of_the_reduction(model: ModelProto) -> None:
    compiled = compile_model(model, "emulator")
    first, *_, last = schedules(compiled)
    assert first.split_k > 1 and last.split_k == 1
    assert len({(each.kept_elements, each.counters) for each in schedules(compiled)}) == 1
    reference = rivals.onnxruntime(model, 1)
    shuffled = EmulatorOptions(block_order="random", thread_order="random", seed=3)
    for options, sizes in (EmulatorOptions(), SIZES), (shuffled, SIZES[:4]):
        with load(compiled.to_bytes(), device=options) as module:
            for b, s in sizes:
                rng = np.random.default_rng(b + s)
                given = {i.name: rng.standard_normal((b, s, i.shape[2])).astype(i.dtype) for i in module.inputs}
                (actual,), (wanted,) = module.run(given).values(), reference(given)
                assert_close(actual, wanted, MODELS[wanted.dtype.name])


def test_one_row_is_split_too() -> None:
    tiles = [(each.tile, each.split_k) for each in schedules(compile_model(packed_product(), "emulator"))]
    assert any(isinstance(tile, OpenGemvTile) and parts > 1 for tile, parts in tiles)


def test_all_sizes_of_a_short_range_may_be_split() -> None:
    compiled = compile_model(product("float16"), "emulator", dims={"b": (1, 1), "s": (1, 24)})
    (group,) = compiled.specialisations[0].plan.groups
    cases = [group.schedule] if group.cases is None else [case.schedule for case in group.cases.cases]
    assert all(isinstance(each, OpenGemmSchedule) and each.split_k > 1 for each in cases)


def test_nothing_is_split_where_columns_are_open_as_well() -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> main (float[s, 2048] x, float[2048, t] w) => (float[s, t] y)'
        " { y = MatMul(x, w) }"
    )
    (group,) = compile_model(model, "emulator").specialisations[0].plan.groups
    cases = [group.schedule] if group.cases is None else [case.schedule for case in group.cases.cases]
    assert all(isinstance(each, GemmSchedule) and each.split_k == 1 for each in cases)


def test_partial_sums_have_bounded_memory_also_between_sizes_far_apart() -> None:
    """A region that ended between 2**14 rows, which were looked at, and the end of the range had memory for them."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> main (float16[b, 256, h, w] x) => (float16[b, 64, h, w] y)'
        " { c = Conv<pads=[1, 1, 1, 1]>(x, f)  y = Tanh(c) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((64, 256, 3, 3), np.float16), "f"))
    found = schedules(compile_model(model, "emulator"))
    assert found[0].split_k > 1
    assert found[0].kept_elements <= MOST_KEPT


def test_projections_of_one_input_do_not_wait_for_memory_of_each_other() -> None:
    """Each had partial sums of 16 MiB, the limit of all together."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> main (float[s, 1024] x) => (float[s, 64] q, float[s, 64] k,'
        " float[s, 64] v) { q = MatMul(x, a)  k = MatMul(x, b)  v = MatMul(x, c) }"
    )
    rng = np.random.default_rng(0)
    for name in "abc":
        model.graph.initializer.append(numpy_helper.from_array(rng.random((1024, 64), np.float32), name))
    plan = compile_model(model, "emulator").specialisations[0].plan
    assert all(isinstance(group.schedule, OpenGemmSchedule) for group in plan.groups)
    assert not plan.edges


def test_memory_for_open_rows_is_refused_where_rows_are_known() -> None:
    one = compile_model(product("float16", rows="2, 3"), "emulator").specialisations[0]
    (group,) = one.plan.groups
    assert isinstance(group.schedule, GemmSchedule)
    forged = replace(group, schedule=OpenGemmSchedule(group.schedule.tile))
    with pytest.raises(PlanError, match="its rows are open"):
        check_plan(replace(one.plan, groups=(forged,), launches=None, edges=None, lanes=None), one.graph)


def _with(cases: Cases, **changes: int) -> Cases:
    return replace(
        cases, cases=tuple(replace(case, schedule=replace(case.schedule, **changes)) for case in cases.cases)
    )


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (lambda group: replace(group, cases=_with(group.cases, kept_elements=64)), "parts need .* kept_elements"),
        (lambda group: replace(group, cases=_with(group.cases, counters=1)), "there are .* and 1"),
        (lambda group: replace(group, cases=_with(group.cases, split_k=1, kept_elements=-64)), "-64 kept_elements"),
        (lambda group: replace(group, cases=_with(group.cases, split_k=1, counters=-1)), "-1 counters"),
        (lambda group: replace(group, cases=_with(group.cases, kept_elements=1 << 31)), "too many or few"),
        (lambda group: replace(group, schedule=group.cases.cases[0].schedule, cases=None), "parts need"),
        (
            lambda group: replace(
                group, cases=replace(group.cases, cases=(
                    replace(group.cases.cases[0], schedule=replace(group.cases.cases[0].schedule, counters=1 << 20)),
                    *group.cases.cases[1:],
                ))
            ),
            "work on other memory",
        ),
    ],
)  # fmt: skip
def test_plans_whose_partial_sums_do_not_fit_are_refused(forge: Callable[[Group], Group], reason: str) -> None:
    one = compile_model(product("float16"), "emulator").specialisations[0]
    (group,) = one.plan.groups
    forged = forge(group)
    if forged.cases is not None:
        forged = replace(forged, schedule=forged.cases.cases[-1].schedule)
    with pytest.raises(PlanError, match=reason):
        check_plan(replace(one.plan, groups=(forged,), launches=None, edges=None, lanes=None), one.graph)
