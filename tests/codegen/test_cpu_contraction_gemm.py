"""Matrix multiplication template: every shape, operand kind and dtype against numpy; what the plan promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm.script.ir_builder import tirx as T

from tests.codegen.cpu_harness import Kernel, build, prim_func
from tilestitch.codegen.compute.dtypes import from_storage, storage_dtype
from tilestitch.codegen.cpu.contraction.gemm import emit_gemm
from tilestitch.codegen.cpu.contraction.outer import OuterEmitter
from tilestitch.codegen.cpu.contraction.panels import LoadedOperand, PackedOperand, pack
from tilestitch.codegen.cpu.target import CpuTarget, host_target
from tilestitch.compiler.ir.types import storage_bytes, to_numpy_dtype
from tilestitch.passes.plan.cpu.gemm import GemmPlan, GemmShape
from tilestitch.passes.plan.cpu.isa import AVX512, Isa
from tilestitch.passes.plan.cpu.tiling import SAME_SET_BYTES
from tilestitch.passes.schedule.cpu.gemm import choose_gemm

TRIPLE = "x86_64-linux-gnu"
SHAPES = [
    (1, 1, 1),
    (1, 1000, 64),
    (3, 17, 5),
    (4, 50, 33),
    (13, 31, 8),
    (64, 97, 40),
    (128, 64, 100),
    (197, 48, 16),
    (30, 257, 1),
    (21, 16, 1024),
]


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if "int" in dtype:
        return rng.integers(0 if dtype.startswith("u") else -50, 50, shape).astype(dtype)
    return rng.standard_normal(shape).astype(to_numpy_dtype(dtype))


def plan_gemm(shape: GemmShape, isa: Isa, threads: int = 4) -> GemmPlan:
    """A GEMM with the schedule that is chosen for it."""
    return GemmPlan(shape, choose_gemm(shape, isa, threads))


def edited(plan: GemmPlan, **changes: Any) -> GemmPlan:
    """With another schedule, which is still one that a kernel computes."""
    other = replace(plan, schedule=replace(plan.schedule, **changes))
    assert list(other.reasons()) == []
    return other


def run(plan: GemmPlan, a: np.ndarray, b: np.ndarray, target: CpuTarget | None = None, **layout: Any) -> np.ndarray:
    """Runs a plan: ``a`` [batch, m, k] (or [batch, k, m] with transposed_a), ``b`` [batch or 1, k, n] likewise."""
    shape = plan.shape
    groups = b.shape[0]
    operand = pack(b, plan.packing(groups)) if shape.packed else b
    result = np.zeros((shape.batch, shape.m, shape.n), shape.acc_dtype)

    def emit(buffers: list[Any], task: Any, scratch: Any) -> None:
        left, right, out = buffers

        def load_a(batch: Any, m: Any, k: Any) -> Any:
            element = left[batch, k, m] if layout.get("transposed_a") else left[batch, m, k]
            element = from_storage(element, shape.a_dtype)
            return element * T.float32(2) if layout.get("prologue") else element

        def load_b(batch: Any, k: Any, n: Any) -> Any:
            element = right[batch, n, k] if layout.get("transposed_b") else right[batch, k, n]
            return from_storage(element, shape.b_dtype)

        b_operand = (
            LoadedOperand(load_b, "k" if layout.get("transposed_b") else "n")
            if not shape.packed
            else PackedOperand(right, lambda batch: batch if groups > 1 else 0)
        )

        def store(batch: Any, m: Any, n: Any, value: Any) -> None:
            T.buffer_store(out, value, [batch, m, n])

        emitter = OuterEmitter if plan.schedule.k_outer else None
        emit_gemm(plan, load_a, b_operand, store, task, scratch, emitter=emitter)

    arguments = [(a.shape, storage_dtype(shape.a_dtype)), (operand.shape, storage_dtype(shape.b_dtype))]
    function = prim_func([*arguments, (result.shape, shape.acc_dtype)], emit)
    kernel = Kernel(build(function, target), plan.tasks, plan.scratch_bytes)
    return kernel.run(a, operand, result)[2]


def check(got: np.ndarray, want: np.ndarray) -> None:
    if got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, want)
        return
    assert np.abs(got - want).max() <= 1e-5 * max(1e-30, float(np.abs(want).max()))


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_packed_operand(m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, (1, m, k), "float32"), random(rng, (1, k, n), "float32")
    check(run(plan_gemm(GemmShape(m, n, k), host_target().isa), a, b), a @ b)


@pytest.mark.parametrize("transposed_b", [False, True])
@pytest.mark.parametrize("transposed_a", [False, True])
def test_batched_operands_known_at_run_time(transposed_a: bool, transposed_b: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, (3, 37, 20), "float32"), random(rng, (3, 20, 45), "float32")
    plan = plan_gemm(
        GemmShape(37, 45, 20, batch=3, packed=False, left_runs="m" if transposed_a else "k"), host_target().isa
    )
    left = np.ascontiguousarray(a.swapaxes(1, 2)) if transposed_a else a
    right = np.ascontiguousarray(b.swapaxes(1, 2)) if transposed_b else b
    check(run(plan, left, right, transposed_a=transposed_a, transposed_b=transposed_b), a @ b)


def test_packed_batches() -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, (4, 9, 20), "float32"), random(rng, (4, 20, 45), "float32")
    check(run(plan_gemm(GemmShape(9, 45, 20, batch=4), host_target().isa), a, b), a @ b)


def test_empty_reduction_gives_zeros() -> None:
    plan = plan_gemm(GemmShape(3, 17, 0), host_target().isa)
    a, b = np.zeros((1, 3, 0), np.float32), np.zeros((1, 0, 17), np.float32)
    assert (run(plan, a, b) == 0).all()


@pytest.mark.parametrize(
    ("a_dtype", "b_dtype", "acc"),
    [
        ("float64", "float64", "float64"),
        ("float16", "float16", "float32"),
        ("bfloat16", "bfloat16", "float32"),
        ("float32", "float16", "float32"),
        ("int8", "int8", "int32"),
        ("uint8", "int8", "int32"),
        ("int32", "int32", "int32"),
        ("int64", "int64", "int64"),
        ("uint32", "uint32", "uint32"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_dtypes(a_dtype: str, b_dtype: str, acc: str, packed: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, (1, 21, 19), a_dtype), random(rng, (1, 19, 35), b_dtype)
    plan = plan_gemm(GemmShape(21, 35, 19, 1, a_dtype, b_dtype, acc, packed=packed), host_target().isa)
    check(run(plan, a, b), a.astype(acc) @ b.astype(acc))


def test_prologue_is_applied() -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, (1, 30, 50), "float32"), random(rng, (1, 50, 40), "float32")
    plan = plan_gemm(GemmShape(30, 40, 50, plain=False), host_target().isa)
    assert plan.schedule.stage_left
    check(run(plan, a, b, prologue=True), 2 * (a @ b))


@pytest.mark.parametrize("changes", [{"spill": True}, {"k_block": 70}, {"rows_outer": True}, {"rows_outer": False}])
@pytest.mark.parametrize("blocks", [(1, 1), (3, 2), (100, 100)])
def test_every_order_and_block_size(changes: dict[str, Any], blocks: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, (1, 60, 200), "float32"), random(rng, (1, 200, 150), "float32")
    plan = plan_gemm(GemmShape(60, 150, 200), host_target().isa)
    tiles, panels = min(blocks[0], plan.rows.parts), min(blocks[1], plan.panels)
    whole = {"rows_outer": False} if "k_block" in changes else {}
    check(run(edited(plan, block_tiles=tiles, block_panels=panels, **changes, **whole), a, b), a @ b)


@pytest.mark.parametrize(
    ("blocks", "k_block", "copied", "prefetches"),
    [
        ((1, 1), 64, False, True),
        ((2, 3), 70, True, False),
        ((2, 3), 64, True, True),
        ((100, 100), 1, False, False),
        ((100, 100), 199, True, True),
    ],
)
def test_the_reduction_outermost(blocks: tuple[int, int], k_block: int, copied: bool, prefetches: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, (2, 61, 200), "float32"), random(rng, (1, 200, 150), "float32")
    plan = plan_gemm(GemmShape(61, 150, 200, 2), host_target().isa)
    tiles, panels = min(blocks[0], plan.rows.parts), min(blocks[1], plan.panels)
    outer = edited(
        plan, block_tiles=tiles, block_panels=panels, k_block=k_block, k_outer=True, rows_outer=False,
        stage_left=copied, prefetch_next=prefetches,
    )  # fmt: skip
    check(run(outer, a, b), a @ b)


@pytest.mark.parametrize("layout", [{"transposed_a": True}, {"prologue": True}])
def test_the_reduction_outermost_copies_some_steps_of_rows_at_a_time(layout: dict[str, bool]) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, (1, 61, 200), "float32"), random(rng, (1, 200, 150), "float32")
    shape = GemmShape(61, 150, 200, plain=False, left_runs="m" if "transposed_a" in layout else "k")
    plan = edited(plan_gemm(shape, host_target().isa), k_block=64, k_outer=True, rows_outer=False)
    assert plan.staged_bytes < 61 * 200 * 4
    given = np.ascontiguousarray(a.transpose(0, 2, 1)) if "transposed_a" in layout else a
    check(run(plan, given, b, **layout), (2 if "prologue" in layout else 1) * (a @ b))


@pytest.mark.parametrize(
    ("m", "k", "n", "outermost"),
    [
        (197, 3072, 768, True),
        (64, 4096, 4096, True),
        (512, 4096, 4096, True),
        (197, 768, 3072, False),  # all rows stay in the cache, whole
        (14, 4096, 4096, False),  # one tile of rows: each panel is read once
        (512, 3072, 64, False),  # the right operand stays there
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_reduction_is_outermost_where_else_each_task_would_read_the_right_operand_again(
    m: int, k: int, n: int, outermost: bool, threads: int
) -> None:
    plan = plan_gemm(GemmShape(m, n, k), AVX512, threads)
    assert plan.schedule.k_outer == outermost
    assert list(plan.reasons()) == []
    assert not outermost or plan.scratch_bytes <= AVX512.l2_bytes * 3 // 4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("k_block", [200, 70])
def test_half_floats_are_converted_once_for_several_tiles(dtype: str, k_block: int) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, (1, 60, 200), dtype), random(rng, (1, 200, 150), dtype)
    plan = edited(plan_gemm(GemmShape(60, 150, 200, 1, dtype, dtype), host_target().isa, 1), k_block=k_block)
    assert (
        plan.schedule.widen_right and not plan.schedule.rows_outer and plan.panel_bytes >= 200 * plan.tile.columns * 4
    )
    check(run(plan, a, b), a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize(
    ("m", "k", "dtype", "copied"),
    [
        (196, 1024, "float32", True),
        (196, 3072, "float32", True),
        (196, 1040, "float32", False),
        (196, 512, "float32", False),
        (8, 1024, "float32", False),
        (196, 1024, "float64", True),
    ],
)
def test_rows_that_meet_in_a_set_of_the_cache_are_copied_to_others(m: int, k: int, dtype: str, copied: bool) -> None:
    plan = plan_gemm(GemmShape(m, 256, k, 1, dtype, dtype, dtype), AVX512)
    assert plan.schedule.stage_left == copied
    assert plan.staged_stride * storage_bytes(dtype) % SAME_SET_BYTES


def test_half_floats_of_few_rows_stay_as_they_are() -> None:
    """Memory is what takes time: half of the bytes are read, and each is converted once anyway."""
    plan = plan_gemm(GemmShape(4, 1024, 1024, 1, "float16", "float16"), host_target().isa)
    assert not plan.schedule.widen_right and plan.panel_bytes == 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_large_operands_that_are_read_once_are_asked_for_ahead(dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, (1, 3, 700), dtype), random(rng, (1, 700, 900), dtype)
    plan = plan_gemm(GemmShape(3, 900, 700, 1, dtype, dtype), host_target().isa)
    assert plan.schedule.prefetch_ahead == (plan.shape.right_bytes > host_target().isa.l2_bytes // 2)
    check(run(edited(plan, prefetch_ahead=True), a, b), a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3"])
def test_lesser_vector_units(mcpu: str) -> None:
    target = CpuTarget(mcpu, TRIPLE)
    rng = np.random.default_rng(0)
    a, b = random(rng, (1, 33, 40), "float32"), random(rng, (1, 40, 50), "float32")
    check(run(plan_gemm(GemmShape(33, 50, 40), target.isa), a, b, target), a @ b)


@pytest.mark.parametrize(
    ("mcpu", "triple", "multiply", "spill"),
    [
        ("sapphirerapids", TRIPLE, "vfmadd231ps", "64-byte Spill"),
        ("haswell", TRIPLE, "vfmadd231ps", "32-byte Spill"),
        ("neoverse-n1", "aarch64-linux-gnu", "fmla", "16-byte Folded Spill"),
    ],
)
def test_accumulators_stay_in_registers(mcpu: str, triple: str, multiply: str, spill: str) -> None:
    target = CpuTarget(mcpu, triple)
    plan = plan_gemm(GemmShape(196, 256, 512), target.isa)

    def emit(buffers: list[Any], task: Any, scratch: Any) -> None:
        left, right, out = buffers
        emit_gemm(
            plan,
            lambda batch, m, k: left[batch, m, k],
            PackedOperand(right),
            lambda batch, m, n, value: T.buffer_store(out, value, [m, n]),
            task,
            scratch,
        )

    shapes = [((1, 196, 512), "float32"), (plan.packing().shape, "float32"), ((196, 256), "float32")]
    text = build(prim_func(shapes, emit), target).inspect_source("asm")
    assert text.count(multiply) >= plan.tile.rows * plan.tile.vectors
    assert spill not in text


def serial_loops(text: str, statement: str) -> int:
    """How many loops that run one step after the other enclose the first line of a kernel that holds STATEMENT."""
    lines = text.splitlines()
    number = next(n for n, line in enumerate(lines) if statement in line)
    depth, indent = 0, len(lines[number])
    for line in reversed(lines[: number + 1]):
        if line.strip() and len(line) - len(line.lstrip()) < indent:
            indent = len(line) - len(line.lstrip())
            depth += line.count(",", 0, line.index("T.grid(")) + 1 if "T.grid(" in line else "in range(" in line
    return depth


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_cells_are_in_loops_less_deep_than_the_reduction(rows: int) -> None:
    """Else LLVM takes the constants of their exponentials for as important as accumulators, and spills the latter."""
    plan = plan_gemm(GemmShape(rows, 256, 256, gates=4), host_target().isa, threads=1)

    def emit(buffers: list[Any], task: Any, scratch: Any) -> None:
        left, right, out = buffers

        def store(batch: Any, m: Any, n: Any, *gates: Any) -> None:
            T.buffer_store(out, T.max(gates[0], gates[3]), [m, n])

        emit_gemm(plan, lambda batch, m, k: left[batch, m, k], PackedOperand(right), store, task, scratch)

    shapes = [((1, rows, 256), "float32"), (plan.packing(4).shape, "float32"), ((rows, 256), "float32")]
    text = prim_func(shapes, emit).script()
    assert serial_loops(text, "T.max(buffer") < serial_loops(text, " * buffer")


def test_packing_pads_with_zeros_and_checks_shape() -> None:
    plan = plan_gemm(GemmShape(64, 70, 3), host_target().isa)
    packing = plan.packing()
    matrix = np.arange(210, dtype=np.float32).reshape(3, 70) + 1
    packed = pack(matrix, packing)
    assert packed.shape == packing.shape
    flat = packed[0].transpose(1, 0, 2).reshape(3, -1)
    assert (flat[:, :70] == matrix).all() and (flat[:, 70:] == 0).all()
    with pytest.raises(ValueError, match="plan the kernel again"):
        pack(matrix.T, packing)


def test_empty_result_is_refused() -> None:
    with pytest.raises(ValueError, match="skip the launch"):
        plan_gemm(GemmShape(0, 4, 4), host_target().isa)


@pytest.mark.parametrize(("m", "n", "k"), [(128, 3072, 768), (197, 768, 3072), (64, 50257, 768), (3136, 64, 64)])
def test_large_gemms_have_tasks_for_many_threads(m: int, n: int, k: int) -> None:
    plan = plan_gemm(GemmShape(m, n, k), host_target().isa, threads=4)
    assert plan.tasks >= 8
    assert plan.scratch_bytes <= 4 << 20


@pytest.mark.parametrize(("m", "n", "k"), [(1, 64, 64), (16, 64, 64), (1, 128, 256)])
def test_tiny_gemms_are_not_shared(m: int, n: int, k: int) -> None:
    """They take less time than it takes until another thread has begun."""
    assert plan_gemm(GemmShape(m, n, k), host_target().isa, threads=8).tasks == 1
