"""What code for CPUs evaluates element by element: neighbours of one vector lie apart, or in different operands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tilestitch.compiler.ir import Node, Value
from tilestitch.cost_model.facts import Arithmetic


def scalar_steps(node: Node) -> int:
    """Of one element, a load or a comparison each; 0 where a vector of neighbours is one load, as after any movement
    of whole rows.

    Operands of a concat are told apart one after the other, an element that a gather picks by itself has an index that
    is loaded before.
    """
    last = len(node.outputs[0].shape) - 1
    match node.op:
        case "concat":
            return len(node.inputs) if node.attrs["axis"] == last else 0
        case "pad":
            return 1 if any(node.attrs[side][-1:] not in ((), (0,)) for side in ("before", "after")) else 0
        case "gather":
            x, indices = node.inputs
            return 1 if indices.shape and node.attrs["axis"] == len(x.shape) - 1 else 0
        case "gather_elements":
            return 2
        case "gather_nd":
            x, indices = node.inputs
            return 2 if node.attrs["batch_dims"] + indices.shape[-1] == len(x.shape) else 0
    return 0


def scalars(nodes: Iterable[Node], counts: Mapping[Value, float], dtype: str) -> Iterator[Arithmetic]:
    """The steps of `nodes`, whose results are evaluated so often."""
    steps = int(sum(counts.get(node.outputs[0], 0.0) * steps for node in nodes if (steps := scalar_steps(node))))
    if steps:
        yield Arithmetic("scalar", dtype, steps)
