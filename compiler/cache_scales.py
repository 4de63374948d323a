"""Moves scale factors from a cache to the other operand of a matmul: `q @ (k * s)` becomes `(q * s) @ k`.

Exporters scale queries and keys each by the square root of attention's scale. Where the keys are a cache, that would
process all of its rows in each step, or copy them.
"""

from __future__ import annotations

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of

LEAST = 2.0**-8
"""Factors from here to 1 neither overflow nor lose significant digits, whichever operand they scale."""


def scale_other_operand(graph: Graph, rows: Value) -> None:
    """Move, in place, the factors between `rows` of a cache and the second operand of a matmul, if nothing else reads
    the scaled values.
    """
    value, factors = rows, list[tuple[Node, Value]]()
    while len(value.uses) == 1 and not graph.is_output(value):
        ((user, place),) = value.uses
        if user.op == "matmul":
            if place == 1 and factors:
                _move(graph, user, factors)
            return
        if kind_of(user.op) is not Kind.VIEW:
            factor = _factor(user, place)
            if factor is None:
                return
            factors.append((user, factor))
        value = user.output


def _factor(node: Node, place: int) -> Value | None:
    """Return the number by which a node multiplies its operand at a position; None for other nodes."""
    if node.op != "mul":
        return None
    factor = node.inputs[1 - place]
    if factor.data is None or factor.data.size != 1 or node.output.shape != node.inputs[place].shape:
        return None
    return factor if LEAST <= abs(float(factor.data.reshape(())[()])) <= 1 else None


def _move(graph: Graph, matmul: Node, factors: list[tuple[Node, Value]]) -> None:
    for node, factor in factors:
        scaled = next(v for v in node.inputs if v is not factor)
        other = matmul.inputs[0]
        number = graph.constant(factor.data.reshape(()), factor.dtype) if factor.data is not None else factor
        graph.replace_uses(node.output, scaled)
        graph.set_input(matmul, 0, graph.emit("mul", other, number, origins=node.origins, insert_before=matmul))
        graph.remove(node)
