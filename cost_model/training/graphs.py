"""Operator graphs of whole models (models/opgraph/*.jsonl.gz) as tables of kernels."""

import gzip
import json
import zlib
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.library.data import Kernel
from tilestitch.cost_model.library.rows import COSTLY, OPERANDS, POWERS

LAYERS = {"bert_large": 24, "gpt2_large": 36, "gpt3_xl": 24, "gpt3_27": 32, "opt_13": 24}
"""Layer counts of models whose graphs contain a single layer; other graphs, including fused ones, contain the whole
computation.
"""
ROW_OPERATORS = {"softmax": "softmax", "ln": "layernorm"}
SCORE_OPERATORS = frozenset({"mul", "mulu", "div", "divu", "add", "softmax"})
"""Operators allowed between the products of an attention that PyTorch's compiler recognises."""
_LAYER_MARKS = ("layer_0", "layers_0", "h_0")
FLOAT_BYTES = 4
MOVED_BACKWARD = frozenset({"dropout", "where", "contiguous", "EMBEDDING"})


def read_graph(path: Path, model: str) -> list[Kernel]:
    """Return the kernels of one run of a model. Raises MeasurementError for multi-GPU or unknown operators."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            nodes = [json.loads(line) for line in file]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise MeasurementError(f"{path} cannot be read ({error}); give one JSON object a line, gzipped") from error
    try:
        return list(_kernels_of(nodes, model, str(path)))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        if isinstance(error, MeasurementError):
            raise
        raise MeasurementError(
            f"{path} holds no operator graph ({error!r}); give operators with their shapes"
        ) from error


def _kernels_of(nodes: Sequence[Any], model: str, where: str) -> Iterable[Kernel]:
    if any(node.get("op") == "fused" for node in nodes):
        yield from _compiled(nodes, where)
        return
    layers = LAYERS.get(model, 1)
    inside = _one_layer(nodes) if layers > 1 else range(0)
    for number, node in enumerate(nodes):
        times = layers if number in inside else 1
        yield from _steps(node, times, where)
        yield from _unwritten(node, times, model)
        yield from _backward(node, times, where)


def _backward(node: Any, times: int, where: str) -> Iterable[Kernel]:
    """Yield the kernels of gradients. Gradients that autograd passes on unchanged (of additions, of views) move
    nothing; that of a data movement is moved once, although graphs list it for each input.
    """
    steps = node.get("backward", [])
    yield from (_arithmetic(name, sizes, times, where) for name, sizes in steps if name != "MEM")
    moves = [step for step in steps if step[0] == "MEM" and node["op"] in MOVED_BACKWARD]
    if moves:
        count = max(map(prod, moves[0][1])) * FLOAT_BYTES
        if count > FLOAT_BYTES:
            yield Kernel("copy", "copy", (count, count), times)


def _unwritten(node: Any, times: int, model: str) -> Iterable[Kernel]:
    """Yield further launches by PyTorch that graphs omit: copies of operands that torch.matmul finds permuted, and the
    clamping of scores in OPT.
    """
    name, steps = str(node["name"]), node["forward"]
    if name.startswith("matmul") and steps and steps[0][0] == "BMM":
        batch, m, n, k = steps[0][1]
        scores = k > n  # queries times keys, both permuted; then only values are
        nbytes = batch * n * ((m + k) if scores else k) * FLOAT_BYTES
        yield Kernel("copy", "copy", (nbytes, nbytes), times)
    if model.startswith("opt") and steps and steps[0][0] == "VECsoftmax":
        yield Kernel("elementwise", "mulu", tuple(steps[0][1]), times)


def _one_layer(nodes: Sequence[Any]) -> range:
    """Return the nodes of the layer that represents all: from the first named after it to the last before the model's
    next module outside it.
    """
    names = [str(node["name"]) for node in nodes]
    marked = [any(mark in name for mark in _LAYER_MARKS) for name in names]
    if True not in marked:
        return range(0)
    first = marked.index(True)
    module = names[first].split("_")[0] + "_"
    rest = range(first, len(names))
    return range(first, next((n for n in rest if names[n].startswith(module) and not marked[n]), len(names)))


def _steps(node: Any, times: int, where: str) -> Iterable[Kernel]:
    """Yield the kernels of a node; slices are views."""
    if node["op"] != "getitem":
        yield from (k for step in node["forward"] for k in _kernels(step, times, where))


def _kernels(step: Any, times: int, where: str) -> Iterable[Kernel]:
    name, sizes = step
    if name == "MEM":
        nbytes = _copied_bytes(sizes)
        if nbytes:
            yield Kernel("copy", "copy", nbytes, times)
        return
    yield _arithmetic(name, sizes, times, where)


def _arithmetic(name: str, sizes: Sequence[int], times: int, where: str) -> Kernel:
    if name == "Linear":
        rows, inner, outer = sizes
        return Kernel("linear", "linear", (1, rows, inner, outer), times)
    if name == "BMM":
        return Kernel("bmm", "bmm", tuple(sizes), times)
    op = name.removeprefix("VEC")
    if op in ROW_OPERATORS:
        return Kernel("softmax" if op == "softmax" else "layernorm", op, tuple(sizes), times)
    if name.startswith("VEC") and op in OPERANDS:
        return Kernel("elementwise", op, tuple(sizes), times)
    raise MeasurementError(f"{where}: operator {name} is not of one GPU, or unknown; leave this graph out")


def _copied_bytes(shapes: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """Return the bytes that a data movement reads and writes: the last shape is written, and at most as much is read of
    the others; None for views, which move no data.
    """
    counts = [prod(shape) for shape in shapes]
    written = counts[-1]
    if len(shapes) < 2 or written <= 1 or counts[0] <= 1:
        return None
    read = sum(min(count, written) for count in counts[:-1] if count > 1)
    return read * FLOAT_BYTES, written * FLOAT_BYTES


# -- what a fusing compiler makes of a graph ---------------------------------------------------------------------------


def _compiled(nodes: Sequence[Any], where: str) -> Iterable[Kernel]:
    """Yield the kernels of a compiler-fused graph. PyTorch's compiler fuses more than graphs show: a softmax or layer
    normalisation includes the element-wise operators and selections right before it, and attention whose scores are
    scaled, masked by addition and normalised becomes one kernel.
    """
    computing = [(node, kernel) for node in nodes if (kernel := _one(node, where)) is not None]
    linear = {_as_linear(kernel): kernel for _, kernel in computing if kernel.kernel_class == "bmm"}
    computing = [(node, linear.get(kernel.sizes, kernel)) for node, kernel in computing]
    waiting: list[Kernel] = []
    at = 0
    while at < len(computing):
        node, kernel = computing[at]
        joins = _is_elementwise(node, kernel) or kernel.kernel_class in ROW_OPERATORS.values()
        if waiting and not (joins and _elements(waiting[-1]) == _elements(kernel)):
            yield from waiting
            waiting = []
        if _is_elementwise(node, kernel):
            waiting.append(kernel)
            at += 1
            continue
        waiting = []
        attention = _attention(computing[at : at + 3])
        yield attention or kernel
        yield from () if attention else _unwritten(node, 1, "")
        at += 3 if attention else 1
    yield from waiting


def _attention(three: Sequence[tuple[Any, Kernel]]) -> Kernel | None:
    """Return both products of an attention as one kernel, if PyTorch's compiler would replace these nodes by one: with
    as much arithmetic, and scores that no other kernel reads; else None.
    """
    if [kernel.kernel_class for _, kernel in three] != ["bmm", "softmax", "bmm"]:
        return None
    (_, scores), (between, _), (_, values) = three
    batch, m, n, k = scores.sizes
    ops = {name.removeprefix("VEC") for name, _ in between["forward"]}
    if not ops <= SCORE_OPERATORS or values.sizes[:3] != (batch, m, k):
        return None
    return Kernel("bmm", "bmm", (batch, m, n + values.sizes[3], k))


def _one(node: Any, where: str) -> Kernel | None:
    """Return one kernel for nodes that a compiler fuses: it reads what its first part reads, writes as much, and
    computes like its row-wise part, if there is one; None for views.
    """
    parts = list(_steps(node, 1, where))
    rowwise = [k for k in parts if k.kernel_class in ("softmax", "layernorm")]
    elementwise = [k for k in parts if k.kernel_class == "elementwise"]
    if len(parts) <= 1 or rowwise or not elementwise:
        return (rowwise or parts)[-1] if parts else None
    return Kernel("elementwise", _like([k.op for k in elementwise]), elementwise[0].sizes)


def _like(ops: Sequence[str]) -> str:
    """Return the operator that takes as long as all of these in one kernel."""
    scalar = "u" if OPERANDS[ops[0]] == 1 else ""
    if any(op in POWERS for op in ops):
        return "pow" + scalar
    return ("div" if any(op in COSTLY for op in ops) else "mul") + scalar


def _is_elementwise(node: Any, kernel: Kernel) -> bool:
    return kernel.kernel_class == "elementwise" or (kernel.kernel_class == "copy" and node["op"] == "where")


def _elements(kernel: Kernel) -> int:
    """Return the elements that a non-GEMM kernel writes."""
    return kernel.sizes[-1] // FLOAT_BYTES if kernel.kernel_class == "copy" else prod(kernel.sizes)


def _as_linear(bmm: Kernel) -> tuple[int, ...]:
    """Return the form in which graphs record some batched GEMMs: as one with all their rows, and one right operand."""
    batch, m, n, k = bmm.sizes
    return 1, batch * m, n, k
