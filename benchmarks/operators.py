"""Models of one operator each against ONNX Runtime, of open or known sizes, on one thread: whole models hide slow ones.

    python -m benchmarks.operators [--known] [--only NAME ...] [--rounds N]

Both take turns; the CPU time of a call counts, the median of the rounds. Results are compared, and written to
benchmarks/results/.
"""

import argparse
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from benchmarks.turns import onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import load

SIZES = {"b": 4, "n": 128, "m": 96, "h": 56, "w": 60, "t": 300, "k": 50, "p": 8400}
ROWS, IMAGE, SOUND = "float[b,n,64] x", "float[b,32,h,w] x", "float[b,64,t] x"
TURN_S = 0.004
"""About how long the calls of one turn take."""


@dataclass(frozen=True)
class Case:
    """`weights`: shapes of constants with random values; `stored`: other constants, in ONNX's text form."""

    inputs: str
    nodes: str
    stored: str = ""
    weights: Mapping[str, tuple[int, ...]] | None = None
    result: str = "float"

    def model(self, known: bool) -> onnx.ModelProto:
        inputs = (
            re.sub(r"\b[bnmhwtkp]\b(?=[,\]])", lambda m: str(SIZES[m.group()]), self.inputs) if known else self.inputs
        )
        stored = f"<{self.stored}>" if self.stored else ""
        text = f"({inputs}) => ({self.result} y) {stored} {{ {self.nodes} }}"
        model = parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {text}')
        model.graph.output[0].type.tensor_type.ClearField("shape")
        random = np.random.default_rng(0)
        for name, shape in (self.weights or {}).items():
            values = (random.standard_normal(shape) / 10).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(values, name))
        return model


def cases() -> Iterator[tuple[str, Case]]:
    """Yield the cases by name."""
    for op in [
        "Abs",
        "Acos",
        "Asin",
        "Asinh",
        "Atan",
        "Ceil",
        "Cos",
        "Cosh",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Log",
        "Mish",
        "Neg",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Tan",
        "Tanh",
    ]:
        yield op, Case(ROWS, f"y = {op}(x)")
    for op in ("Add", "Div", "Max", "Mul", "Pow", "Sub"):
        for beside, dims in {"": "b,n,64", " of a row": "64", " of a column": "b,n,1"}.items():
            yield op + beside, Case(f"{ROWS}, float[{dims}] z", f"y = {op}(x, z)")
    for dtype, number in {"float16": 10, "int64": 7, "uint8": 2, "bool": 9}.items():
        yield f"Cast to {dtype}", Case(ROWS, f"y = Cast<to={number}>(x)", result=dtype)
    for axis in range(3):
        yield from _along(axis)
    yield from _images()
    yield from _moves()
    yield from _products()
    yield from _detections()


def _along(axis: int) -> Iterator[tuple[str, Case]]:
    at = f"int64[1] a = {{{axis}}}"
    for op in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2", "ReduceLogSumExp"):
        yield f"{op} {axis}", Case(ROWS, f"y = {op}<keepdims=0>(x, a)", at)
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        yield f"{op} {axis}", Case(ROWS, f"y = {op}<axis={axis}>(x)")
    yield f"ArgMax {axis}", Case(ROWS, f"y = ArgMax<axis={axis}>(x)", result="int64")
    yield f"CumSum {axis}", Case(ROWS, "y = CumSum(x, a)", f"int64 a = {{{axis}}}")
    yield f"TopK {axis}", Case(ROWS, f"y, j = TopK<axis={axis}>(x, k)", "int64[1] k = {3}")
    yield f"Concat {axis}", Case(f"{ROWS}, float[b,n,64] z", f"y = Concat<axis={axis}>(x, z)")
    yield f"Gather {axis}", Case(f"{ROWS}, int64[k] i", f"y = Gather<axis={axis}>(x, i)")
    yield f"GatherElements {axis}", Case(f"{ROWS}, int64[b,n,64] i", f"y = GatherElements<axis={axis}>(x, i)")
    for name, begin, end, step in (("middle", 1, -1, 1), ("every second", 0, 9999, 2), ("reversed", -1, -9999, -1)):
        stored = f"int64[1] b = {{{begin}}}, int64[1] e = {{{end}}}, int64[1] s = {{{step}}}, {at}"
        yield f"Slice {axis}, {name}", Case(ROWS, "y = Slice(x, b, e, a, s)", stored)


def _images() -> Iterator[tuple[str, Case]]:
    for kernel, stride in ((2, 2), (3, 1), (3, 2)):
        attributes = f"kernel_shape=[{kernel}, {kernel}], strides=[{stride}, {stride}]"
        for op in ("MaxPool", "AveragePool"):
            yield f"{op} {kernel}/{stride}", Case(IMAGE, f"y = {op}<{attributes}>(x)")
    yield "GlobalAveragePool", Case(IMAGE, "y = GlobalAveragePool(x)")
    for mode in ("nearest", "linear", "cubic"):
        yield f"Resize {mode}", Case(IMAGE, f'y = Resize<mode="{mode}">(x, , s)', "float[4] s = {1, 1, 2, 2}")
    for mode in ("constant", "edge", "reflect"):
        yield f"Pad {mode}", Case(IMAGE, f'y = Pad<mode="{mode}">(x, p)', "int64[8] p = {0,0,1,1,0,0,1,1}")
    yield "DepthToSpace", Case(IMAGE, "y = DepthToSpace<blocksize=2>(x)")
    norm = {"s": (32,), "z": (32,)}
    yield "InstanceNormalization", Case(IMAGE, "y = InstanceNormalization(x, s, z)", weights=norm)
    yield "GroupNormalization", Case(IMAGE, "y = GroupNormalization<num_groups=8>(x, s, z)", weights=norm)
    for name, shape, attributes in (
        ("1x1", (64, 32, 1, 1), "group=1"), ("3x3", (64, 32, 3, 3), "pads=[1,1,1,1]"),
        ("3x3/2", (64, 32, 3, 3), "pads=[1,1,1,1], strides=[2,2]"), ("depthwise", (32, 1, 3, 3), "group=32"),
    ):  # fmt: skip
        yield f"Conv {name}", Case(IMAGE, f"y = Conv<{attributes}>(x, v)", weights={"v": shape})
    yield "Conv of sound", Case(SOUND, "y = Conv<pads=[1,1]>(x, v)", weights={"v": (64, 64, 3)})
    for side in (2, 4):
        nodes = f"y = ConvTranspose<strides=[2,2], pads={[side // 2 - 1] * 4}>(x, v)"
        yield f"ConvTranspose {side}x{side}/2", Case(IMAGE, nodes, weights={"v": (32, 16, side, side)})


def _moves() -> Iterator[tuple[str, Case]]:
    for perm in ([0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1]):
        yield f"Transpose {perm}", Case(ROWS, f"y = Transpose<perm={perm}>(x)")
    for channels in (3, 6, 32):
        for dtype in ("float", "uint8"):
            image, back = f"{dtype}[b,{channels},h,w] x", f"{dtype}[b,h,w,{channels}] x"
            yield (
                f"Transpose of {channels} channels to last, {dtype}",
                Case(image, "y = Transpose<perm=[0,2,3,1]>(x)", result=dtype),
            )
            yield (
                f"Transpose of {channels} channels to first, {dtype}",
                Case(back, "y = Transpose<perm=[0,3,1,2]>(x)", result=dtype),
            )
    yield "Expand", Case("float[b,1,64] x", "y = Expand(x, s)", "int64[3] s = {1, 200, 1}")
    yield "Tile", Case(ROWS, "y = Tile(x, s)", "int64[3] s = {1, 2, 3}")
    yield "Where", Case(f"{ROWS}, bool[b,n,64] q, float[b,n,64] z", "y = Where(q, x, z)")
    yield "ReverseSequence", Case("float[t,b,64] x, int64[b] i", "y = ReverseSequence(x, i)")
    yield "embedding", Case("int64[b,n] i", "y = Gather(v, i)", weights={"v": (5000, 64)})


def _products() -> Iterator[tuple[str, Case]]:
    yield "LayerNormalization", Case(ROWS, "y = LayerNormalization(x, s, z)", weights={"s": (64,), "z": (64,)})
    yield "MatMul by weights", Case(ROWS, "y = MatMul(x, v)", weights={"v": (64, 256)})
    yield "MatMul of batches", Case(f"{ROWS}, float[b,64,m] z", "y = MatMul(x, z)")
    yield "MatMul of one row", Case("float[1,64] x", "y = MatMul(x, v)", weights={"v": (64, 1000)})
    yield "Gemm", Case("float[n,64] x", "y = Gemm<transB=1>(x, v, g)", weights={"v": (256, 64), "g": (256,)})
    nodes = 'y = Einsum<equation="bnhd,bmhd->bhnm">(x, z)'
    yield "Einsum", Case("float[b,n,8,32] x, float[b,m,8,32] z", nodes)
    for op, gates in (("LSTM", 4), ("GRU", 3)):
        weights = {"v": (1, 32 * gates, 32), "r": (1, 32 * gates, 32)}
        yield op, Case("float[t,b,32] x", f"y = {op}<hidden_size=32>(x, v, r)", weights=weights)
    scale = "float s = {0.02}, uint8 z = {128}"
    yield "QuantizeLinear", Case(ROWS, "y = QuantizeLinear(x, s, z)", scale, result="uint8")
    yield "DequantizeLinear", Case("uint8[b,n,64] x", "y = DequantizeLinear(x, s, z)", scale)


def _detections() -> Iterator[tuple[str, Case]]:
    for most in (50, 300, 3000):
        yield f"TopK {most} of 8400", Case("float[1,p] x", "y, j = TopK(x, k)", f"int64[1] k = {{{most}}}")
    nodes = "y = NonMaxSuppression(x, z, n, o, l)"
    stored = "int64[1] n = {100}, float[1] o = {0.5}, float[1] l = {1}"
    yield "NonMaxSuppression", Case("float[1,p,4] x, float[1,1,p] z", nodes, stored, result="int64")
    yield "Softmax of scores far apart", Case(ROWS, "s = Mul(x, f) y = Softmax(s)", "float f = {30}")


def feeds_of(session: Any) -> dict[str, np.ndarray]:
    """Return inputs of `SIZES`; indices are below 4."""
    random = np.random.default_rng(0)
    feeds = {}
    for value in session.get_inputs():
        shape = [SIZES.get(size, size) for size in value.shape]
        dtype = value.type.removeprefix("tensor(").removesuffix(")")
        made = random.standard_normal(shape) if "float" in dtype else random.integers(0, 4, shape)
        feeds[value.name] = np.asarray(made, {"float": "float32"}.get(dtype, dtype))
    return feeds


def measure(name: str, case: Case, known: bool, rounds: int) -> dict[str, Any]:
    """Return the times of a case, and the largest difference of its results."""
    model = case.model(known)
    session = onnxruntime_session(model, 1)
    feeds = feeds_of(session)
    compiled = compile_model(model, num_threads=1)
    with load(compiled.to_bytes(), num_threads=1) as module:
        ours, wanted = module.run(feeds)["y"], session.run(["y"], feeds)[0]
        ways = {"ours": lambda: module.run(feeds), "onnxruntime": lambda: session.run(["y"], feeds)}
        times = _cpu_times(ways, rounds)
    wide = [array.astype(np.float64) for array in (ours, wanted)]
    difference = np.nanmax(np.abs(np.subtract(*wide)), initial=0)
    return {
        "operator": name, **{f"{way}_us": round(found, 2) for way, found in times.items()},
        "speed": round(times["onnxruntime"] / times["ours"], 2), "difference": float(difference),
        "host_steps": compiled.explain()["host"]["steps"],
    }  # fmt: skip


def _cpu_times(ways: Mapping[str, Any], rounds: int) -> dict[str, float]:
    """Return the median CPU time of a call, in microseconds."""
    start = time.process_time()
    for _ in range(3):
        ways["onnxruntime"]()
    calls = max(1, min(50, int(3 * TURN_S / max(time.process_time() - start, 1e-6))))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, function in ways.items():
            start = time.process_time()
            for _ in range(calls):
                function()
            times[name].append((time.process_time() - start) / calls * 1e6)
    return {name: median(found) for name, found in times.items()}


def main() -> int:
    """Prints the slowest operators first, and writes a file."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.operators", description="Measure single operators.")
    options.add_argument("--known", action="store_true", help="known sizes, not open ones")
    options.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="cases whose names begin so")
    options.add_argument("--rounds", type=int, default=15, metavar="N")
    options.add_argument("-o", "--output", type=Path, metavar="OUT.json")
    chosen = options.parse_args()
    rows = [
        measure(name, case, chosen.known, chosen.rounds)
        for name, case in cases()
        if name.startswith(tuple(chosen.only))
    ]
    rows.sort(key=lambda row: row["speed"])
    shown = [[row["operator"], row["ours_us"], row["onnxruntime_us"], row["speed"], row["host_steps"]] for row in rows]
    print(table(shown, ("operator", "us", "ONNX Runtime us", "speed", "host steps")))
    name = "operators_known" if chosen.known else "operators_open"
    print(f"written to {write_results(name, rows, chosen.output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
