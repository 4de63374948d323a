"""Description of the bodies of loops and branches for `tilestitch explain`: their kernels, like those of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tilestitch.compiler.cli.output import table

HEADER = ("#", "kernel", "kind", "composition", "ONNX nodes")
NODES_SHOWN = 4
_TAKEN = {"then_graph": "where its condition holds", "else_graph": "where its condition does not hold"}


def kernel_table(explained: Mapping[str, Any]) -> str:
    """Return a table with one row per kernel, in launch order."""
    rows = [
        (k["number"], k["name"], k["kind"], "+".join(map(str, k["composition"])) or "-", onnx_nodes(k))
        for k in explained["kernels"]
    ]
    return table(rows, HEADER)


def onnx_nodes(kernel: Mapping[str, Any]) -> str:
    nodes = kernel["onnx_nodes"]
    more = len(nodes) - NODES_SHOWN
    return ", ".join(nodes[:NODES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def kernels_in_bodies(explained: Mapping[str, Any]) -> int:
    return sum(len(body["kernels"]) + kernels_in_bodies(body) for body in explained.get("bodies", {}).values())


def describe_bodies(
    explained: Mapping[str, Any], launches: Callable[[Sequence[Mapping[str, Any]]], str] | None
) -> Iterator[str]:
    """Yield the kernels of each body with the ONNX nodes that it belongs to; `launches` describes their launches."""
    for key, body in explained.get("bodies", {}).items():
        node, _, attribute = key.rpartition(".")
        whose = ", ".join(explained["origins"].get(node) or [node])
        when = _TAKEN.get(attribute, "in each turn")
        if body["kernels"]:
            yield f"{whose}, {when}: {len(body['kernels'])} kernels"
            yield kernel_table(body)
            if launches is not None:
                yield launches(body["kernels"])
        yield from describe_bodies(body, launches)
