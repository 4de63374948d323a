"""Size of a model once the calls of its own functions are expanded."""

from collections.abc import Iterable, Mapping

from onnx import FunctionProto, ModelProto, NodeProto

from .dispatch import function_key
from .errors import ModelError
from .functions import MAX_DEPTH
from .scope import FunctionKey
from .walks import subgraphs

MOST_NODES = 250_000
"""Most nodes of a model with its functions expanded. Functions that call others twice grow exponentially."""


def check_expanded_size(model: ModelProto, functions: Mapping[FunctionKey, FunctionProto]) -> None:
    """Raise ModelError if the model, with its functions expanded, has more than MOST_NODES nodes or is infinite."""
    sizes = _Sizes(functions)
    size = sizes.of_nodes(model.graph.node)
    if size <= MOST_NODES:
        return
    largest = max(sizes.known, key=lambda key: sizes.known[key], default=None)
    name = f", of which one call of function {largest[1]} has {sizes.known[largest]:,}" if largest else ""
    raise ModelError(
        f"the model has {size:,} nodes once its functions are expanded{name}; at most {MOST_NODES:,} are compiled: "
        "let functions call each other less often, or compile parts of the model apart"
    )


class _Sizes:
    def __init__(self, functions: Mapping[FunctionKey, FunctionProto]) -> None:
        self.functions = functions
        self.known: dict[FunctionKey, int] = {}

    def of_nodes(self, nodes: Iterable[NodeProto], callers: tuple[FunctionKey, ...] = ()) -> int:
        return sum(self._of_node(node, callers) for node in nodes)

    def _of_node(self, node: NodeProto, callers: tuple[FunctionKey, ...]) -> int:
        key = function_key(node)
        inner = sum(self.of_nodes(graph.node, callers) for graph in subgraphs(node))
        return inner + (self._of_function(key, node, callers) if key in self.functions else 1)

    def _of_function(self, key: FunctionKey, node: NodeProto, callers: tuple[FunctionKey, ...]) -> int:
        if key in callers:
            raise ModelError(
                f"node {node.name!r}: function {key[1]} calls itself, perhaps through others, which ONNX forbids; "
                "write the recursion out, or as a Loop"
            )
        if len(callers) >= MAX_DEPTH:
            raise ModelError(
                f"node {node.name!r}: calls of ONNX functions nest deeper than {MAX_DEPTH}; expand some with "
                "onnx.inliner.inline_local_functions"
            )
        if key not in self.known:
            self.known[key] = self.of_nodes(self.functions[key].node, (*callers, key))
        return self.known[key]
