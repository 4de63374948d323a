"""Kernel arguments inside a kernel, for any target: flat buffers, from which tensors are read and to which they are
stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from tilestitch.codegen.compute.dtypes import Expr, from_storage, to_storage
from tilestitch.codegen.compute.evaluator import Source
from tilestitch.codegen.compute.indexing import ravel
from tilestitch.codegen.compute.sizes import loaded
from tilestitch.codegen.launch import KernelArg, PackedArg, ValueArg
from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.types import TensorType


@dataclass(frozen=True)
class Parameter:
    """One argument inside the kernel: what it is, the dtype and the number of its elements.

    The body gets a flat buffer; for a tensor map, which has no elements, its address.
    """

    arg: KernelArg
    dtype: str
    size: int

    @staticmethod
    def of(name: str, type_: TensorType) -> Parameter:
        return Parameter(ValueArg(name), type_.dtype, type_.num_elements)


def operand(value: Value, type_: TensorType, packed: Mapping[str, PackedArg]) -> Parameter:
    """Return the parameter for a tensor that is read, in the layout `packed` for another kernel if there is one."""
    arg = packed.get(value.name)
    if arg is None or arg.places is None:
        return Parameter.of(value.name, type_)
    return Parameter(arg, type_.dtype, arg.places.elements)


def operand_source(
    buffer: Any, value: Value, type_: TensorType, packed: Mapping[str, PackedArg], simplify: Callable[[Expr], Expr]
) -> Source:
    """Return a reader of the elements of `operand`'s parameter."""
    arg = packed.get(value.name)
    if arg is None or arg.places is None:
        return buffer_source(buffer, type_, simplify)
    place = arg.places.at
    return lambda index: from_storage(loaded(buffer, simplify(place(index)), type_), type_.dtype)


def buffer_source(buffer: Any, type_: TensorType, simplify: Callable[[Expr], Expr]) -> Source:
    """Return a reader of a tensor's elements from its flat buffer."""
    shape = type_.sizes
    return lambda index: from_storage(loaded(buffer, simplify(ravel(index, shape)), type_), type_.dtype)


def store(buffer: Any, type_: TensorType, index: Sequence[Expr], value: Expr, simplify: Callable[[Expr], Expr]) -> None:
    """Store an element (in compute form) of a tensor to its flat buffer."""
    T.buffer_store(buffer, to_storage(value, type_.dtype), [simplify(ravel(index, type_.sizes))])
