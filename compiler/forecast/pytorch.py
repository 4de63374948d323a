"""The kernels that PyTorch would launch for a graph: one for each node of the model, or fused as its compiler does.

Views launch nothing. A bias that is added to a GEMM is part of it. A transposed tensor is copied where a reshape or a
batched GEMM needs it contiguous. Fused: chains of element-wise operators with the softmax or normalisation before or
after them; GEMMs stay as they are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilestitch.compiler.errors import ForecastError
from tilestitch.compiler.ir import Graph, Kind, Node, TensorType, Value, kind_of
from tilestitch.compiler.ir.types import is_static_tensor
from tilestitch.cost_model.library.data import Kernel

Values = tuple[Value, ...]

MEASURED_DTYPE = "float32"
_NAMED = {"tanh": "tanh", "erf": "gelu", "pow": "powu"}
_POINTWISE = ("elementwise", "copy")


@dataclass(frozen=True)
class Launch:
    """A library's kernel with the model's node that it computes, and the values that it reads and writes.

    `merges`: whether a fusing compiler merges it with adjacent ones.
    """

    nodes: tuple[str, ...]
    kernel: Kernel
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    merges: bool


def eager(graph: Graph) -> list[Launch]:
    """Return one launch for each node of the model that computes something. Raises ForecastError for operators without
    a measured library kernel, and for unknown sizes.
    """
    return _Eager(graph).launches()


class _Eager:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constant = set(graph.constants)
        self._permuted: set[Value] = set()
        self._readers: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            for value in dict.fromkeys(node.inputs):
                self._readers.setdefault(value, []).append(node)

    def launches(self) -> list[Launch]:
        found: list[Launch] = []
        linear: set[Value] = set()
        for name, nodes in _by_origin(self._graph.nodes).items():
            _require_static(name, nodes)
            reads, writes = self._ends(nodes)
            if all(value in self._constant for value in reads):
                self._constant.update(o for node in nodes for o in node.outputs)
                continue
            if self._is_bias(nodes, reads, linear):
                continue
            some = list(self._of(name, nodes, reads, writes))
            linear.update(v for one in some if one.kernel.kernel_class == "linear" for v in one.writes)
            found += some
        return found

    def _ends(self, nodes: Sequence[Node]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        made = {o for node in nodes for o in node.outputs}
        inside = set(nodes)
        results = set(self._graph.outputs)
        reads = dict.fromkeys(v for node in nodes for v in node.inputs if v not in made)
        writes = [
            o for node in nodes for o in node.outputs
            if o in results or any(reader not in inside for reader in self._readers.get(o, ()))
        ]  # fmt: skip
        return tuple(reads), tuple(writes)

    def _is_bias(self, nodes: Sequence[Node], reads: Sequence[Value], linear: set[Value]) -> bool:
        """Return whether a sum is the bias addition of the preceding linear layer's kernel: its result and a constant
        row.
        """
        if [node.op for node in nodes] != ["add"] or len(reads) != 2:
            return False
        rows = [v for v in reads if v in self._constant and len(_static(v).static_shape) <= 1]
        return len(rows) == 1 and any(v in linear for v in reads)

    def _of(self, name: str, nodes: Sequence[Node], reads: Values, writes: Values) -> Iterable[Launch]:
        contraction = next((node for node in nodes if kind_of(node.op) is Kind.CONTRACTION), None)
        if contraction is not None:
            yield from self._gemm(name, contraction, writes)
            return
        if all(kind_of(node.op) is Kind.VIEW for node in nodes):
            yield from self._view(name, nodes, writes)
            return
        if any(kind_of(node.op) is Kind.CONTROL for node in nodes):
            raise ForecastError(f"{name}: PyTorch's kernels of control flow are not forecast; use --runtime tilestitch")
        row = _row_kernel(nodes, reads, writes)
        if row is not None:
            yield Launch((name,), row, reads, writes, merges=True)
            return
        pointwise = all(kind_of(node.op) in (Kind.INJECTIVE, Kind.VIEW) for node in nodes)
        yield Launch((name,), _pointwise_kernel(nodes, reads, writes), reads, writes, merges=pointwise)

    def _view(self, name: str, nodes: Sequence[Node], writes: tuple[Value, ...]) -> Iterable[Launch]:
        for node in nodes:
            source, result = node.inputs[0], node.outputs[0]
            if node.op == "transpose":
                self._permuted.add(result)
            elif source in self._permuted and node.op == "reshape":
                yield _copy(name, source, writes)
            elif source in self._permuted:
                self._permuted.add(result)

    def _gemm(self, name: str, node: Node, writes: tuple[Value, ...]) -> Iterable[Launch]:
        left, right = node.inputs[:2]
        for value in (left, right):
            if _static(value).dtype != MEASURED_DTYPE:
                raise ForecastError(
                    f"{name} multiplies {_static(value).dtype}, and kernels of libraries were measured in float32; use "
                    "--runtime tilestitch"
                )
        kernel = _conv_kernel(node) if node.op != "matmul" else _matmul_kernel(node, right in self._constant)
        if kernel.kernel_class == "bmm":
            for value in (left, right):
                if value in self._permuted:
                    yield _copy(name, value, (value,))
        yield Launch((name,), kernel, tuple(dict.fromkeys(node.inputs)), writes, merges=False)


# -- kernels -----------------------------------------------------------------------------------------------------------


def _matmul_kernel(node: Node, weight: bool) -> Kernel:
    left, right = (_static(v).static_shape for v in node.inputs[:2])
    result = _static(node.outputs[0]).static_shape
    inner = left[-2] if node.attrs.get("trans_a") else left[-1]
    if weight and len(right) == 2:
        outer = result[-1]
        return Kernel("linear", "linear", (1, max(1, prod(result) // max(1, outer)), max(1, inner), max(1, outer)))
    rows, columns = (result[-2], result[-1]) if len(result) > 1 else (1, result[-1] if result else 1)
    batch = prod(result[:-2]) if len(right) > 2 else 1
    rows = rows if len(right) > 2 else prod(result[:-1])
    return Kernel("bmm", "bmm", tuple(max(1, size) for size in (batch, rows, inner, columns)))


def _conv_kernel(node: Node) -> Kernel:
    """Return the kernel of an image convolution; for others, and those with groups or one tap, the equivalent GEMM."""
    weight, result = _static(node.inputs[1]).static_shape, _static(node.outputs[0]).static_shape
    channels_last = node.attrs["layout"] != "NCX"
    outer = result[-1] if channels_last else result[1]
    groups = int(node.attrs["groups"])
    if node.op == "conv" and groups == 1 and len(weight) == 4:
        taps = weight[:2] if channels_last else weight[2:]
        if prod(taps) > 1:
            return _image_kernel(node, taps, result[1:3] if channels_last else result[2:])
    inner = prod(weight) // max(1, outer)
    sizes = (groups, prod(result) // max(1, outer), inner, max(1, outer // groups))
    return Kernel("bmm" if groups > 1 else "linear", "conv", tuple(max(1, size) for size in sizes))


def _image_kernel(node: Node, taps: Sequence[int], sides: Sequence[int]) -> Kernel:
    image, result = (_static(value).static_shape for value in (node.inputs[0], node.outputs[0]))
    channels = -1 if node.attrs["layout"] != "NCX" else 1
    unit = all(step == 1 for step in (*node.attrs["strides"], *node.attrs["dilations"]))
    sizes = (result[0], image[channels], result[channels], *taps, *sides)
    return Kernel("conv", "conv", (*(max(1, size) for size in sizes), int(unit)))


def _row_kernel(nodes: Sequence[Node], reads: Sequence[Value], writes: Sequence[Value]) -> Kernel | None:
    """Return the kernel of a softmax or normalisation: reductions with a result of the shape of their operand."""
    reductions = [node for node in nodes if kind_of(node.op) is Kind.REDUCTION]
    if not reductions or len(writes) != 1 or not any(node.op == "reduce_sum" for node in reductions):
        return None
    elements = _static(writes[0]).num_elements
    if not elements or not any(_static(value).num_elements == elements for value in reads):
        return None
    reduced = reductions[0]
    width = _static(reduced.inputs[0]).num_elements // max(1, _static(reduced.outputs[0]).num_elements)
    softmax = any(node.op == "exp" for node in nodes)
    sizes = (max(1, elements // max(1, width)), max(1, width))
    return Kernel("softmax", "softmax", sizes) if softmax else Kernel("layernorm", "ln", sizes)


def _pointwise_kernel(nodes: Sequence[Node], reads: Sequence[Value], writes: Sequence[Value]) -> Kernel:
    """Return element-wise operators as a measured kernel that moves as much data; else one by its bytes."""
    elements = max((_static(value).num_elements for value in writes), default=0)
    full = [value for value in reads if _static(value).num_elements == elements]
    small = sum(_static(value).nbytes for value in reads if value not in full)
    plain = len(writes) == 1 and all(_static(v).dtype == MEASURED_DTYPE for v in (*full, *writes))
    pointwise = all(kind_of(node.op) is Kind.INJECTIVE for node in nodes)
    if not (plain and pointwise and elements and len(full) in (1, 2) and small * 8 < _static(writes[0]).nbytes):
        return Kernel("copy", "copy", (_bytes(reads), _bytes(writes)))
    named = next((_NAMED[node.op] for node in nodes if node.op in _NAMED), None)
    op = "add" if len(full) == 2 else named or "mulu"
    shape = _static(writes[0]).static_shape
    width = shape[-1] if shape else 1
    return Kernel("elementwise", op, (elements // width, width))


def _copy(name: str, value: Value, writes: tuple[Value, ...]) -> Launch:
    nbytes = _static(value).nbytes
    return Launch((name,), Kernel("copy", "copy", (nbytes, nbytes)), (value,), writes, merges=True)


# -- as PyTorch's compiler merges them ---------------------------------------------------------------------------------


def compiled(graph: Graph) -> list[Launch]:
    """Return the launches after fusion: a launch joins the previous one if it alone reads that one's only result,
    element by element.
    """
    merged: list[Launch] = []
    maker: dict[Value, int] = {}
    launches = eager(graph)
    readers: dict[Value, int] = {}
    for launch in launches:
        for value in launch.reads:
            readers[value] = readers.get(value, 0) + 1
    kept = set(graph.outputs)
    for launch in launches:
        at = next((maker[v] for v in launch.reads if v in maker and readers[v] == 1 and v not in kept), None)
        if launch.merges and at is not None and _can_join(merged[at], launch):
            merged[at] = _joined(merged[at], launch)
        else:
            at = len(merged)
            merged.append(launch)
        if launch.merges:
            maker.update((value, at) for value in launch.writes)
    return merged


def _can_join(first: Launch, second: Launch) -> bool:
    """Return whether two launches have as many elements, and, where they reduce rows, rows of one width."""
    if _elements(first.writes) != _elements(second.writes):
        return False
    rows = [one.kernel for one in (first, second) if one.kernel.kernel_class not in _POINTWISE]
    return len({kernel.sizes[1] for kernel in rows}) <= 1


def _joined(first: Launch, second: Launch) -> Launch:
    reads = tuple(dict.fromkeys((*first.reads, *(v for v in second.reads if v not in first.writes))))
    read, written = _bytes(reads), _bytes(second.writes)
    joined = replace(second, nodes=(*first.nodes, *second.nodes), reads=reads)
    row = next((one.kernel for one in (second, first) if one.kernel.kernel_class not in _POINTWISE), None)
    if row is None:
        return replace(joined, kernel=Kernel("copy", "copy", (read, written)))
    # A row kernel that moves more than one tensor in and one out takes as long as one with proportionally more rows.
    width = row.sizes[1]
    return replace(joined, kernel=replace(row, sizes=(max(1, (read + written) // (8 * width)), width)))


# -- values ------------------------------------------------------------------------------------------------------------


def _by_origin(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """Return the graph's nodes by the model's node from which they stem, in the order of the first of each."""
    found: dict[str, list[Node]] = {}
    for node in nodes:
        found.setdefault(node.origins[0] if node.origins else node.name, []).append(node)
    return found


def _require_static(name: str, nodes: Iterable[Node]) -> None:
    for node in nodes:
        for value in (*node.inputs, *node.outputs):
            if not is_static_tensor(value.type):
                raise ForecastError(
                    f"{name}: the size of {value.name} ({value.type}) is not known before the model runs; give sizes "
                    "of inputs with --shape NAME=1x128, or export the model without what depends on data"
                )


def _static(value: Value) -> TensorType:
    return value.tensor_type


def _bytes(values: Iterable[Value]) -> int:
    return sum(_static(value).nbytes for value in dict.fromkeys(values))


def _elements(values: Iterable[Value]) -> int:
    return max((_static(value).num_elements for value in values), default=0)
