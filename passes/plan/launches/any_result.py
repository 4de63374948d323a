"""Where sizes may be 0: what proofs leave out, since there is nothing to compute then, and nothing is launched."""

from __future__ import annotations

from math import prod

from tilestitch.compiler.ir.sizes import Size, Symbol, if_any, is_empty_without, symbols_of
from tilestitch.passes.plan.view import GroupView


def if_any_result(view: GroupView) -> Size:
    """1, but 0 where what a group stores has no elements: nothing is launched then."""
    return prod(map(if_any, sorted(needed_for_any(view), key=lambda symbol: symbol.name)))


def needed_for_any(view: GroupView) -> frozenset[Symbol]:
    """Return the symbols that may be 0, and where one is, what a group stores has no elements."""
    stored = [v.tensor_type.num_elements for v in view.stored]
    empty = (s for s in symbols_of(stored) if s.or_empty)
    return frozenset(s for s in empty if all(is_empty_without(count, s) for count in stored))
