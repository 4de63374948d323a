"""Which memory-bound kernels an H200 could not issue as fast as its memory moves their bytes: counted in machine code.

    python -m benchmarks.issue_slots [CASE ...] [--json FILE]

CASE is one of CASES below. For each it prints the instructions of all threads over the bytes that the model reads and
writes, and how many the schedulers issue while memory moves a byte, by nominal figures. Loops count once: of kernels
marked with `loop`, it is less than what is issued. Needs no GPU. Exit code 0.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from tilestitch.codegen.cuda.machine_code.disassemble import disassemble
from tilestitch.codegen.cuda.machine_code.mix import mix_of
from tilestitch.codegen.cuda.target import parse_cuda_target
from tilestitch.compiler import compile_model
from tilestitch.passes.schedule.cuda.gpu import Gpu

TARGET = "cuda:h200"
SCHEDULERS, WARP = 4, 32
IMAGES = "t = Transpose<perm=[0,3,1,2]>(x)  {}  y = Transpose<perm=[0,2,3,1]>(r)"
DEPTHWISE = "r = Conv<pads=[{0},{0},{0},{0}],group={1}>(t, w)"


@dataclass(frozen=True)
class Case:
    """x and y are the model's input and output. weights: shapes of further ones."""

    x: tuple[int, ...]
    body: str
    dtype: str = "float16"
    y: tuple[int, ...] | None = None
    y_dtype: str | None = None
    weights: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def model(self) -> onnx.ModelProto:
        def typed(dtype: str, shape: Sequence[int]) -> str:
            return f"{'float' if dtype == 'float32' else dtype}[{','.join(map(str, shape))}]"

        result = typed(self.y_dtype or self.dtype, self.y or self.x)
        graph = f"g ({typed(self.dtype, self.x)} x) => ({result} y) {{ {self.body} }}"
        proto: onnx.ModelProto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {graph}')
        for name, shape in self.weights:
            array = np.random.default_rng(0).uniform(-1, 1, shape).astype(self.dtype)
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
        return proto


def _norm(rows: int, width: int, dtype: str = "float16") -> Case:
    weights = (("s", (width,)), ("b", (width,)))
    return Case((rows, width), "y = LayerNormalization<axis=-1>(x, s, b)", dtype, weights=weights)


SQUARE, PIXELS = (4096, 4096), (16, 112, 112, 64)
CASES = {
    "relu": Case(SQUARE, "y = Relu(x)"),
    "gelu": Case(SQUARE, "y = Gelu(x)"),
    "gelu_tanh": Case(SQUARE, 'y = Gelu<approximate="tanh">(x)'),
    "silu": Case(SQUARE, "s = Sigmoid(x)  y = Mul(x, s)"),
    "silu_float32": Case(SQUARE, "s = Sigmoid(x)  y = Mul(x, s)", "float32"),
    "quantise": Case(
        SQUARE, "z = Constant<value=int8 {0}>()  y = QuantizeLinear(x, s, z)", y_dtype="int8", weights=(("s", ()),)
    ),
    "layer_norm_96": _norm(1 << 17, 96),
    "layer_norm_384": _norm(1 << 15, 384),
    "layer_norm_768": _norm(1 << 14, 768),
    "layer_norm_128_float32": _norm(3 << 15, 128, "float32"),
    "softmax_49": Case((1 << 16, 49), "y = Softmax<axis=-1>(x)"),
    "softmax_1024": Case((1 << 14, 1024), "y = Softmax<axis=-1>(x)"),
    "softmax_1024_float32": Case((1 << 14, 1024), "y = Softmax<axis=-1>(x)", "float32"),
    "max_pool": Case(
        PIXELS, IMAGES.format("r = MaxPool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]>(t)"), y=(16, 56, 56, 64)
    ),
    "max_pool_5": Case((16, 20, 20, 256), IMAGES.format("r = MaxPool<kernel_shape=[5,5],pads=[2,2,2,2]>(t)")),
    "average_pool": Case(
        PIXELS, IMAGES.format("r = AveragePool<kernel_shape=[2,2],strides=[2,2]>(t)"), y=(16, 56, 56, 64)
    ),
    "depthwise_3": Case(
        (8, 112, 112, 96), IMAGES.format(DEPTHWISE.format(1, 96)), weights=(("w", (96, 1, 3, 3)),)
    ),
    "depthwise_3_float32": Case(
        (8, 112, 112, 96), IMAGES.format(DEPTHWISE.format(1, 96)), "float32", weights=(("w", (96, 1, 3, 3)),)
    ),
    "depthwise_7": Case((8, 56, 56, 96), IMAGES.format(DEPTHWISE.format(3, 96)), weights=(("w", (96, 1, 7, 7)),)),
    "bilinear": Case(
        (16, 40, 40, 256),
        'n = Constant<value_floats=[1.0,1.0,2.0,2.0]>()  ' + IMAGES.format('r = Resize<mode="linear">(t, , n)'),
        y=(16, 80, 80, 256),
    ),
    "transpose": Case((64, 1024, 512), "y = Transpose<perm=[0,2,1]>(x)", y=(64, 512, 1024)),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A kernel. per_byte: instructions of threads over bytes of the whole model. loop: whether some count once only."""

    case: str
    kernel: str
    instructions: int
    threads: int
    per_byte: float
    loop: bool


def issued_per_byte() -> float:
    """Return the instructions of threads that the schedulers issue while memory moves a byte."""
    device = Gpu.of(parse_cuda_target(TARGET).planned_for).device
    return device.sm_count * SCHEDULERS * WARP * device.clock_hz / device.dram_bytes_per_second


def rows_of(name: str, case: Case) -> Iterator[Row]:
    model = case.model()
    compiled = compile_model(model, TARGET)
    launches = {x["symbol"]: x for kernel in compiled.explain()["kernels"] for x in kernel["launches"]}
    nbytes = sum(map(_bytes, (*model.graph.input, *model.graph.output)))
    members = compiled.contents.kernels.items()
    cubins = ((member.split("/")[1], bytes(data)) for member, data in members if member.endswith(".cubin"))
    for code in disassemble(cubins):
        mix, launch = mix_of(code), launches[code.symbol]
        threads = prod(launch["grid"]) * prod(launch["block"])
        per_byte = round(mix.instructions * threads / nbytes, 2)
        yield Row(name, code.symbol.rpartition("_")[0], mix.instructions, threads, per_byte, mix.in_loop > 0)


def _bytes(value: onnx.ValueInfoProto) -> int:
    type_ = value.type.tensor_type
    itemsize = onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type).itemsize
    return int(itemsize * prod(d.dim_value for d in type_.shape.dim))


def main(arguments: Sequence[str] | None = None) -> int:
    given = argparse.ArgumentParser(prog="python -m benchmarks.issue_slots", description=__doc__.splitlines()[0])
    given.add_argument("names", nargs="*", metavar="CASE", help="default: all")
    given.add_argument("--json", type=Path, metavar="FILE", help="write what is printed as JSON")
    options = given.parse_args(arguments)
    for name in set(options.names) - set(CASES):
        given.error(f"there is no case {name!r}; there are {', '.join(CASES)}")
    limit, rows = issued_per_byte(), list[Row]()
    print(f"while memory moves a byte, {limit:.1f} instructions are issued (nominal)", flush=True)
    for name in options.names or CASES:
        for row in rows_of(name, CASES[name]):
            rows.append(row)
            mark = ", loop" if row.loop else ""
            print(f"{name}: {row.kernel} {row.instructions} instructions, {row.per_byte} a byte{mark}", flush=True)
    if options.json:
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        command = " ".join(["python -m benchmarks.issue_slots", *(sys.argv[1:] if arguments is None else arguments)])
        found = {"date": now, "command": command, "issued_per_byte": round(limit, 2)}
        options.json.write_text(json.dumps({**found, "results": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
