"""Conditions that ask whether two sizes are equal, claimed to hold or not where ranks depend on them.

Exporters write `x.squeeze(1)` as an If: drop the dimension if its size is 1, else leave it. Where a node after it needs
the rank, and the size is open, one of both is claimed.
"""

from __future__ import annotations

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.claims import may_be_equal, may_differ
from tilestitch.compiler.ir.sizes import Size

from .sizes import contents_of
from .symbols import symbols_in_force

_MOVES = frozenset({"reshape", "cast"})


def claimed_condition(condition: Value, is_nested: bool) -> bool | None:
    """Return whether a condition holds, by a claim on the sizes that it compares. None where nothing is claimed: it
    compares none, or a rank may be left to the run.

    Sizes of inputs that break a claim that they differ are compiled on their own, so that is tried first. A claim in a
    nested graph is checked when it runs, with no second graph for other sizes: there the dimension is likelier 1.
    """
    symbols, compared = symbols_in_force(), _compared(condition)
    if symbols is None or compared is None:
        return None
    if symbols.ranks == "any":
        symbols.unranked = True
        return None
    a, b, negated = compared
    if is_nested is (symbols.ranks == "claimed"):
        return may_be_equal(a, b) is not negated
    return may_differ(a, b) is negated


def _compared(condition: Value) -> tuple[Size, Size, bool] | None:
    """Return the two sizes that a condition compares, and whether it asks if they differ."""
    node, negated = condition.producer, False
    while node is not None and (node.op in _MOVES or node.op == "logical_not"):
        negated ^= node.op == "logical_not"
        node = node.inputs[0].producer
    if node is None or node.op != "equal":
        return None
    sizes = [contents_of(operand) for operand in node.inputs]
    found = [size for operand in sizes if operand is not None and operand.size == 1 for size in operand.reshape(-1)]
    return (found[0], found[1], negated) if len(found) == 2 else None
