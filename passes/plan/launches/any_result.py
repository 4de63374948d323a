"""Sizes that may be 0: cases excluded from proofs, because nothing is computed or launched then."""

from __future__ import annotations

from math import prod

from tilestitch.compiler.ir.sizes import Size, Symbol, if_any, is_empty_without, symbols_of
from tilestitch.passes.plan.view import GroupView


def if_any_result(view: GroupView) -> Size:
    """Return an expression that is 0 where the group's stored values have no elements, so that nothing is launched, and
    else 1.
    """
    return prod(map(if_any, sorted(needed_for_any(view), key=lambda symbol: symbol.name)))


def needed_for_any(view: GroupView) -> frozenset[Symbol]:
    """Return the symbols that may be 0 and that make the group's stored values empty where they are."""
    stored = [v.tensor_type.num_elements for v in view.stored]
    empty = (s for s in symbols_of(stored) if s.or_empty)
    return frozenset(s for s in empty if all(is_empty_without(count, s) for count in stored))
