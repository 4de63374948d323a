"""Less precise contractions where the user asked for them: TF32 GEMMs, or operands in half floats.

What is float32 stays float32 unless the table below says otherwise:

| precision | contractions with float32 operands | everything else |
|---|---|---|
| `fp32` | as they are | as it is |
| `tf32` | may round operands to TF32; operands and results are float32 in memory | as it is |
| `fp16`, `bf16` | read half floats, add up in float32, give float32 | computed in float32, some of it stored in half |

Stored in half is what a contraction reads. What else reads such a value gets it as it was before it was rounded, where
contractions multiply each of its elements by at least `LEAST_MULTIPLIED` numbers: beside that it costs little to store
it twice, and residual sums (after the normalisations of BERT) are of float32. Other values, as images of few channels,
exist as half floats only, and what else reads them widens those; no range is lost by it that the contraction would not
have lost. Element-wise chains after a contraction run in float32 registers and are rounded once, where they are stored.
Reductions (statistics of normalisations, softmax), sums of pooling windows and running sums compute in float32 always.
Inputs, outputs and constants of the model keep their dtypes, but for weights that contractions read.

Contractions that stem from an ONNX node whose name is among the option `keep_fp32`, or fits a pattern there, stay as
they are, and what they read is not rounded for their sake. Where several were merged into one, all of them stay.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

import numpy as np

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.compiler.ir.sizes import Size, bounds_of
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.passes.contract import PassContext, PassResult
from tilestitch.passes.errors import PassError

from .driver import emit_like, is_sized, is_tensor
from .weight_only import bounds

HALF_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
PRECISIONS = ("fp32", "tf32", *HALF_DTYPES)

DATA_OPERANDS = {
    "reshape": (0,), "transpose": (0,), "broadcast_to": (0,), "slice": (0,), "pad": (0, 1), "gather": (0,),
    "gather_elements": (0,), "gather_nd": (0,), "concat": None, "window_reduce": (0,),
}  # fmt: skip
"""Operators that only move or choose elements, so that rounding commutes with them, and which of their operands are
data (None: all). For `window_reduce`, only the maximum.
"""

LEAST_MULTIPLIED = 768
"""Multiplications per element from which a value read by others is also stored as float32."""

KEEP_FLOAT32 = frozenset({Kind.HOST, Kind.CONTROL, Kind.CONTRACTION})
"""Kinds of readers that get the unrounded value: host steps, nested graphs, and contractions that stay float32."""


@dataclass(frozen=True)
class Precision:
    """Lower the precision of contractions as in the module's table. to: fp32, tf32, fp16 or bf16."""

    to: str = "fp32"
    name: ClassVar[str] = "precision"

    def __post_init__(self) -> None:
        if self.to not in PRECISIONS:
            raise ValueError(f"to is {self.to!r}; it must be one of {', '.join(PRECISIONS)}")

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        if self.to == "fp32":
            return PassResult(graph, False)
        target, found = context.target, _contractions(graph, context.target.is_gpu)
        kept = [node for node in found if is_named(node.origins, context.options.get("keep_fp32", ()))]
        lowered = [node for node in found if node not in kept]
        if self.to == "tf32":
            result = _allow_tf32(graph, context, lowered)
        else:
            result = _Narrowing(graph, HALF_DTYPES[self.to], lowered).run()
        notes = [*result.notes, *(f"{', '.join(node.origins)} stays float32, as asked for" for node in kept)]
        multiplied = target.is_gpu or (self.to == "bf16" and target.half_dot)
        if result.modified and not multiplied:
            half = HALF_DTYPES[self.to]
            notes.append(f"{target} multiplies {half} no faster than float32: it is widened to float32 on reading")
        return PassResult(result.graph, result.modified, tuple(notes))


def is_named(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return whether one of these names of ONNX nodes is in `patterns` or matches one."""
    return any(name == pattern or fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _contractions(graph: Graph, gpu: bool) -> list[Node]:
    """Return the contractions of float32 operands; on GPUs also those with blockwise-quantised weights, which are
    dequantised on reading.
    """

    def floats(node: Node) -> bool:
        operands = node.inputs[:1] if gpu and node.op == "block_matmul" else node.inputs
        return all(is_tensor(v) and v.dtype == "float32" for v in (*operands, *node.outputs))

    return [node for node in graph.nodes if kind_of(node.op) is Kind.CONTRACTION and floats(node)]


def _allow_tf32(graph: Graph, context: PassContext, contractions: Sequence[Node]) -> PassResult:
    if context.target.name == "cpu":
        raise PassError(
            "precision tf32: CPUs have no instructions for TF32, so nothing would be gained; "
            "compile for the CPU with --precision fp32, or name a GPU with --target cuda:sm_80 or newer"
        )
    found = [node for node in contractions if node.attrs.get("precision") != "tf32"]
    for node in found:
        node.attrs["precision"] = "tf32"
    return PassResult.counted(graph, len(found), "contractions may use TF32")


class _Narrowing:
    """Rewrites some contractions of a graph to one half dtype. `twins`: the half-float counterpart of a value;
    `multiplied`: by how many numbers contractions multiply each of its elements.
    """

    def __init__(self, graph: Graph, dtype: str, contractions: Sequence[Node]) -> None:
        self.graph, self.dtype, self.contractions = graph, dtype, contractions
        self.twins: dict[Value, Value] = {}
        self.multiplied: dict[Value, Size] = {}
        self.overflowing: list[str] = []

    def run(self) -> PassResult:
        found = [node for node in self.contractions if self._fits(node)]
        self._count(found)
        for node in found:
            operands = [self._twin(v, node) if v.dtype == "float32" else v for v in node.inputs]
            attrs = {**node.attrs, "out_dtype": "float32"}
            result = emit_like(self.graph, node, node.op, *operands, **attrs)
            self.multiplied[result] = self.multiplied.get(node.output, 0)
            self.graph.replace(node, [result])
        for value, twin in list(self.twins.items()):
            self._share(value, twin)
        self.graph.sort()
        notes = [f"{len(found)} contractions read {self.dtype}"] if found else []
        notes += [f"{name} stays float32: {self.dtype} cannot hold its weights" for name in self.overflowing]
        return PassResult(self.graph, bool(found), tuple(notes))

    def _fits(self, node: Node) -> bool:
        """Return whether the half dtype can represent every constant operand: no finite weight becomes infinite."""
        constants = [v.data for v in node.inputs if v.data is not None]
        if node.op == "block_matmul":
            constants = [bounds(BlockFormat.of(node.attrs), data) for data in constants if data.dtype == np.uint8]
        fits = all(np.array_equal(np.isfinite(c), np.isfinite(self._rounded(c).astype(c.dtype))) for c in constants)
        if not fits:
            self.overflowing.append(node.name)
        return fits

    def _rounded(self, data: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return data.astype(to_numpy_dtype(self.dtype))

    def _count(self, contractions: Sequence[Node]) -> None:
        """Count by how many numbers each value is multiplied, including through operators that move its elements."""
        for node in contractions:
            for place, value in enumerate(node.inputs):
                self.multiplied[value] = self.multiplied.get(value, 0) + multiplied_by(node, place)
        for node in reversed(self.graph.nodes):
            often = self.multiplied.get(node.outputs[0], 0)
            if often != 0 and _only_moves(node) and not self.graph.is_output(node.outputs[0]):
                for value in _data_operands(node):
                    self.multiplied[value] = self.multiplied.get(value, 0) + often

    def _twin(self, value: Value, reader: Node) -> Value:
        """Return `value` as half floats, rounded as early as possible without changing results. reader: the node whose
        operand it is.
        """
        if value not in self.twins:
            self.twins[value] = self._narrowed(value, reader)
        return self.twins[value]

    def _narrowed(self, value: Value, reader: Node) -> Value:
        graph, producer = self.graph, value.producer
        if value.data is not None:
            return graph.constant(self._rounded(value.data), dtype=self.dtype, name=value.name)
        if producer is None or not _only_moves(producer) or graph.is_output(value):
            origins = producer.origins if producer is not None else reader.origins
            return graph.emit("cast", value, origins=origins, insert_before=reader, to=self.dtype)
        data = _data_operands(producer)
        operands = [self._twin(v, reader) if v in data else v for v in producer.inputs]
        return graph.emit(producer.op, *operands, origins=producer.origins, insert_before=reader, **producer.attrs)

    def _share(self, value: Value, twin: Value) -> None:
        """Let the other readers of a computed value read its twin, so that nothing needs the value itself, unless it is
        multiplied so often that the cost of storing it twice is negligible.
        """
        graph, often = self.graph, bounds_of(self.multiplied.get(value, 0))[0]
        if value.producer is None or graph.is_output(value) or often >= LEAST_MULTIPLIED:
            return
        readers = [node for node in value.users if node is not twin.producer]
        if not readers or any(kind_of(node.op) in KEEP_FLOAT32 for node in readers):
            return
        widened = graph.emit("cast", twin, origins=value.producer.origins, insert_before=readers[0], to="float32")
        for node in readers:
            for index, operand in enumerate(node.inputs):
                if operand is value:
                    graph.set_input(node, index, widened)


def multiplied_by(node: Node, place: int) -> Size:
    """Return by how many numbers a contraction multiplies each element of an operand."""
    if node.op == "matmul":
        output = node.output.shape
        return output[-1] if place == 0 else output[-2]
    if node.op == "block_matmul" and place == 0:
        return node.output.shape[-1]
    if node.op != "conv" or place != 0:
        return 0
    weights, strides = node.inputs[1].shape, math.prod(node.attrs["strides"])
    taps, out = (weights[2:], weights[0]) if node.attrs["layout"] == "NCX" else (weights[:-2], weights[-1])
    return math.prod(taps) * out // node.attrs["groups"] // strides


def _data_operands(node: Node) -> tuple[Value, ...]:
    places = DATA_OPERANDS[node.op]
    return node.inputs if places is None else tuple(node.inputs[i] for i in places if i < len(node.inputs))


def _only_moves(node: Node) -> bool:
    """Return whether rounding the node's operands is equivalent to rounding its result, and no more work: inputs are
    rounded in full.
    """
    if node.op not in DATA_OPERANDS or not is_sized(node.outputs[0]) or node.attrs.get("reducer") == "sum":
        return False
    return all(v.producer is not None or v.is_constant for v in _data_operands(node))
