"""Launches of a plug-in's kernels for GPUs."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tilestitch.codegen.backend import OwnedKernel
from tilestitch.codegen.cuda.abi import CudaLaunch
from tilestitch.codegen.own import buffers_of, function, pointer_kind
from tilestitch.passes.plan.own_kernels import CKernel, CudaKernel


def own_launch(owned: OwnedKernel) -> CudaLaunch:
    """Return the launch of a CudaKernel or a TirKernel. Raises KernelError, naming the plug-in, for TIR that does not
    fit.
    """
    kernel = owned.kernel
    assert not isinstance(kernel, CKernel)
    func: Any
    if isinstance(kernel, CudaKernel):
        func, shared_bytes, cooperative = kernel.text, kernel.shared_bytes, kernel.cooperative
    else:
        func, shared_bytes, cooperative = _tir(owned), 0, False
    return CudaLaunch(
        owned.symbol_kind, func, kernel.grid, kernel.block, owned.args, owned.origins, shared_bytes,
        cooperative=cooperative, owner=owned.owner,
    )  # fmt: skip


def _tir(owned: OwnedKernel) -> Any:
    """Return the plug-in's function with a pointer in the place of each buffer."""
    buffers = buffers_of(owned, scalars=0)
    pointers = [tirx.Var(f"p{number}", pointer_kind(buffer)) for number, buffer in enumerate(buffers)]
    head = [tirx.DeclBuffer(buffer, data=pointer) for buffer, pointer in zip(buffers, pointers, strict=True)]
    func = owned.kernel.func  # type: ignore[union-attr]
    return function(pointers, head, func.body, {"calling_conv": 2, "tirx.is_global_func": True})
