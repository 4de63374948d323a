"""A decoding step of Llama-like models with weights of 4 bits in blocks, against ONNX Runtime.

    python -m benchmarks.block_weights [--hidden 1024] [--layers 6] [--threads 1 2] [--rounds N] [--forms symmetric ...]

All take turns. With one thread CPU time counts, which a busy machine does not lengthen; with more, wall clock. Weights
are random, in the form that exporters of language models write: MatMulNBits, GroupQueryAttention with its cache, root
mean squares. The rate of reading is the best of a compiled loop over memory beyond all caches, by as many threads
(`benchmarks/reading.py`). Results go to benchmarks/results/; `--hidden 4096 --layers 5` is a model of 585 MB.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.quantised import MEBIBYTE, least_ms, least_wall_ms, relative_error
from benchmarks.reading import Reading
from benchmarks.turns import onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import load

USUAL = (1024, 6)
"""Width and layers; results of other sizes have files of their own."""
BLOCK, HEAD, PAST, VOCABULARY = 32, 64, 127, 8192
FORMS = {"symmetric": (False, 0), "zero points": (True, 0), "int8 allowed": (False, 4)}
"""Whether there are zero points, and `accuracy_level`: with 4, activations may be rounded to 8 bits."""


@dataclass
class Decoder:
    """Makes the model: one token of one sequence, after `PAST` others."""

    hidden: int
    layers: int
    zeros: bool
    accuracy_level: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: list[onnx.TensorProto] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @property
    def inner(self) -> int:
        return self.hidden * 11 // 4

    @property
    def heads(self) -> tuple[int, int]:
        """Of queries, and of keys and values."""
        count = self.hidden // HEAD
        return count, max(1, count // 4)

    def node(self, op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, outputs, name=outputs[0], **attrs))
        return outputs[0]

    def store(self, name: str, data: np.ndarray) -> str:
        self.stored.append(numpy_helper.from_array(data, name))
        return name

    def linear(self, x: str, name: str, depth: int, width: int) -> str:
        blocks = depth // BLOCK
        codes = self.random.integers(0, 256, (width, blocks, BLOCK // 2), np.uint8)
        scales = (self.random.random((width, blocks)) / (4 * np.sqrt(depth))).astype(np.float32)
        operands = [x, self.store(f"{name}.codes", codes), self.store(f"{name}.scales", scales)]
        if self.zeros:
            points = self.random.integers(0x66, 0x99, (width, -(-blocks // 2)), np.uint8)
            operands.append(self.store(f"{name}.zeros", points))
        attrs = {"K": depth, "N": width, "bits": 4, "block_size": BLOCK, "accuracy_level": self.accuracy_level}
        return self.node("MatMulNBits", operands, [name], domain="com.microsoft", **attrs)

    def normalised(self, x: str, skip: str | None, name: str) -> tuple[str, str]:
        """The normalised sum, and the sum."""
        gain = self.store(f"{name}.gain", np.ones(self.hidden, np.float32))
        if skip is None:
            return self.node("SimplifiedLayerNormalization", [x, gain], [name], epsilon=1e-5, axis=-1), x
        outputs = [name, "", "", f"{name}.sum"]
        attrs = {"epsilon": 1e-5, "domain": "com.microsoft"}
        return self.node("SkipSimplifiedLayerNormalization", [x, skip, gain], outputs, **attrs), outputs[-1]

    def layer(self, number: int, x: str, skip: str | None) -> tuple[str, str]:
        name, few = f"layer{number}", self.heads[1]
        y, total = self.normalised(x, skip, f"{name}.norm")
        q = self.linear(y, f"{name}.q", self.hidden, self.hidden)
        k, v = (self.linear(y, f"{name}.{part}", self.hidden, few * HEAD) for part in "kv")
        y = self.linear(self.attend(name, q, k, v), f"{name}.o", self.hidden, self.hidden)
        y, total = self.normalised(y, total, f"{name}.after")
        gate, up = (self.linear(y, f"{name}.{part}", self.hidden, self.inner) for part in ("gate", "up"))
        gate = self.node("Mul", [gate, self.node("Sigmoid", [gate], [f"{name}.sigmoid"])], [f"{name}.silu"])
        y = self.linear(self.node("Mul", [gate, up], [f"{name}.gated"]), f"{name}.down", self.inner, self.hidden)
        return y, total

    def attend(self, name: str, q: str, k: str, v: str) -> str:
        heads, few = self.heads
        operands = [q, k, v, f"{name}.past_k", f"{name}.past_v", "lengths", "total", "cos", "sin"]
        attrs = {"num_heads": heads, "kv_num_heads": few, "do_rotary": 1, "domain": "com.microsoft"}
        results = [f"{name}.attention", f"{name}.present_k", f"{name}.present_v"]
        return self.node("GroupQueryAttention", operands, results, **attrs)

    def model(self) -> onnx.ModelProto:
        angles = np.arange(PAST + 1)[:, None] / 10000 ** (np.arange(HEAD // 2) / (HEAD // 2))
        self.store("cos", np.cos(angles).astype(np.float32))
        self.store("sin", np.sin(angles).astype(np.float32))
        self.store("lengths", np.array([PAST], np.int32))
        self.store("total", np.array(PAST + 1, np.int32))
        y, total = "x", None
        for number in range(self.layers):
            y, total = self.layer(number, y, total)
        y, _ = self.normalised(y, total, "last")
        self.linear(y, "logits", self.hidden, VOCABULARY)
        inputs: dict[str, tuple[int, ...]] = {"x": (1, 1, self.hidden)}
        outputs: dict[str, tuple[int, ...]] = {"logits": (1, 1, VOCABULARY)}
        for number in range(self.layers):
            for part in "kv":
                inputs[f"layer{number}.past_{part}"] = (1, self.heads[1], PAST, HEAD)
                outputs[f"layer{number}.present_{part}"] = (1, self.heads[1], PAST + 1, HEAD)
        told = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in each.items()]
            for each in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "decoder", *told, self.stored)
        domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=10)


@dataclass
class PlainDecoder(Decoder):
    """The same of ONNX's own operators: blocks that DequantizeLinear widens, attention over caches that are joined."""

    def linear(self, x: str, name: str, depth: int, width: int) -> str:
        blocks = depth // BLOCK
        codes = self.random.integers(0, 256, (width, blocks, BLOCK // 2), np.uint8).reshape(width, -1)
        scales = (self.random.random((width, blocks)) / (4 * np.sqrt(depth))).astype(np.float32)
        wide = np.stack([codes & 15, codes >> 4], -1).reshape(width, depth).astype(np.int16) - 8
        raw = (wide.reshape(-1, 2) & 15).astype(np.uint8)
        packed = (raw[:, 0] | (raw[:, 1] << 4)).tobytes()
        self.stored.append(helper.make_tensor(f"{name}.codes", TensorProto.INT4, (width, depth), packed, raw=True))
        operands = [f"{name}.codes", self.store(f"{name}.scales", scales)]
        w = self.node("DequantizeLinear", operands, [f"{name}.wide"], axis=1, block_size=BLOCK)
        return self.node("MatMul", [x, self.node("Transpose", [w], [f"{name}.turned"], perm=[1, 0])], [name])

    def normalised(self, x: str, skip: str | None, name: str) -> tuple[str, str]:
        total = x if skip is None else self.node("Add", [x, skip], [f"{name}.sum"])
        square = self.node("Mul", [total, total], [f"{name}.square"])
        axes, least = self.whole("last_axis", -1), self.store(f"{name}.epsilon", np.array(1e-5, np.float32))
        mean = self.node("ReduceMean", [square, axes], [f"{name}.mean"])
        root = self.node("Sqrt", [self.node("Add", [mean, least], [f"{name}.more"])], [f"{name}.root"])
        gain = self.store(f"{name}.gain", np.ones(self.hidden, np.float32))
        return self.node("Mul", [self.node("Div", [total, root], [f"{name}.unit"]), gain], [name]), total

    def attend(self, name: str, q: str, k: str, v: str) -> str:
        heads, few = self.heads
        q, k = (self.turned(self.by_head(x, count, f"{x}.heads")) for x, count in ((q, heads), (k, few)))
        v = self.by_head(v, few, f"{v}.heads")
        for part, new in zip("kv", (k, v), strict=True):
            past, present = f"{name}.past_{part}", f"{name}.present_{part}"
            self.node("Concat", [past, new], [present], axis=2)
            grouped = self.node("Unsqueeze", [present, self.whole("third_axis", 2)], [f"{present}.grouped"])
            spread = self.whole("spread", 1, few, heads // few, PAST + 1, HEAD)
            every = self.node("Expand", [grouped, spread], [f"{present}.every"])
            self.node("Reshape", [every, self.whole("joined", 1, heads, PAST + 1, HEAD)], [f"{name}.all_{part}"])
        keys = self.node("Transpose", [f"{name}.all_k"], [f"{name}.keys"], perm=[0, 1, 3, 2])
        scores = self.node("MatMul", [q, keys], [f"{name}.scores"])
        factor = self.store(f"{name}.factor", np.array(HEAD**-0.5, np.float32))
        scores = self.node("Mul", [scores, factor], [f"{name}.scaled"])
        weights = self.node("Softmax", [scores], [f"{name}.weights"], axis=-1)
        y = self.node("MatMul", [weights, f"{name}.all_v"], [f"{name}.weighed"])
        y = self.node("Transpose", [y], [f"{name}.rows"], perm=[0, 2, 1, 3])
        return self.node("Reshape", [y, self.whole("flat", 1, 1, self.hidden)], [f"{name}.attention"])

    def by_head(self, x: str, count: int, name: str) -> str:
        split = self.node("Reshape", [x, self.whole(f"split{count}", 1, 1, count, HEAD)], [f"{name}.split"])
        return self.node("Transpose", [split], [name], perm=[0, 2, 1, 3])

    def turned(self, x: str) -> str:
        """By the angles of the token's place."""
        angles = PAST / 10000 ** (np.arange(HEAD // 2) / (HEAD // 2))
        for name, function in (("cosines", np.cos), ("sines", np.sin)):
            self.store_once(name, np.tile(function(angles), 2).astype(np.float32))
        self.store_once("halves", np.array([HEAD // 2] * 2))
        self.node("Split", [x, "halves"], [f"{x}.low", f"{x}.high"], axis=-1)
        other = self.node(
            "Concat", [self.node("Neg", [f"{x}.high"], [f"{x}.less"]), f"{x}.low"], [f"{x}.other"], axis=-1
        )
        parts = [self.node("Mul", operands, [f"{operands[0]}.part"]) for operands in ([x, "cosines"], [other, "sines"])]
        return self.node("Add", parts, [f"{x}.turned"])

    def whole(self, name: str, *numbers: int) -> str:
        return self.store_once(name, np.array(numbers))

    def store_once(self, name: str, data: np.ndarray) -> str:
        return name if any(tensor.name == name for tensor in self.stored) else self.store(name, data)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.block_weights", description=__doc__)
    parser.add_argument("--hidden", type=int, default=USUAL[0], metavar="N", help="a multiple of 256")
    parser.add_argument("--layers", type=int, default=USUAL[1], metavar="N")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1], metavar="N")
    parser.add_argument("--rounds", type=int, default=25, metavar="N")
    options = parser.parse_args(arguments)
    rows = []
    for form in options.forms:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "decoder.onnx")
            packed = _saved(Decoder(options.hidden, options.layers, *FORMS[form]), path)
            for threads in options.threads:
                rows.append({"form": form, **_measured(path, packed, threads, options.rounds)})
                print(rows[-1], flush=True)
    print(table([list(row.values()) for row in rows], list(rows[0])))
    size = (options.hidden, options.layers)
    print(write_results("block_weights" if size == USUAL else f"block_weights_{size[0]}x{size[1]}", rows))
    return 0


def _saved(decoder: Decoder, path: Path) -> int:
    """Writes the model; returns how many bytes its weights are."""
    model = decoder.model()
    path.write_bytes(model.SerializeToString())
    return sum(t.ByteSize() for t in model.graph.initializer)


def _measured(path: Path, packed: int, threads: int, rounds: int) -> dict[str, Any]:
    compiled = path.with_suffix(".tsm")
    compile_model(path, num_threads=threads).save(compiled)
    rival = onnxruntime_session(path, threads)
    random = np.random.default_rng(1)
    feeds = {i.name: random.standard_normal(i.shape).astype(np.float32) for i in rival.get_inputs()}
    reading = Reading(threads)
    with load(compiled, num_threads=threads) as ours:
        ways = {
            "ours": lambda: ours.run(feeds),
            "onnxruntime": lambda: rival.run(None, feeds),
            **{f"reading {name}": way for name, way in reading.ways().items()},
        }
        least = least_ms(ways, rounds) if threads == 1 else least_wall_ms(ways, rounds)
        error = relative_error(ours.run(feeds)["logits"], rival.run(["logits"], feeds)[0])
    most = reading.nbytes / min(ms for way, ms in least.items() if way.startswith("reading")) / 1e6
    rate = packed / least["ours"] / 1e6
    return {
        "threads": threads, "ours_ms": round(least["ours"], 2), "onnxruntime_ms": round(least["onnxruntime"], 2),
        "against_onnxruntime": round(least["onnxruntime"] / least["ours"], 2),
        "packed_mb": round(packed / 1e6, 1), "packed_gb_s": round(rate, 1), "reading_gb_s": round(most, 1),
        "of_reading": round(rate / most, 2), "relative_error": error,
        "artifact_mib": round(compiled.stat().st_size / MEBIBYTE, 2),
        "model_mib": round(path.stat().st_size / MEBIBYTE, 2),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
