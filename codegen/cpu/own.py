"""Launches of a plug-in's kernels for a CPU."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tilestitch.codegen.backend import OwnedKernel
from tilestitch.codegen.cpu.toolchain.ctext import CText
from tilestitch.codegen.own import buffers_of, function, pointer_kind
from tilestitch.passes.plan.own_kernels import CKernel, CudaKernel

from .abi import ARGUMENT_POINTER, KernelLaunch


def own_launch(owned: OwnedKernel) -> KernelLaunch:
    """Return the launch of a CKernel or a TirKernel. Raises KernelError, naming the plug-in, for TIR that does not
    fit.
    """
    kernel = owned.kernel
    assert not isinstance(kernel, CudaKernel)
    func: Any
    if isinstance(kernel, CKernel):
        func, scratch_bytes = CText(kernel.text, len(kernel.args), kernel.scratch_bytes > 0), kernel.scratch_bytes
    else:
        func, scratch_bytes = _tir(owned), 0
    return KernelLaunch(
        owned.symbol_kind, func, kernel.tasks, owned.args, owned.origins, scratch_bytes, owner=owned.owner
    )


def _tir(owned: OwnedKernel) -> Any:
    """Return the plug-in's function with the parameters of `abi`, with its body and its `task`."""
    args, scratch = (tirx.Var(name, "handle") for name in ("args", "scratch"))
    head: list[Any] = []
    for number, buffer in enumerate(buffers_of(owned, scalars=1)):
        kind = pointer_kind(buffer)
        pointer = tirx.Var(f"p{number}", kind)
        head.append(tirx.Bind(pointer, tirx.tvm_struct_get(args, number, ARGUMENT_POINTER, kind)))
        head.append(tirx.DeclBuffer(buffer, data=pointer))
    func = owned.kernel.func  # type: ignore[union-attr]
    return function([args, func.params[-1], scratch], head, func.body, {"calling_conv": 2})
