"""Conditions that ask whether two sizes are equal, claimed to hold or not where ranks depend on them.

Exporters write `x.squeeze(1)` as an If: drop the dimension if its size is 1, else leave it. Where a node after it needs
the rank, and the size is open, one of both is claimed.
"""

from collections.abc import Sequence
from itertools import product

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.claims import Claim, allowed, may_be_equal, may_differ
from tilestitch.compiler.ir.sizes import Size, Symbol, bounds_of, is_open, over, symbols_of

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


def are_exclusive(conditions: Sequence[Value]) -> bool:
    """Return whether conditions on single sizes certainly never hold together: with n > 0, that the signs of n - 1 and
    2 differ, and that n - 1 is no multiple of 2.
    """
    compared = [each for each in map(_compared, conditions) if each is not None]
    differences = [(a - b, differ) for a, b, differ in compared if is_open(a - b)]
    ranges: dict[str, Symbol] = {}
    for difference, differ in differences:
        found = symbols_of([difference])
        claims = _claims(difference, differ) if len(found) == 1 else ()
        for symbol, claim in product(found, claims):
            ranges[symbol.name] = allowed(ranges.get(symbol.name, symbol), claim)
    for difference, differ in differences:
        low, high = bounds_of(over(difference, ranges))
        if low == high == 0 if differ else low > 0 or high < 0:
            return True
    return False


def _claims(difference: Size, differ: bool) -> tuple[Claim, ...]:
    """Return what holds for one symbol where two sizes are equal, or differ, as far as that is a range."""
    low, high = bounds_of(difference)
    if not differ:
        return (Claim(difference, exact=True),)
    below = (Claim(-difference - 1, exact=False),) if high == 0 else ()
    return (Claim(difference - 1, exact=False),) if low == 0 else below


def _compared(condition: Value) -> tuple[Size, Size, bool] | None:
    """Return the two sizes that a condition compares, and whether it asks if they differ: from 0 for a cast of one."""
    negated = False
    while (node := condition.producer) is not None and (node.op in _MOVES or node.op == "logical_not"):
        known = contents_of(node.inputs[0]) if node.op == "cast" and condition.dtype == "bool" else None
        if known is not None:
            return (known.item(), 0, not negated) if known.size == 1 else None
        negated ^= node.op == "logical_not"
        condition = node.inputs[0]
    if node is None or node.op != "equal":
        return None
    sizes = [contents_of(operand) for operand in node.inputs]
    found = [size for operand in sizes if operand is not None and operand.size == 1 for size in operand.reshape(-1)]
    return (found[0], found[1], negated) if len(found) == 2 else None
