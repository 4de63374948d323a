"""Every primitive is compiled to machine code of sm_80 and sm_90a by NVRTC, without a GPU or a CUDA installation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.codegen.cuda.cuda_harness import target
from tilestitch.codegen.assemble import Planned, assemble
from tilestitch.codegen.cuda.backend import CudaBackend
from tilestitch.codegen.cuda.toolchain.compile import BuildOptions
from tilestitch.compiler.ir import Graph, TensorType, Value
from tilestitch.compiler.ir.ops import OPS, Kind
from tilestitch.passes.contract import PassContext
from tilestitch.passes.planner import make_plan
from tilestitch.runtime.program import DeviceStep

SHAPE = (2, 4, 6, 8)
WINDOW = {"strides": (1, 1), "before": (1, 1), "after": (1, 1), "dilations": (1, 1), "layout": "NCX"}
AXES = {"axes": (3,), "keepdims": True}
EXTREME = {"axis": 3, "keepdims": False, "select_last": False}

# What follows the dtype of the first operand: kinds of operands (x like the first, b bool, w a weight, i indices,
# n a number), and attributes.
UNARY, BINARY = ("x", {}), ("xx", {})
OPERANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "is_inf": ("x", {"positive": True, "negative": True}), "cast": ("x", {"to": "int64"}),
    "select": ("bxx", {}), "reshape": ("x", {"shape": (8, 48)}), "transpose": ("x", {"perm": (0, 2, 3, 1)}),
    "broadcast_to": ("x", {"shape": (3, *SHAPE)}), "concat": ("xx", {"axis": 1}),
    "slice": ("x", {"starts": (0, 3, 0, 1), "steps": (1, -1, 2, 1), "sizes": (2, 4, 3, 7)}),
    "pad": ("x", {"before": (0, 0, 1, 1), "after": (0, 0, 1, 2), "mode": "reflect"}),
    "gather": ("xi", {"axis": 2}), "gather_elements": ("xe", {"axis": 3}), "gather_nd": ("xp", {"batch_dims": 0}),
    **dict.fromkeys(("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and"), ("x", AXES)),
    **dict.fromkeys(("arg_max", "arg_min"), ("x", EXTREME)),
    "matmul": ("xx", {"trans_b": True}), "conv": ("xw", {**WINDOW, "groups": 1}),
    "conv_transpose": ("xw", {**WINDOW, "groups": 1, "output_padding": (0, 0)}),
    "window_reduce": ("x", {**WINDOW, "reducer": "max", "kernel": (3, 3)}),
    "cumulative": ("x", {"axis": 3, "reducer": "sum", "exclusive": False, "reverse": True}),
    "top_k": ("x", {"k": 3, "axis": 3, "largest": True}),
    "scatter_elements": ("xes", {"axis": 3, "reduction": "add"}), "scatter_nd": ("xpu", {"reduction": "none"}),
    "order_rows": ("R", {}), "tally": ("b", {"block": 256}), "compact": ("bt", {"block": 256, "count": 9}),
    "suppress": ("BSn11", {"centers": False}),
    "roi_align": ("xRI", {"mode": "avg", "size": (2, 3), "ratio": 0, "scale": 0.5, "offset": 0.5, "layout": "NCX"}),
}  # fmt: skip
FLOATS, INTEGERS = ("float32", "float16", "bfloat16"), ("int32", "uint8")
DTYPES = {
    **dict.fromkeys(["logical_not", "logical_and", "logical_or", "logical_xor"], ("bool",)),
    **dict.fromkeys(["bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"], INTEGERS),
    "reduce_and": INTEGERS,
    **dict.fromkeys(["neg", "abs", "sign"], ("float32", "int32")),
    **dict.fromkeys(
        ["add", "mul", "div", "mod", "pow", "equal", "reduce_sum", "matmul", "conv", "gather"],
        (*FLOATS, "float64", "int32"),
    ),
}
"""Where they are not float32 alone."""
ON_CPUS = {"append", "block_matmul", "look_up"}
"""What is made for CPUs only, by the frontend or where sizes are open; and weights in blocks (`test_codes`)."""
DEVICE_OPS = [name for name, spec in OPS.items() if spec.kind not in (Kind.HOST, Kind.CONTROL) and name not in ON_CPUS]


def operand(graph: Graph, kind: str, dtype: str) -> Value:
    made: dict[str, Callable[[], tuple[str, tuple[int, ...]]]] = {
        "x": lambda: (dtype, SHAPE), "b": lambda: ("bool", SHAPE), "w": lambda: (dtype, (4, 4, 3, 3)),
        "i": lambda: ("int64", (5,)), "e": lambda: ("int64", (*SHAPE[:3], 2)), "s": lambda: (dtype, (*SHAPE[:3], 2)),
        "p": lambda: ("int64", (3, 2)), "u": lambda: (dtype, (3, *SHAPE[2:])),
        "B": lambda: (dtype, (2, 9, 4)), "S": lambda: (dtype, (2, 3, 9)), "n": lambda: ("int64", ()),
        "1": lambda: (dtype, ()), "R": lambda: (dtype, (7, 4)), "I": lambda: ("int64", (7,)),
        "t": lambda: ("int64", (2,)),
    }  # fmt: skip
    return graph.add_input(kind, TensorType(*made[kind]()))


def add(graph: Graph, op: str, dtype: str) -> list[Value]:
    if op == "iota":
        return graph.add(op, [], {"shape": SHAPE, "axis": 2, "dtype": dtype}, origins=[op]).outputs
    if op == "sizes":
        attrs = {"values": tuple(range(SHAPE[-1])), "shape": (SHAPE[-1],), "dtype": "int64"}
        return graph.add(op, [], attrs, origins=[op]).outputs
    if op == "bit_cast":
        return graph.add(op, [operand(graph, "x", dtype)], {"to": "int32"}, origins=[op]).outputs
    kinds, attrs = OPERANDS.get(op, UNARY if OPS[op].arity == (1, 1) else BINARY)
    return graph.add(op, [operand(graph, kind, dtype) for kind in kinds], attrs, origins=[op]).outputs


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.HOST, Kind.CONTROL)])
def test_every_primitive_compiles_for_both_architectures(kind: Kind) -> None:
    graph = Graph("primitives")
    ops = [op for op in DEVICE_OPS if OPS[op].kind is kind]
    for op in ops:
        for dtype in DTYPES.get(op, ("float32",)):
            graph.outputs = [*graph.outputs, *add(graph, op, dtype)]
    context = PassContext(target().planned_for, options={"planner": "none"})
    planned = Planned(graph, make_plan(graph, context), tuple(f"y{i}" for i in range(len(graph.outputs))))
    backend = CudaBackend(target("cuda:sm_80,sm_90a"), BuildOptions(2))
    contents = assemble([planned], backend, keep_source=False, progress=lambda *_: None).contents
    launched = {
        o for step in contents.programs[0].steps for launch in getattr(step, "launches", ()) for o in launch.origins
    }
    assert launched == set(ops)
    assert all(isinstance(step, DeviceStep) for step in contents.programs[0].steps)
    symbols = len({launch.symbol for step in contents.programs[0].steps for launch in step.launches})
    for folder in ("sm_80", "sm_90a"):
        assert sum(member.startswith(f"kernels/{folder}/") for member in contents.kernels) == symbols
