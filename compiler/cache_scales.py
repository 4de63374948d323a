"""Factors of what is read of a cache, moved to what it is multiplied with: `q @ (k * s)` becomes `(q * s) @ k`.

Exporters scale queries and keys by the square root of the scale of attention each. Where the keys are a cache, that
would be work on all of its rows in each step, or a copy of them.
"""

from __future__ import annotations

from tilestitch.compiler.ir import Graph, Kind, Node, Value, kind_of

LEAST = 2.0**-8
"""Factors from here to 1 neither overflow nor lose digits that count, whichever operand they scale."""


def scale_other_operand(graph: Graph, rows: Value) -> None:
    """Change the graph in place: `rows` of a cache reach the second operand of a matmul without the factors between, if
    nothing else reads what is scaled.
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
    """The number that a node multiplies its operand at a place with; None for other nodes."""
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
