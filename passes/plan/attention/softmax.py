"""The nodes between the two matmuls of attention: scores, their softmax, weights.

Nothing is recognised by name: every value that depends on the scores is classified by what it is computed from, and
whatever an online softmax could not compute tile by tile is refused. A weight is `exp(s - max) / sum`, where the sum is
known only at the end; so whatever follows must be linear in the weight.
"""

from enum import Enum
from math import prod

import numpy as np

from tilestitch.compiler.ir import Node, Value, is_elementwise
from tilestitch.compiler.ir.types import is_float
from tilestitch.passes.plan.parts import Illegal, Part, Softmax

MOST_WIDTH = 256
"""Most elements of a query, key or value: a tile of results must stay in registers."""


class _Is(Enum):
    """The kind of a value between the matmuls."""

    SCORE = "a score"
    PEAK = "the largest score of a row"
    SHIFTED = "a score less the largest"
    EXPONENTIAL = "an exponential"
    TOTAL = "the sum of a row"
    INVERSE = "the inverse sum of a row"
    WEIGHT = "a weight"
    FLAW = "whether a weight is NaN"
    DEAD = "whether all scores of a row are -inf"


_OF_ROWS = (_Is.PEAK, _Is.TOTAL, _Is.INVERSE, _Is.DEAD)
_ROW_VIEWS = ("reshape", "broadcast_to")


class Inside:
    """Classifies the nodes between the matmuls `first` and `anchor`, in order. Raises Illegal for a node that does not
    fit.
    """

    def __init__(self, first: Node, anchor: Node) -> None:
        self.first, self.anchor = first, anchor
        self.known: dict[Value, _Is] = {}
        self.scores: Value | None = None
        self.weights: Value | None = None
        self.flaws: list[Value] = []
        self.dead: list[Value] = []
        for node in (first, anchor):
            if node.op != "matmul" or not is_float(node.output.dtype):
                raise Illegal("attention_matmuls", f"{node.name} ({node.op}) is no matmul of floats")
        if anchor.attrs.get("trans_a"):
            raise Illegal("attention_weights", f"{anchor.name} reads its weights transposed")
        *lead, self.queries, self.keys = anchor.inputs[0].shape
        self.heads = prod(lead)

    def reads(self, node: Node) -> bool:
        """Return whether a node depends on the scores, but not on the second matmul."""
        return node is not self.anchor and any(v in self.known for v in node.inputs)

    def part(self, node: Node) -> Part:
        """Return the part of the next node: the first matmul, or a node that reads classified values."""
        kind = _Is.SCORE if node is self.first else self._kind(node)
        self.known[node.output] = kind
        if node is self.first:
            return Part.SCORES
        if kind is _Is.SCORE:
            return Part.SCORED
        return Part.WEIGHED if kind in (_Is.WEIGHT, _Is.FLAW) and node.output is not self.weights else Part.SOFTMAX

    def finish(self) -> Softmax:
        """Return the softmax found; called at the second matmul."""
        if self.weights is None or self.scores is None or self.known.get(self.anchor.inputs[0]) is not _Is.WEIGHT:
            raise Illegal("attention_softmax", f"{self.anchor.name} does not multiply the softmax of scores")
        if self.anchor.inputs[1] in self.known:
            raise Illegal("attention_values", f"the values of {self.anchor.name} depend on the scores")
        result = self.anchor.output.shape
        if prod(result[:-2]) != self.heads:
            raise Illegal("attention_heads", f"{self.anchor.name} broadcasts its weights", heads=self.heads)
        self._check_width("values", result[-1])
        width = self.first.inputs[0].shape[-2 if self.first.attrs.get("trans_a") else -1]
        self._check_width("keys", width)
        if not self.keys or not width:
            raise Illegal("attention_empty", f"{self.first.name} sums over nothing", keys=self.keys, width=width)
        return Softmax(
            self.first, self._swapped(), self.heads, self.queries, self.keys, self.scores, self.weights,
            tuple(self.flaws), tuple(self.dead),
        )  # fmt: skip

    def _check_width(self, called: str, width: int) -> None:
        if width > MOST_WIDTH:
            raise Illegal("attention_width", f"{called} of {self.anchor.name} are wide", width=width, limit=MOST_WIDTH)

    def _swapped(self) -> bool:
        *lead, rows, columns = self.first.output.shape
        if prod(lead) == self.heads and (rows, columns) == (self.queries, self.keys):
            return False
        if prod(lead) == self.heads and self.queries == 1 and (rows, columns) == (self.keys, 1):
            return True
        shape = f"[{self.heads}, {self.queries}, {self.keys}]"
        raise Illegal("attention_order", f"{self.first.name} does not give scores {shape} in this order")

    # -- one node ------------------------------------------------------------------------------------------------------

    def _kind(self, node: Node) -> _Is:
        if len(node.outputs) != 1:
            raise self._odd(node)
        operands = [v for v in node.inputs if v in self.known]
        kinds = {self.known[v] for v in operands}
        if node.op in ("reduce_max", "reduce_sum"):
            return self._reduction(node)
        if node.op in _ROW_VIEWS and kinds <= set(_OF_ROWS):
            return self.known[operands[0]]
        if node.op == "reshape":
            return self.known[operands[0]]
        if not is_elementwise(node.op):
            raise self._odd(node)
        if node.op == "cast" and is_float(node.output.dtype):
            return self._cast(node, operands[0])
        if kinds == {_Is.SCORE}:
            self._check_same_place(node, operands)
            return _Is.SCORE
        if node.op == "is_inf" and kinds == {_Is.PEAK} and node.attrs["negative"] and not node.attrs["positive"]:
            self.dead.append(node.output)
            return _Is.DEAD
        if _Is.WEIGHT in kinds and kinds <= {_Is.WEIGHT, _Is.FLAW, _Is.DEAD}:
            self._check_same_place(node, [v for v in operands if self.known[v] is not _Is.DEAD])
            return self._weighed(node)
        return self._softmax(node)

    def _odd(self, node: Node) -> Illegal:
        what = ", ".join(self.known[v].value for v in node.inputs if v in self.known)
        return Illegal("attention_softmax", f"{node.name} ({node.op}) of {what} is no part of a softmax")

    def _check_same_place(self, node: Node, operands: list[Value]) -> None:
        """Raise Illegal unless values of [heads, queries, keys] are read at the index that is computed."""
        for value in operands:
            if value.shape != node.output.shape:
                raise Illegal("attention_index", f"{node.name} reads {value.name} at another index than its own")

    def _reduction(self, node: Node) -> _Is:
        value = node.inputs[0]
        kind = self.known[value]
        shape = value.shape
        axes = tuple(sorted(node.attrs["axes"]))
        along = next((a for a in reversed(range(len(shape))) if shape[a] != 1), len(shape) - 1)
        last = len(shape) - 1 if shape[-1] == self.keys else along
        if axes != (last,) or shape[last] != self.keys:
            raise Illegal("attention_axes", f"{node.name} reduces axes {axes} of {shape}, not the {self.keys} keys")
        if node.op == "reduce_max" and kind is _Is.SCORE and self.scores is None and is_float(value.dtype):
            self.scores = value
            return _Is.PEAK
        if node.op == "reduce_sum" and kind is _Is.EXPONENTIAL:
            return _Is.TOTAL
        raise self._odd(node)

    def _cast(self, node: Node, operand: Value) -> _Is:
        kind = self.known[operand]
        if kind in (_Is.SHIFTED, _Is.FLAW):
            raise self._odd(node)
        return kind

    def _softmax(self, node: Node) -> _Is:
        kinds = [self.known.get(v) for v in node.inputs]
        if node.op == "sub" and kinds == [_Is.SCORE, _Is.PEAK] and node.inputs[0] is self.scores:
            return self._row_read(node, 0, _Is.SHIFTED)
        if node.op == "exp" and kinds == [_Is.SHIFTED]:
            return _Is.EXPONENTIAL
        if node.op == "div" and kinds == [_Is.EXPONENTIAL, _Is.TOTAL]:
            return self._weight(node, 0)
        if node.op == "div" and kinds == [None, _Is.TOTAL] and _is_one(node.inputs[0]):
            return _Is.INVERSE
        if node.op == "mul" and set(kinds) == {_Is.EXPONENTIAL, _Is.INVERSE}:
            return self._weight(node, kinds.index(_Is.EXPONENTIAL))
        raise self._odd(node)

    def _weight(self, node: Node, position: int) -> _Is:
        if self.weights is not None:
            raise self._odd(node)
        self.weights = node.output
        return self._row_read(node, position, _Is.WEIGHT)

    def _row_read(self, node: Node, position: int, kind: _Is, row: Value | None = None) -> _Is:
        """Return the kind of a node that combines a value per key with a value per row, which must belong to the same
        row.
        """
        full, row = node.inputs[position], row or node.inputs[1 - position]
        shape = node.output.shape
        last = len(shape) - 1 if shape[-1] == self.keys else len(shape) - 2
        kept = tuple(1 if a == last else d for a, d in enumerate(shape))
        if full.shape != shape or row.shape not in (kept, shape):
            raise Illegal("attention_index", f"{node.name} reads {row.name} of shape {row.shape} across rows")
        return kind

    def _weighed(self, node: Node) -> _Is:
        """Return the kind of a node after the softmax: linear in the weights, or replacing NaN by zeros."""
        kinds = [self.known.get(v) for v in node.inputs]
        if node.op == "is_nan" and kinds == [_Is.WEIGHT]:
            self.flaws.append(node.output)
            return _Is.FLAW
        if node.op == "mul" and kinds.count(_Is.WEIGHT) == 1 and None in kinds:
            return _Is.WEIGHT
        if node.op in ("div", "neg") and kinds in ([_Is.WEIGHT, None], [_Is.WEIGHT]):
            return _Is.WEIGHT
        if node.op in ("add", "sub") and kinds == [_Is.WEIGHT, _Is.WEIGHT]:
            return _Is.WEIGHT
        if node.op == "select" and kinds[0] is _Is.DEAD:
            self._row_read(node, kinds.index(_Is.WEIGHT), _Is.WEIGHT, row=node.inputs[0])
        if node.op == "select" and kinds[0] in (None, _Is.FLAW, _Is.DEAD):
            branches = zip(node.inputs[1:], kinds[1:], strict=True)
            fits = all(kind is _Is.WEIGHT or (kind is None and _is_zero(value)) for value, kind in branches)
            if fits and (kinds[0] is None or kinds[1:] == [None, _Is.WEIGHT]):
                return _Is.WEIGHT
        raise Illegal("attention_linear", f"{node.name} ({node.op}) after the softmax is not linear in the weights")


def _is_one(value: Value) -> bool:
    return value.data is not None and bool((np.asarray(value.data) == 1).all())


def _is_zero(value: Value) -> bool:
    return value.data is not None and not np.asarray(value.data).astype(np.float64).any()
