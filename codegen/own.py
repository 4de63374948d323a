"""TIR of plug-ins: its buffer parameters become views of the pointers that launches pass."""

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import PointerType, PrimType

from tilestitch.codegen.backend import OwnedKernel
from tilestitch.codegen.compute.dtypes import storage_dtype
from tilestitch.codegen.errors import KernelError
from tilestitch.passes.plan.own_kernels import Temporary


def pointer_kind(buffer: Any) -> PointerType:
    """Return the type of a pointer to the elements of a buffer parameter."""
    return PointerType(PrimType(str(buffer.ty.dtype)), "global")


def buffers_of(owned: OwnedKernel, scalars: int) -> Sequence[Any]:
    """Return the buffer parameters of a TIR kernel, one per argument; `scalars` scalars must follow.

    Raises KernelError, naming the plug-in, where they do not fit the arguments.
    """
    func, args = owned.kernel.func, owned.kernel.args  # type: ignore[union-attr]
    if not isinstance(func, tirx.PrimFunc):
        raise _misfit(owned, f"its TIR kernel is {type(func).__name__}, not a tvm.tirx.PrimFunc")
    if len(func.params) != len(args) + scalars:
        wanted = f"{len(args)} buffers" + (" and an int64 `task`" if scalars else "")
        raise _misfit(owned, f"its TIR kernel has {len(func.params)} parameters, and needs {wanted}")
    for number, (param, arg) in enumerate(zip(func.params, args)):
        if not isinstance(param.ty, tirx.BufferType):
            raise _misfit(owned, f"parameter {number} of its TIR kernel is no buffer")
        if isinstance(arg, Temporary):
            continue
        type_ = owned.types[arg]
        found, size = str(param.ty.dtype), prod(int(extent) for extent in param.ty.shape)
        if found != storage_dtype(type_.dtype) or size != type_.num_elements:
            wanted = f"{type_.num_elements} of {storage_dtype(type_.dtype)}"
            raise _misfit(
                owned, f"parameter {number} of its TIR kernel has {size} elements of {found}; %{arg} has {wanted}"
            )
    return list(func.params[: len(args)])


def function(params: Sequence[Any], head: Sequence[Any], body: Any, attrs: dict[str, Any]) -> Any:
    """Return a kernel that executes the statements of `head`, then `body`."""
    func = tirx.PrimFunc(list(params), tirx.SeqStmt([*head, body]))
    for key, value in {"s_tir": True, "tirx.noalias": True, **attrs}.items():
        func = func.with_attr(key, value)
    return func


def _misfit(owned: OwnedKernel, problem: str) -> KernelError:
    return KernelError(f"{owned.owner}: {problem}; repair the plug-in", owned.origins)
