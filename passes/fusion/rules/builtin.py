"""The built-in fusion rules; `clusters` has the protocol by which plug-ins add their own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilestitch.compiler.ir import Kind, Node, Value, is_elementwise, kind_of
from tilestitch.passes.fusion import legality
from tilestitch.passes.fusion.clusters import Cluster, Fuse, Fusion, FusionRule
from tilestitch.passes.fusion.cost import profit
from tilestitch.passes.plan import GroupKind, WhyNot
from tilestitch.passes.plan.roles import Roles, is_native

FEW_CHANNELS = 16
"""On a CPU, a padded convolution of fewer channels copies its image."""
UNALIGNED_CHANNELS = 4
"""A GPU fetches the pixels of images with fewer channels element by element."""
BYTES = ("int8", "uint8")
MOST_WIDENING = 4
"""Most operators from bytes to dequantised values: widening, subtraction of the zero point, conversion to float,
scaling.
"""
DUPLICATE_ELEMENTS = 4096
"""Largest value that each of its readers may recompute, if that takes no transcendental function."""


class AllowsAll:
    """Base class of built-in rules, which forbid nothing; some propose nothing either."""

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        return iter(())

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return None


@dataclass(frozen=True)
class Epilogue(AllowsAll):
    """Element-wise readers join a contraction or a window; then a transpose of the result, if nothing else reads it.

    What others read as bytes is stored as bytes, and each reader widens it: that is cheaper than storing both.
    """

    name: ClassVar[str] = "epilogue"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        anchors = [n for n in state.nodes if kind_of(n.op) is Kind.CONTRACTION or n.op == "window_reduce"]
        for anchor in reversed(anchors):
            if not is_native(anchor):
                continue
            yield from _growing(state, anchor, _elementwise_readers)
            yield from _with_widened(state, anchor)
            if kind_of(anchor.op) is Kind.CONTRACTION:
                chain = moving_views(state, anchor)
                if chain:
                    yield Fuse((anchor, *chain))


def _growing(state: Fusion, seed: Node, neighbours: Callable[[Fusion, Node], Sequence[Node]]) -> Iterator[Fuse]:
    """Propose `neighbours(state, seed)` one after another until all have been tried without success."""
    tried: set[tuple[int, int, int]] = set()
    joins = -1
    while state.joins != joins:
        joins, cluster = state.joins, state.cluster_of(seed)
        for node in neighbours(state, seed):
            other = state.cluster_of(node)
            key = other.number, len(other.owned), len(cluster.owned)
            if other is cluster or key in tried:
                continue
            tried.add(key)
            yield Fuse((seed, node))
            if state.joins != joins:
                break


def _elementwise_readers(state: Fusion, anchor: Node) -> list[Node]:
    shape = anchor.outputs[0].shape
    found = []
    for reader in state.readers(state.cluster_of(anchor)):
        nodes = state.in_order(reader.owned)
        if len(nodes) != 1 or _widens_what_is_stored(state, nodes[0]):
            continue
        if is_native(nodes[0]) and is_elementwise(nodes[0].op) and nodes[0].output.shape == shape:
            found.append(nodes[0])
    return found


def _widens_what_is_stored(state: Fusion, node: Node) -> bool:
    """Return whether a node widens 8-bit integers that others read unwidened."""
    source = node.inputs[0] if _widens(node) else None
    return source is not None and (state.graph.is_output(source) or len(source.users) > 1)


def _widens(node: Node) -> bool:
    """Return whether a node widens computed 8-bit integers."""
    if node.op != "cast" or node.inputs[0].dtype not in BYTES or node.output.dtype in BYTES:
        return False
    return node.inputs[0].producer is not None


def _with_widened(state: Fusion, anchor: Node) -> Iterator[Fuse]:
    """Yield proposals to dequantise, in the cluster of an anchor, values stored as bytes."""
    shape, cluster = anchor.outputs[0].shape, state.cluster_of(anchor)
    wanted = dict.fromkeys(v for n in state.in_order(cluster.members) for v in n.inputs if v.shape == shape)
    for value in wanted:
        chain = _widening(value)
        if chain and not any(node in cluster.members for node in chain):
            yield Fuse((anchor,), copies=tuple(state.in_order(set(chain))))


def _widening(value: Value) -> list[Node]:
    """Return the element-wise nodes that compute a value from bytes and constants; none if there are other operands."""
    chain: list[Node] = []
    while value.producer is not None and is_elementwise(value.producer.op) and len(chain) < MOST_WIDENING:
        node = value.producer
        chain.append(node)
        if _widens(node):
            return chain
        operands = [v for v in node.inputs if not v.is_constant]
        if len(operands) != 1 or node.op not in _CHEAP:
            return []
        value = operands[0]
    return []


def moving_views(state: Fusion, anchor: Node) -> list[Node]:
    """Return the single-reader reshapes and transposes after the anchor's cluster, unless an alias suffices."""
    stored = state.outputs_of(state.cluster_of(anchor))
    if len(stored) != 1:
        return []
    chain: list[Node] = []
    value = stored[0]
    while len(value.users) == 1 and not state.graph.is_output(value):
        node = value.users[0]
        if node.op not in ("reshape", "transpose") or not is_native(node) or len(state.cluster_of(node).owned) > 1:
            break
        chain.append(node)
        value = node.output
    needed = any(n.op == "transpose" for n in chain) or state.graph.is_output(value)
    return chain if needed else []


@dataclass(frozen=True)
class Rows(AllowsAll):
    """Reductions over the same rows join with the element-wise nodes between, before and after them.

    On a GPU also a transpose of the result, if nothing else reads it: the L2 cache merges strided stores.
    """

    name: ClassVar[str] = "rows"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        settled: tuple[Cluster, int] | None = None
        for node in state.nodes:
            if kind_of(node.op) is not Kind.REDUCTION or not is_native(node):
                continue
            if settled != (state.cluster_of(node), state.joins):
                yield from _growing(state, node, _row_neighbours)
                settled = state.cluster_of(node), state.joins
            chain = moving_views(state, node) if state.target.name != "cpu" else []
            if chain:
                yield Fuse((node, *chain))


def _row_neighbours(state: Fusion, reduction: Node) -> list[Node]:
    cluster = state.cluster_of(reduction)
    near = [*state.readers(cluster), *reversed(state.producers(cluster))]
    wanted = [c for c in near if _kind(state, c) in (GroupKind.INJECTIVE, GroupKind.ROWWISE)]
    shape = reduction.inputs[0].shape
    return [
        state.in_order(c.owned)[0] for c in wanted if not _is_alias(state, c, shape) and not _puts_together(state, c)
    ]


def _puts_together(state: Fusion, cluster: Cluster) -> bool:
    """Return whether it is a concat with several readers, which may need no kernel (`inplace`)."""
    if not any(n.op == "concat" for n in cluster.owned):  # before readers, of which there may be thousands
        return False
    return len(state.readers(cluster)) > 1 or any(map(state.graph.is_output, state.outputs_of(cluster)))


def _is_alias(state: Fusion, cluster: Cluster, shape: tuple[int, ...]) -> bool:
    """Return whether a cluster is a reshape of whole rows that is free by itself."""
    nodes = list(cluster.owned)
    alone = len(nodes) == 1 and nodes[0].op == "reshape" and nodes[0].inputs[0].shape == shape
    return alone and not state.graph.is_output(nodes[0].output)


def _kind(state: Fusion, cluster: Cluster) -> GroupKind | None:
    roles = state.roles(cluster)
    return roles.kind if isinstance(roles, Roles) else None


@dataclass(frozen=True)
class Inline(AllowsAll):
    """A cluster of views and element-wise nodes joins its reader; if it has several readers, one with the same
    iteration space.
    """

    name: ClassVar[str] = "inline"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        for node in reversed(state.nodes):
            cluster = state.cluster_of(node)
            if not state.is_live(cluster) or _kind(state, cluster) is not GroupKind.INJECTIVE:
                continue
            near = state.readers(cluster)
            for reader in [r for r in near if _takes(state, cluster, r, len(near))]:
                if state.is_live(reader) and state.is_live(state.cluster_of(node)):
                    yield Fuse((node, state.in_order(reader.owned)[0]))


def _takes(state: Fusion, cluster: Cluster, reader: Cluster, readers: int) -> bool:
    kind = _kind(state, reader)
    if kind is GroupKind.INJECTIVE:
        return readers == 1 or _same_order(state, cluster, reader)
    return kind is GroupKind.ROWWISE and readers == 1


def _same_order(state: Fusion, a: Cluster, b: Cluster) -> bool:
    """Return whether both store elements in the same row-major order, so that one loop serves both."""
    values = [*state.outputs_of(a), *state.outputs_of(b)]
    return len({v.shape for v in values}) == 1


@dataclass(frozen=True)
class Views(AllowsAll):
    """Views before a contraction are fused: the contraction fetches its operand at the view's index.

    A convolution does so for images of few channels: on a CPU where its template copies the padded image anyway, on a
    GPU where it fetches element by element anyway (the first layer).
    Cheap arithmetic before the first operand is done as it is fetched, too, where a matmul (on a GPU, or a convolution
    of single pixels) has at most `narrow` columns, so that few tasks fetch each row; with `compute`, before all. With
    `gathers`, gathers and concats are evaluated as they are fetched, too: less traffic, but element by element. With
    `convolutions`, convolutions do so as well: they fetch an element once for each position of the window.
    """

    compute: bool = False
    narrow: int = 512
    gathers: bool = False
    convolutions: bool = False
    name: ClassVar[str] = "views"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        for anchor in state.nodes:
            if kind_of(anchor.op) is not Kind.CONTRACTION or not is_native(anchor):
                continue
            copied = state.target.name == "cpu" and _copies_image(anchor)
            thin = copied or (state.target.name != "cpu" and _has_few_channels(anchor, UNALIGNED_CHANNELS))
            if not _fetches_once(anchor, state.target.name) and not self.convolutions and not thin:
                continue
            for value in anchor.inputs[:1] if thin else anchor.inputs:
                node = value.producer
                if node is None or node in state.cluster_of(anchor).members:
                    continue
                cluster = state.cluster_of(node)
                if _kind(state, cluster) is not GroupKind.INJECTIVE or not self._wanted(state, cluster, anchor):
                    continue
                readers = state.readers(cluster)
                if readers == [state.cluster_of(anchor)]:
                    yield Fuse((node, anchor), forced=copied)
                elif all(_kind(state, r) is GroupKind.CONTRACTION for r in readers):
                    yield Fuse((anchor,), copies=tuple(state.in_order(cluster.members)))

    def _wanted(self, state: Fusion, cluster: Cluster, anchor: Node) -> bool:
        nodes = state.in_order(cluster.members)
        if any(kind_of(n.op) is not Kind.VIEW for n in nodes):
            narrow = _fetches_once(anchor, state.target.name) and anchor.output.shape[-1] <= self.narrow
            computes = self.compute or narrow
            fetched = _CHEAP | _GATHERED if self.gathers else _CHEAP
            return computes and all(n.op in fetched or kind_of(n.op) is Kind.VIEW for n in nodes)
        return any(n.op != "reshape" for n in nodes)


def _fetches_once(anchor: Node, target: str) -> bool:
    """Return whether a tile of results reads an element of the first operand once."""
    if anchor.op in ("matmul", "block_matmul"):
        return True
    if anchor.op != "conv" or target == "cpu" or anchor.attrs["groups"] != 1 or anchor.attrs["layout"] != "NXC":
        return False
    pixels = all(d == 1 for d in anchor.inputs[1].shape[:-2]) and all(s == 1 for s in anchor.attrs["strides"])
    return pixels and not any((*anchor.attrs["before"], *anchor.attrs["after"]))


def _copies_image(anchor: Node) -> bool:
    """Return whether a convolution's template copies its padded image before it multiplies."""
    return _has_few_channels(anchor, FEW_CHANNELS) and any((*anchor.attrs["before"], *anchor.attrs["after"]))


def _has_few_channels(anchor: Node, fewer_than: int) -> bool:
    if anchor.op != "conv" or anchor.attrs["layout"] != "NXC" or anchor.attrs["groups"] != 1:
        return False
    return anchor.inputs[1].shape[-2] < fewer_than


_GATHERED = frozenset({"concat", "gather"})
_CHEAP = frozenset({"cast", "add", "sub", "mul", "maximum", "minimum", "neg", "abs", "select"})


@dataclass(frozen=True)
class KeptApart(AllowsAll):
    """Forbid each union with a node that is kept apart, by name, for the reason given with it."""

    name: ClassVar[str] = "kept_apart"
    reasons: Mapping[str, WhyNot]

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return next((self.reasons[node.name] for node in nodes if node.name in self.reasons), None)


@dataclass(frozen=True)
class Copies(AllowsAll):
    """Index arithmetic, views and small cheap values are recomputed in each reader rather than stored."""

    name: ClassVar[str] = "copies"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        for node in reversed(state.nodes):
            cluster = state.cluster_of(node)
            if not state.is_live(cluster) or _kind(state, cluster) is not GroupKind.INJECTIVE:
                continue
            if not _is_cheap(state, cluster):
                continue
            copies = tuple(state.in_order(cluster.members))
            wanted = [Fuse((state.in_order(r.owned)[0],), copies) for r in state.readers(cluster)]
            if all(_possible(state, fuse) for fuse in wanted):
                yield from wanted


def _possible(state: Fusion, fuse: Fuse) -> bool:
    clusters = [state.cluster_of(n) for n in fuse.nodes]
    asked = legality.why_cyclic, profit.too_large, legality.why_no_group, profit.why_not
    return all(ask(state, clusters, fuse.copies, "") is None for ask in asked)


def _is_cheap(state: Fusion, cluster: Cluster) -> bool:
    """Return whether copies are cheap and make the original superfluous: every reader takes a copy, and no output of
    the graph is among it.
    """
    if not all(_is_cheap_node(n) for n in cluster.members):
        return False
    if any(state.graph.is_output(v) for v in state.outputs_of(cluster)):
        return False
    return all(_kind(state, r) in (GroupKind.INJECTIVE, GroupKind.ROWWISE) for r in state.readers(cluster))


def _is_cheap_node(node: Node) -> bool:
    if kind_of(node.op) is Kind.VIEW or node.op in ("iota", "cast"):
        return True
    return node.op in _CHEAP and _size(node.output) <= DUPLICATE_ELEMENTS


def _size(value: Value) -> int:
    return value.tensor_type.num_elements


__all__ = [
    "AllowsAll", "Copies", "Epilogue", "Fuse", "FusionRule", "Inline", "KeptApart", "Rows", "Views", "moving_views",
]  # fmt: skip
