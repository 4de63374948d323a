"""Lowering passes that TVM lacks: variables become local memory, sums become ramps.

TVM's analyzer substitutes the definition of a variable wherever it simplifies an index. With shared subexpressions this
takes time exponential in their depth (a minute for two calls of `exp`). It does not see through loads from local
memory, which LLVM turns into registers again.
"""

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, PrimType

from tilestitch.codegen.compute.dtypes import DATA_VARIABLES, HIDDEN, hidden_operand, is_hidden

VARIABLE = "tilestitch_variable"
"""Name of calls that stand for their operand until `show_variables` removes them."""
_FLOORS = (tirx.FloorDiv, tirx.FloorMod)
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def variables_to_memory(func: Any) -> Any:
    """Return `func` with vectors, and scalars that hold elements, in local buffers.

    Other scalars are loop bounds and the like, which TVM's passes must see through.
    """

    def rewrite(bind: Any, mutator: Any) -> Any:
        value = mutator.mutate(bind.value)
        if not _is_data(bind.var):
            mutator.var_remap_set(bind.var, bind.var)
            return tirx.Bind(bind.var, value)
        lanes = _lanes(bind.var.ty)
        dtype = str(bind.var.ty.dtype).partition("x")[0]
        buffer = tirx.decl_buffer((lanes,), dtype, "local", scope="local")
        index = [0] if lanes == 1 else [tirx.Ramp(0, 1, lanes)]
        mutator.var_remap_set(bind.var, tirx.BufferLoad(buffer, index))
        return tirx.SeqStmt([tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, value, index)])

    return tvm_ffi.structural_mutate(func, (tirx.Bind, rewrite))


def hide(func: Any) -> Any:
    """Return `func` with the scalars that hold elements as results of calls, which are opaque to TVM's analyzer.

    For code generators of text: unlike local memory, the calls disappear after `show`.
    """

    def rewrite(bind: Any, mutator: Any) -> Any:
        value = mutator.mutate(bind.value)
        mutator.var_remap_set(bind.var, bind.var)
        if bind.var.name in DATA_VARIABLES and _lanes(bind.var.ty) == 1:
            value = tirx.call_extern(str(bind.var.ty.dtype), HIDDEN, value)
        return tirx.Bind(bind.var, value)

    return tvm_ffi.structural_mutate(func, (tirx.Bind, rewrite))


def show(func: Any) -> Any:
    """Return `func` without the calls of `hide`, of `hide_unsigned` and of `dtypes.opaque`."""

    def rewrite(call: Any) -> Any:
        return hidden_operand(call) if is_hidden(call) or is_hidden(call, VARIABLE) else call

    return tvm_ffi.structural_map(func, (Call, rewrite))


def hide_variables(func: Any) -> Any:
    """Return `func` with the definitions of elements as operands of calls, and those of scalars, too, if one of them
    divides by a run-time value.

    TVM's analyzer substitutes scalars at each index in their scope: it spends seconds on such quotients without
    simplifying anything. Quotients of backward positions are operands, too: it turns (-1 - x) // 3 into x // -3 - 1,
    which is smaller where 3 does not divide x.
    """
    func = tvm_ffi.structural_map(func, (_FLOORS, _hidden_backwards))
    scalars = _divides_by_open(func.body)

    def rewrite(bind: Any, mutator: Any) -> Any:
        value = mutator.mutate(bind.value)
        mutator.var_remap_set(bind.var, bind.var)
        if _is_data(bind.var) or (scalars and _lanes(bind.var.ty)):
            value = tirx.call_extern(str(bind.var.ty.dtype), VARIABLE, value)
        return tirx.Bind(bind.var, value)

    return tvm_ffi.structural_mutate(func, (tirx.Bind, rewrite))


def _hidden_backwards(division: Any) -> Any:
    """Return a scalar quotient or remainder by a constant as the operand of a call if its dividend has a
    subtraction.
    """
    if _lanes(division.ty) != 1 or not isinstance(division.b, tirx.IntImm) or not _goes_backwards(division.a):
        return division
    return tirx.call_extern(str(division.ty.dtype), VARIABLE, division)


def _goes_backwards(expr: Any) -> bool:
    """Return whether a non-constant is subtracted in a sum."""
    if isinstance(expr, tirx.Add):
        return _goes_backwards(expr.a) or _goes_backwards(expr.b)
    return isinstance(expr, tirx.Sub) and (not isinstance(expr.b, tirx.IntImm) or _goes_backwards(expr.a))


def show_variables(func: Any) -> Any:
    """Return `func` without the calls of `hide_variables`."""

    def rewrite(call: Any) -> Any:
        return hidden_operand(call) if is_hidden(call, VARIABLE) else call

    return tvm_ffi.structural_map(func, (Call, rewrite))


def hide_unsigned(func: Any) -> Any:
    """Return `func` with the definitions of scalars as operands of calls, except those that tell the sign of a dividend
    or divisor, if it divides by a non-constant.

    TVM's analyzer simplifies and substitutes all of them, which takes seconds for such quotients, but lowering asks it
    for signs alone.
    """
    if not _divides(func.body):
        return func
    signs = _Signs.of(func.body).variables()

    def rewrite(bind: Any, mutator: Any) -> Any:
        value = mutator.mutate(bind.value)
        mutator.var_remap_set(bind.var, bind.var)
        if bind.var not in signs and _lanes(bind.var.ty):
            value = tirx.call_extern(str(bind.var.ty.dtype), VARIABLE, value)
        return tirx.Bind(bind.var, value)

    return tvm_ffi.structural_mutate(func, (tirx.Bind, rewrite))


@dataclass(frozen=True)
class _Signs:
    """What signs depend on: the operands of divisions by other than powers of two, the definitions of variables, and
    conditions, which bound the variables that they compare.
    """

    divided: list[Any]
    definitions: dict[Any, tuple[Any, ...]]
    conditions: list[Any]

    @classmethod
    def of(cls, body: Any) -> "_Signs":
        found = cls([], {}, [])
        rules = [(_FLOORS, found._division), (tirx.Bind, found._bind), (tirx.For, found._loop),
                 ((tirx.IfThenElse, tirx.Select), found._condition)]  # fmt: skip
        tvm_ffi.structural_map(body, rules)
        return found

    def variables(self) -> set[Any]:
        """Return the variables that they depend on."""
        known: set[Any] = set()
        pending = list(self.divided)
        conditions = [_variables(condition) for condition in self.conditions] if pending else []
        while pending:
            while pending:
                for var in _variables(pending.pop()) - known:
                    known.add(var)
                    pending += self.definitions.get(var, ())
            pending = [var for condition in conditions if condition & known for var in condition - known]
        return known

    def _division(self, node: Any) -> Any:
        if not (isinstance(node.b, tirx.IntImm) and node.b.value > 0 and int(node.b.value).bit_count() == 1):
            self.divided.extend((node.a, node.b))
        return node

    def _bind(self, bind: Any) -> Any:
        self.definitions[bind.var] = (bind.value,)
        return bind

    def _loop(self, loop: Any) -> Any:
        self.definitions[loop.loop_var] = (loop.min, loop.extent)
        return loop

    def _condition(self, node: Any) -> Any:
        self.conditions.append(node.condition)
        return node


def _variables(expr: Any) -> set[Any]:
    found: set[Any] = set()

    def see(var: Any) -> Any:
        found.add(var)
        return var

    tvm_ffi.structural_map(expr, (tirx.Var, see))
    return found


def _divides_by_open(body: Any) -> bool:
    """Return whether a scalar is a quotient or a remainder by a non-constant divisor."""
    found = False

    def look(bind: Any) -> Any:
        nonlocal found
        found = found or (bool(_lanes(bind.var.ty)) and not _is_data(bind.var) and _divides(bind.value))
        return bind

    tvm_ffi.structural_map(body, (tirx.Bind, look))
    return found


def _divides(root: Any) -> bool:
    """Return whether something in it is a quotient or a remainder by a non-constant divisor."""
    found = False

    def look(division: Any) -> Any:
        nonlocal found
        found = found or not isinstance(division.b, tirx.IntImm)
        return division

    tvm_ffi.structural_map(root, (_DIVISIONS, look))
    return found


def _is_data(var: Any) -> bool:
    lanes = _lanes(var.ty)
    return lanes > 1 or (lanes == 1 and var.name in DATA_VARIABLES)


def _lanes(type_: Any) -> int:
    """Return the elements of a vector, 1 for a scalar, 0 for other types."""
    if not isinstance(type_, PrimType):
        return 0
    return int(str(type_.dtype).partition("x")[2] or 1)


def ramps(func: Any) -> Any:
    """Return `func` with indices `broadcast(a) + ramp(b)`, which flattening of buffers produces, as `ramp(a + b)`.

    LLVM code generation recognises only a ramp as consecutive memory; any other vector becomes a gather.
    """

    def rewrite(add: Any) -> Any:
        a, b = add.a, add.b
        if isinstance(a, tirx.Ramp) and isinstance(b, tirx.Broadcast):
            a, b = b, a
        if not (isinstance(a, tirx.Broadcast) and isinstance(b, tirx.Ramp)):
            return add
        return tirx.Ramp(a.value + b.base, b.stride, b.lanes)

    return tvm_ffi.structural_map(func, (tirx.Add, rewrite))
