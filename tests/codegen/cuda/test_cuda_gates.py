"""GEMMs with gates on the emulated device: columns u, H + u, 2 H + u... of a row meet, in every template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.codegen.cuda.contraction_harness import anchored, check, lower, resources, target, wgmma_blocks
from tilestitch.codegen.cuda.gemm import mma as gemm_mma
from tilestitch.codegen.cuda.gemm import simt as gemm_simt
from tilestitch.codegen.cuda.gemm import wgmma as gemm_wgmma
from tilestitch.codegen.cuda.gemm.contraction import indexed_matmul, packed_weights
from tilestitch.codegen.cuda.gemm.fragments import find_instruction
from tilestitch.codegen.cuda.surroundings import Anchored
from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.driver import CompiledModel, compile_model
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.passes.plan.gemm.partition import cut
from tilestitch.passes.plan.gemm.tiles import SimtTile
from tilestitch.passes.plan.gemm.units import Units
from tilestitch.passes.schedule.cuda.gemm_tiles import MMA_TILES, SIMT_TILES, WGMMA_TILES
from tilestitch.passes.schedule.parallel.alternatives import Alternatives
from tilestitch.runtime import load
from tilestitch.runtime.emulator import EmulatorOptions

ADVERSARIAL = EmulatorOptions(block_order="adversarial", thread_order="random", seed=7)


class Cell:
    """A GEMM [rows, depth] by a constant matrix with `gates` ranges of `width` columns, and a bias."""

    def __init__(
        self, rows: int, depth: int, width: int, gates: int, dtype: str = "float32", trans_b: bool = True
    ) -> None:
        self.graph, self.width, self.dtype, self.rows = Graph(), width, dtype, rows
        self.random = np.random.default_rng(3)
        h = self.graph.add_input("h", TensorType(dtype, (rows, depth)))
        w = self.constant(*((gates * width, depth) if trans_b else (depth, gates * width)))
        self.sums = self.graph.emit("matmul", h, w, trans_b=trans_b)
        if "int" not in dtype:
            self.sums = self.graph.emit("add", self.sums, self.constant(gates * width))

    def constant(self, *shape: int) -> Value:
        data = self.random.integers(-2, 3, shape) if "int" in self.dtype else self.random.uniform(-1, 1, shape)
        return self.graph.constant(np.asarray(data).astype(to_numpy_dtype(self.dtype)))

    def state(self, name: str) -> Value:
        return self.graph.add_input(name, TensorType(self.dtype, (self.rows, self.width)))

    def gate(self, number: int) -> Value:
        starts, sizes = (0, number * self.width), (self.rows, self.width)
        return self.graph.emit("slice", self.sums, starts=starts, sizes=sizes, steps=(1, 1))

    def ends_in(self, *outputs: Value) -> Graph:
        self.graph.outputs = list(outputs)
        return self.graph


def lstm(rows: int, depth: int, width: int, dtype: str = "float32", trans_b: bool = True) -> Graph:
    """The cell of an LSTM, which stores two states."""
    s = Cell(rows, depth, width, 4, dtype, trans_b)
    emit, c = s.graph.emit, s.state("c")
    i, f, o, g = (emit("tanh", s.gate(n)) for n in range(4))
    cell = emit("add", emit("mul", f, c), emit("mul", i, g))
    return s.ends_in(emit("mul", o, emit("tanh", cell)), cell)


def chain(gates: int, rows: int, depth: int, width: int, dtype: str = "float32", trans_b: bool = True) -> Graph:
    """Gates in falling order, each read at once, of which the last one is read again."""
    s = Cell(rows, depth, width, gates, dtype, trans_b)
    value = s.gate(gates - 1)
    for number in reversed(range(gates)):
        value = s.graph.emit("add", value if "int" in dtype else s.graph.emit("tanh", value), s.gate(number))
    return s.ends_in(value)


def packed(graph: Graph, name: str = "cuda:sm_80") -> Anchored:
    group = anchored(graph, target(name))
    return replace(group, packed=packed_weights(group))


# -- the order of columns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gates", "width", "period"), [(2, 5, 16), (3, 7, 16), (3, 7, 3), (4, 1, 4), (5, 4, 16)])
def test_units_lie_whole_in_periods_and_what_is_left_over_is_zero(gates: int, width: int, period: int) -> None:
    units = Units(gates, width, period)
    matrix = np.arange(1, 2 * gates * width + 1).reshape(2, gates * width)
    arranged = units.arrange(matrix)
    assert arranged.shape == (2, units.columns) and units.columns % period == 0
    for unit in range(width):
        first = units.column(unit)
        assert first // period == (first + gates - 1) // period
        np.testing.assert_array_equal(arranged[:, first : first + gates], matrix[:, unit::width])
    assert np.count_nonzero(arranged) == matrix.size


# -- templates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("rows", "depth", "width", "trans_b"),
    [(1, 64, 32, False), (1, 64, 32, True), (2, 37, 7, True), (7, 24, 13, False), (3, 16, 41, True), (1, 5, 97, True)],
)
def test_few_rows(rows: int, depth: int, width: int, trans_b: bool, dtype: str) -> None:
    (launch,) = check(lstm(rows, depth, width, dtype, trans_b))
    assert launch.kind == "gemv"


@pytest.mark.parametrize(
    ("dtype", "kind"), [("float32", "gemm_simt"), ("float16", "gemm_mma"), ("bfloat16", "gemm_mma")]
)
@pytest.mark.parametrize(("rows", "depth", "width"), [(64, 32, 16), (130, 19, 11)])
def test_many_rows(rows: int, depth: int, width: int, dtype: str, kind: str) -> None:
    (launch,) = check(lstm(rows, depth, width, dtype, trans_b=False))
    assert launch.kind == kind


@pytest.mark.parametrize("gates", [2, 3, 8])
@pytest.mark.parametrize(("rows", "dtype"), [(1, "float16"), (8, "float32"), (33, "float32"), (40, "float16")])
def test_any_number_of_gates(gates: int, rows: int, dtype: str) -> None:
    check(chain(gates, rows, 16, 11, dtype, trans_b=False))


@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("dtype", ["float64", "int32", "int8"])
def test_other_dtypes(dtype: str, rows: int) -> None:
    check(chain(3, rows, 9, 6, dtype, trans_b=False))


def test_one_column_a_gate_and_nothing_to_add_up() -> None:
    check(lstm(12, 5, 1))
    check(lstm(1, 1, 1))
    check(chain(2, 3, 0, 4))
    check(chain(3, 5, 1, 4))


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("gates", [2, 3, 8])
def test_few_rows_in_parts(gates: int, rows: int, trans_b: bool) -> None:
    (launch,) = check(chain(gates, rows, 1100, 5, "float32", trans_b), options=ADVERSARIAL, runs=2)
    assert launch.grid[0] >= 3


@pytest.mark.parametrize("tile", SIMT_TILES[4::2], ids=str)
@pytest.mark.parametrize("gates", [3, 4])
def test_ordinary_tiles_in_parts(gates: int, tile: SimtTile) -> None:
    graph = chain(gates, 70, 2 * tile.bk + 3, 23)
    group = packed(graph)
    gemm = indexed_matmul(group)
    check(graph, gemm_simt.emit_simt(group, gemm, tile, cut(gemm, (tile.bm, tile.bn, tile.bk), 2)))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("gates", [2, 3, 4])
def test_tensor_core_tiles(gates: int, parts: int) -> None:
    graph = chain(gates, 70, 136, 24, "float16", trans_b=False)
    group = packed(graph)
    gemm = indexed_matmul(group)
    assert find_instruction(gemm) is not None
    for tile in MMA_TILES[-1:]:
        partition = cut(gemm, (tile.bm, tile.bn, tile.bk), parts)
        check(graph, gemm_mma.emit_mma(group, gemm, tile, partition))


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("gates", [2, 3, 4])
def test_warpgroups_in_parts(gates: int, trans_b: bool) -> None:
    for tile, parts, width in ((WGMMA_TILES[-1], 2, 32), (WGMMA_TILES[5], 1, 13)):
        graph = chain(gates, 70, 192, width, "float16", trans_b)
        group = packed(graph, "cuda:sm_90a")
        gemm = indexed_matmul(group)
        partition = cut(gemm, (tile.bm, tile.bn, tile.bk), parts)
        blocks = wgmma_blocks(gemm, tile, parts, group.target)
        check(graph, gemm_wgmma.emit_wgmma(group, gemm, tile, partition, blocks), ADVERSARIAL)


def test_too_many_gates_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(KernelError, match=r"9 gates.*plan the graph again"):
        lower(chain(9, 3, 4, 2))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_no_register_is_spilled(architecture: str) -> None:
    for graph in (lstm(1, 256, 256), lstm(8, 256, 256), lstm(256, 512, 512), lstm(256, 512, 512, "float16")):
        for launch in lower(graph, target(f"cuda:{architecture}")):
            _, spilled = resources(launch, architecture, target(f"cuda:{architecture}"))
            assert spilled == 0, launch.kind


# -- models ------------------------------------------------------------------------------------------------------------


def recurrent(op: str, batch: int, directions: int, hidden: int, steps: int = 3, **attributes: int) -> ModelProto:
    """A recurrent layer on sequences [steps, batch, 5]."""
    gates = {"LSTM": 4, "GRU": 3}[op]
    random = np.random.default_rng(2)
    shapes = {"w": (gates * hidden, 5), "r": (gates * hidden, hidden), "b": (2 * gates * hidden,)}
    made = [
        numpy_helper.from_array(random.uniform(-0.5, 0.5, (directions, *shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    direction = "bidirectional" if directions == 2 else "forward"
    node = helper.make_node(op, ["x", "w", "r", "b"], ["y"], hidden_size=hidden, direction=direction, **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, batch, 5))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (steps, directions, batch, hidden))
    graph = helper.make_graph([node], "recurrent", [x], [y], made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def swiglu(rows: int, hidden: int = 16, inner: int = 24) -> ModelProto:
    """(silu(x V) * (x W)) U."""
    random = np.random.default_rng(2)
    sizes = {"v": (hidden, inner), "w": (hidden, inner), "u": (inner, hidden)}
    made = [numpy_helper.from_array(random.uniform(-1, 1, s).astype(np.float32), n) for n, s in sizes.items()]
    lines: Sequence[tuple[str, list[str], str]] = (
        ("MatMul", ["x", "v"], "gate"), ("Sigmoid", ["gate"], "s"), ("Mul", ["gate", "s"], "silu"),
        ("MatMul", ["x", "w"], "up"), ("Mul", ["silu", "up"], "inner"), ("MatMul", ["inner", "u"], "y"),
    )  # fmt: skip
    nodes = [helper.make_node(op, read, [made_]) for op, read, made_ in lines]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (rows, hidden)) for n in "xy")
    graph = helper.make_graph(nodes, "swiglu", [x], [y], made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


MODELS: dict[str, tuple[Callable[[], ModelProto], int]] = {
    "lstm": (lambda: recurrent("LSTM", 2, 1, 7), 5),
    "lstm of both directions": (lambda: recurrent("LSTM", 1, 2, 8), 5),
    "gru": (lambda: recurrent("GRU", 11, 1, 8), 8),
    "gru that resets after the GEMM": (lambda: recurrent("GRU", 1, 1, 8, linear_before_reset=1), 5),
    "gated linear unit": (lambda: swiglu(40), 2),
    "gated linear unit of one row": (lambda: swiglu(1), 2),
}
"""How a model is made, and its launches: one for each GEMM, and two for the first cell and the joined states."""


@pytest.mark.parametrize("name", MODELS)
def test_models_take_a_launch_for_each_gemm_and_agree_with_onnx_runtime(name: str) -> None:
    make, launches = MODELS[name]
    model = make()
    compiled = compile_model(model, "emulator", keep_source=True, plan_budget_s=0)  # the plan of the rules
    assert len(symbols_of(compiled)) == launches
    for order in ("in_order", "reversed", "adversarial"):
        agree(compiled, model, order)


@pytest.mark.parametrize("hidden", [8, 516])
def test_both_directions_of_a_step_are_one_launch_also_where_reductions_are_in_parts(
    hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Alternatives, "best", lambda self, groups: groups)  # packs stay, whatever is predicted of them
    model = recurrent("LSTM", 1, 2, hidden, steps=2)
    compiled = compile_model(model, "emulator", keep_source=True, plan_budget_s=0)
    assert [s.split("_")[0] for s in symbols_of(compiled)].count("packed") == 2
    agree(compiled, model, "random")


def symbols_of(compiled: CompiledModel) -> list[str]:
    return [launch["symbol"] for kernel in compiled.explain()["kernels"] for launch in kernel["launches"]]


def agree(compiled: CompiledModel, model: ModelProto, order: str) -> None:
    """The emulated device computes what ONNX Runtime does, twice."""
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, feeds)
    with load(compiled.to_bytes(), device=EmulatorOptions(block_order=order, seed=5)) as module:
        for _ in range(2):
            np.testing.assert_allclose(module.run(feeds)["y"], want, rtol=2e-5, atol=2e-5)
