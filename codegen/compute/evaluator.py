"""Pull-style evaluation: the TIR expression of any value of a group at given indices, by recursion over its nodes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import tvm.sym
from tvm import tirx
from tvm.ir import Range
from tvm_ffi import StructuralKey

from tilestitch.codegen.errors import KernelError
from tilestitch.compiler.ir.graph import Node, Value
from tilestitch.compiler.ir.ops import Kind, kind_of
from tilestitch.passes.plan.kept_floats import KeptFloat, kept_float

from . import elementwise, movement
from .dtypes import Expr, dtype_of, is_hidden, literal, named, opaque
from .indexing import Index, broadcast_index, pull_view
from .requantised import is_kept, rounded_by_addition

Source = Callable[[Sequence[Expr]], Any]
"""Reader of an element of a value at an index, in the value's compute dtype; None if the value must be computed
instead.
"""

_ATOMS = (tirx.Var, tirx.IntImm, tirx.FloatImm)


class Evaluator:
    """Builder of expressions of values inside one kernel; bindings go to the innermost open IRBuilder frame.

    `sources` reads values that are not computed here: inputs, results of reductions and contractions, rows in the
    workspace. Constants of one element become literals. An expression bound in one loop must not be used in another:
    enter a `scope` for every loop or branch. `rules` are those of the element-wise primitives: a target may replace
    elementary functions. `as_bits`: the integers, by dtype, as which elements are moved that nothing computes with.
    """

    def __init__(
        self,
        sources: Mapping[Value, Source],
        index_dtype: str = "int32",
        rules: Mapping[str, elementwise.Rule] = elementwise.RULES,
        as_bits: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.sources: dict[Value, Source] = dict(sources)
        self.rules = rules
        self.index_dtype = index_dtype
        self.as_bits = as_bits
        self.analyzer = tvm.sym.Analyzer()
        self._memo: list[dict[object, Expr]] = [{}]

    @contextmanager
    def scope(self, *ranges: tuple[Expr, int | Expr, int | Expr]) -> Iterator[None]:
        """Open a scope at whose end bindings are forgotten. `ranges`: (variable, first, end) of loop variables."""
        for variable, first, end in ranges:
            self.assume(variable, first, end)
        self._memo.append({})
        try:
            yield
        finally:
            self._memo.pop()

    def assume(self, variable: Expr, first: int | Expr, end: int | Expr) -> None:
        """Tell index simplification that `variable` lies in [first, end)."""
        self.analyzer.bind(variable, Range(first, end))

    def simplify(self, expr: Expr) -> Expr:
        """Return an index expression (never a float) simplified by the assumptions."""
        return expr if isinstance(expr, int) else self.analyzer.simplify(expr)

    def cut(self, position: Expr, limit: int) -> None:
        """Note that an expression depends on `position < limit`; for dry runs, which collect such positions."""

    def bind(self, expr: Expr) -> Expr:
        """Return a variable that holds `expr`; `expr` itself if it is trivial."""
        if isinstance(expr, (int, *_ATOMS)) or is_hidden(expr):
            return expr
        if dtype_of(expr) == "bool":
            # TVM cannot vectorise a variable of type bool.
            return tirx.NE(self.bind(expr.astype("uint8")), tirx.IntImm("uint8", 0))
        return named(expr)

    def value(self, value: Value, index: Sequence[Expr]) -> Expr:
        """Return `value` at `index`, in its compute dtype. KernelError if it depends on a value that cannot be
        pulled.
        """
        index = tuple(index)
        known = self._known(value, index)
        if known is not None:
            return known
        self._operands_first(value, index)
        return self._computed(value, index)

    def _known(self, value: Value, index: Index) -> Expr | None:
        key = _key(value, index)
        return next((memo[key] for memo in reversed(self._memo) if key in memo), None)

    def once(self, key: object, make: Callable[[], Expr]) -> Expr:
        """Return the result of `make`, memoised by key within this scope and outer ones."""
        known = next((memo[key] for memo in reversed(self._memo) if key in memo), None)
        if known is None:
            known = self._memo[-1][key] = make()
        return known

    def _computed(self, value: Value, index: Index) -> Expr:
        result = self._compute(value, index)
        self._memo[-1][_key(value, index)] = result
        return result

    def _operands_first(self, value: Value, index: Index) -> None:
        """Compute the operands of `value` through element-wise operators and views, bottom up without recursion: groups
        may nest deeply.
        """
        stack = [(operand, True) for operand in self._operands(value, index)]
        while stack:
            (operand, at), fresh = stack.pop()
            if self._known(operand, at) is not None:
                continue
            if not fresh:
                self._computed(operand, at)
                continue
            stack.append(((operand, at), False))
            stack.extend((inner, True) for inner in self._operands(operand, at))

    def _operands(self, value: Value, index: Index) -> list[tuple[Value, Index]]:
        """Return the operands, with indices, for an element of `value`; none if they are not known beforehand."""
        node = value.producer
        if value in self.sources or value.data is not None or node is None:
            return []
        kept = self._kept_as_float(node)
        if kept is not None:
            return [(self._rounded_product(kept.rounded) or kept.rounded, index)]
        if node.op in elementwise.RULES:
            return [(x, broadcast_index(index, x.shape)) for x in node.inputs]
        if kind_of(node.op) is Kind.VIEW:
            return [(node.inputs[0], pull_view(node, index, self.simplify))]
        return []

    def _compute(self, value: Value, index: Index) -> Expr:
        source = self.sources.get(value)
        element = source(index) if source is not None else None
        if element is not None:
            return self._element(element)
        if value.data is not None:
            if value.data.size != 1:
                raise KernelError(f"constant %{value.name} of {value.data.size} elements is no input of its kernel")
            dtype = self._moved(value.dtype)
            data = value.data if dtype == value.dtype else value.data.view(dtype)
            return literal(data.reshape(())[()], dtype)
        node = value.producer
        if node is None:
            raise KernelError(f"value %{value.name} is read in a kernel, but is none of its inputs")
        return self._apply(node, index)

    def _apply(self, node: Node, index: Index) -> Expr:
        kept = self._kept_as_float(node)
        if kept is not None:
            return self._element(self._rounded_between(kept, index))
        if node.op in elementwise.RULES:
            operands = [self.value(x, broadcast_index(index, x.shape)) for x in node.inputs]
            return self._element(self.rules[node.op](elementwise.Operation(node, operands, self.bind)))
        if kind_of(node.op) is Kind.VIEW:
            return self.value(node.inputs[0], pull_view(node, index, self.simplify))
        if node.op in movement.RULES:
            access = movement.Access(
                node, tuple(index), self.value, self.bind, self.simplify, self.cut, self.index_dtype, self.once,
                self._moved(node.output.dtype),
            )  # fmt: skip
            return self._element(movement.RULES[node.op](access))
        raise KernelError(f"{node.op} cannot be evaluated element by element inside a kernel", node.origins)

    def _moved(self, dtype: str) -> str:
        """Return the dtype as which elements of `dtype` are moved."""
        return self.as_bits.get(dtype, dtype)

    def _rounded_between(self, kept: KeptFloat, index: Index) -> Expr:
        """Return a rounded float32, not NaN, clamped to a range. A product is multiplied and rounded in one
        instruction.
        """
        low, high = (self._less_zero(limit, kept.zero, index) for limit in (kept.low, kept.high))
        product = self._rounded_product(kept.rounded)
        if product is not None:
            return rounded_by_addition(self.value(product, index), low, high, self.bind)
        whole = self.value(kept.rounded, index) + literal(0.0, "float32")  # integers have no negative zero
        return elementwise.between(self.bind(whole), low, high, self.bind)

    def _less_zero(self, limit: Value, zero: Value | None, index: Index) -> int | Expr:
        """Return an integer limit minus its zero point, as a number where neither is a kernel argument."""
        numbers = [v.data for v in (limit, zero) if v is not None]
        if all(data is not None for data in numbers):
            first, *rest = (int(data.reshape(())) for data in numbers if data is not None)
            return first - sum(rest)
        first, *rest = (self.value(v, broadcast_index(index, v.shape)) for v in (limit, zero) if v is not None)
        return self.bind(first - rest[0]) if rest else first

    def _rounded_product(self, rounded: Value) -> Value | None:
        """Return the product that is rounded, if it has no other use."""
        if rounded in self.sources or rounded.producer is None or len(rounded.uses) > 1:
            return None
        x = rounded.producer.inputs[0]
        return x if x not in self.sources and x.producer is not None and x.producer.op == "mul" else None

    def _kept_as_float(self, node: Node) -> KeptFloat | None:
        """Return how the only result of `node` is kept as a float, if no integers in between are in memory."""
        kept = kept_float(node.output) if node.op == "cast" and is_kept(node.output) else None
        if kept is None or any(v in self.sources for v in (*kept.between, kept.rounded)):
            return None
        return kept

    def _element(self, expr: Expr) -> Expr:
        """Return an element for further computation: bound, and opaque to TVM's folding."""
        return self.bind(opaque(expr))


def _key(value: Value, index: Index) -> object:
    return value, tuple(i if isinstance(i, int) else StructuralKey(i) for i in index)
