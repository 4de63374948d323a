"""GEMMs and convolutions as library calls with epilogues.

A GEMM supports the epilogues of cuBLASLt and XLA's Triton GEMM (XLA tunes on the device which of the two to use, so the
baseline gets the better of both): a chain of element-wise operators with one reader each, or a bias and GELU by tanh. A
convolution supports cuDNN's: a bias, a side input, and ReLU.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isclose
from typing import ClassVar

from tilestitch.compiler.ir import Kind, Node, Value, is_elementwise, kind_of
from tilestitch.passes.fusion.rules.builtin import AllowsAll, Fuse, moving_views
from tilestitch.passes.plan import GroupKind
from tilestitch.passes.plan.roles import is_native

from ..clusters import Fusion
from ..stages import Combine, Kernels

VIEWS = frozenset({"reshape", "transpose", "broadcast_to", "slice"})
GELU_OPS = frozenset({"add", "mul", "pow", "tanh"})
GELU_CUBE = 0.044715
"""The factor of the cube in the approximation of GELU by tanh."""
MOST_GELU_NODES = 16
MOST_MERGED_BYTES = 64 << 20
"""xla_gpu_dot_merger_threshold_mb."""


@dataclass(frozen=True)
class LibraryCalls(AllowsAll):
    """Fuses the epilogue of a GEMM, a convolution or a window; around a GEMM also axis permutations."""

    name: ClassVar[str] = "gemm_rewriter"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        for anchor in state.nodes:
            if kind_of(anchor.op) is not Kind.CONTRACTION or not is_native(anchor):
                continue
            value = anchor.output
            while (taken := _next(value)) is not None:
                joins = state.joins
                yield Fuse((anchor, *taken), forced=True)
                if state.joins == joins:
                    break
                value = taken[-1].output
            chains = [moving_views(state, anchor)] if anchor.op == "matmul" else []
            for chain in (*chains, *_operand_views(state, anchor)):
                if chain:
                    yield Fuse((anchor, *chain), forced=True)


def _operand_views(state: Fusion, anchor: Node) -> list[list[Node]]:
    """Return the views of tensors that an epilogue adds, which are read in place (dynamic_slice_fusion, and Triton's
    epilogues).
    """
    members = state.cluster_of(anchor).members
    chains = []
    for value in dict.fromkeys(v for n in state.in_order(members) if n is not anchor for v in n.inputs):
        chain: list[Node] = []
        while (node := value.producer) is not None and node not in members and _is_own_view(state, node):
            chain.append(node)
            value = node.inputs[0]
        if any(n.op != "reshape" for n in chain):
            chains.append(chain)
    return chains


def _is_own_view(state: Fusion, node: Node) -> bool:
    read_once = len(node.output.users) == 1 and not state.graph.is_output(node.output)
    return read_once and node.op in VIEWS and is_native(node)


@dataclass(frozen=True)
class DotMerger(AllowsAll):
    """Merges GEMMs that multiply the same matrix, if their results are small.

    On CPUs they go side by side in one launch. On GPUs the rewrite `merge_gemms` has merged them before.
    """

    name: ClassVar[str] = "dot_merger"

    def combine(self, kernels: Kernels) -> Iterator[Combine]:
        families: dict[Value, list[str]] = {}
        for name, group in kernels.groups.items() if kernels.target.name == "cpu" else ():
            anchor = kernels.nodes[group.anchor] if group.kind is GroupKind.CONTRACTION and group.anchor else None
            if anchor is not None and anchor.op == "matmul" and anchor.output.tensor_type.nbytes < MOST_MERGED_BYTES:
                families.setdefault(anchor.inputs[0], []).append(name)
        yield from [Combine((tuple(names),), forced=True) for names in families.values() if len(names) > 1]


def are_merged(anchors: Sequence[Node]) -> bool:
    """Return whether these are GEMMs of one operand."""
    return all(a.op == "matmul" and a.inputs[0] is anchors[0].inputs[0] for a in anchors)


def _next(value: Value) -> tuple[Node, ...] | None:
    """Return the next nodes of an epilogue after `value`: its one reader, or all of GELU."""
    if len(value.users) == 1:
        reader = value.users[0]
        return (reader,) if is_elementwise(reader.op) and is_native(reader) else None
    return gelu_of(value)


def why_no_call(anchor: Node, nodes: Sequence[Node], stored: Sequence[Value]) -> str | None:
    """Return None if `nodes` around `anchor` are one library call, or a window with its epilogue."""
    before, after = _around(anchor, nodes)
    if anchor.op == "matmul":
        return _why_no_gemm(anchor, before, after, stored)
    if anchor.op == "window_reduce":
        return None
    if any(n.op not in VIEWS for n in before):
        return f"{anchor.name} is a library call, which computes nothing as it reads"
    return _why_no_convolution(anchor, after)


def _around(anchor: Node, nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """Return the nodes that do not depend on `anchor`, and those that do."""
    after = {anchor}
    for node in nodes:
        if any(v.producer in after for v in node.inputs):
            after.add(node)
    return [n for n in nodes if n not in after], [n for n in nodes if n in after and n is not anchor]


def _why_no_gemm(anchor: Node, before: Sequence[Node], after: Sequence[Node], stored: Sequence[Value]) -> str | None:
    if any(n.op not in VIEWS for n in before):
        return f"{anchor.name} is a GEMM, which computes nothing as it reads"
    value, left, biases = anchor.output, set(after), 0
    while left:
        if value in stored:
            return f"{value.name} is needed outside, too, where only what the GEMM {anchor.name} ends with is stored"
        readers = value.users
        gelu = gelu_of(value) if len(readers) > 1 else None
        if gelu is not None and left == set(gelu) and biases == len(after) - len(gelu) <= 1:
            return None
        if len(readers) > 1 or (readers[0].op not in ("reshape", "transpose") and not is_elementwise(readers[0].op)):
            return f"no epilogue of the GEMM {anchor.name} reads {value.name} like that"
        biases += readers[0].op == "add"
        left.discard(readers[0])
        value = readers[0].output
    return None


def gelu_of(value: Value) -> tuple[Node, ...] | None:
    """Return the operators of GELU by tanh after `value`, if only they read it; the last one gives its result."""
    found: dict[Node, None] = {}
    known = {value: None}
    while len(found) < MOST_GELU_NODES:
        readers = dict.fromkeys(n for v in known for n in v.users if n not in found)
        ready = [n for n in readers if _is_part(n, value, known)]
        if not ready:
            return None
        found.update(dict.fromkeys(ready))
        known.update((n.output, None) for n in ready)
        ends = [n for n in found if not all(user in found for user in n.output.users) or not n.output.users]
        if len(ends) == 1 and all(user in found for user in value.users):
            inner = tuple(n for n in found if n is not ends[0])
            return (*inner, ends[0]) if _is_gelu(found) else None
    return None


def _is_part(node: Node, value: Value, known: dict[Value, None]) -> bool:
    if node.op not in GELU_OPS or not is_native(node) or node.output.shape != value.shape:
        return False
    return all(v in known or _is_scalar(v) for v in node.inputs)


def _is_gelu(nodes: dict[Node, None]) -> bool:
    return sum(n.op == "tanh" for n in nodes) == 1 and _has_cube(nodes)


def _has_cube(nodes: dict[Node, None]) -> bool:
    scalars = [v for n in nodes for v in n.inputs if _is_scalar(v)]
    return any(v.data is not None and isclose(float(v.data.ravel()[0]), GELU_CUBE, rel_tol=1e-3) for v in scalars)


def _is_scalar(value: Value) -> bool:
    return value.data is not None and value.data.size == 1


def _why_no_convolution(anchor: Node, after: Sequence[Node]) -> str | None:
    """Return why cuDNN does not support an epilogue: it adds a bias and a side input, then clamps at zero; half floats
    also at six.
    """
    if not after:
        return None
    if anchor.op != "conv" or _is_depthwise(anchor):
        return f"cuDNN's {anchor.op} {anchor.name} takes no epilogue"
    adds, clamped = 0, False
    value = anchor.output
    for node in after:
        if value not in node.inputs or len(value.users) > 1:
            return f"{value.name} is read by more than the epilogue of the convolution {anchor.name}"
        if node.op == "add" and not clamped and adds < 2:
            adds += 1
        elif node.op == "maximum" and _clamps_at(node, 0) and not clamped:
            clamped = True
        elif not (node.op == "minimum" and _clamps_at(node, 6) and clamped and node.output.dtype == "float16"):
            return f"cuDNN has no {node.op} like {node.name} after the convolution {anchor.name}"
        value = node.output
    return None


def _is_depthwise(anchor: Node) -> bool:
    groups = anchor.attrs["groups"]
    channels = anchor.inputs[0].shape[1 if anchor.attrs["layout"] == "NCX" else -1]
    return groups > 1 and groups == channels


def _clamps_at(node: Node, bound: float) -> bool:
    return any(_is_scalar(v) and v.data is not None and float(v.data.ravel()[0]) == bound for v in node.inputs)
