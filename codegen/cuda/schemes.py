"""Which kernel computes a product."""

from __future__ import annotations

from .abi import CudaLaunch
from .gemm_mma import fits_mma, lower_mma, plan_mma
from .gemm_simt import lower_simt
from .gemm_wgmma import lower_wgmma, plan_wgmma, why_not_wgmma
from .gemv import fits_gemv, lower_gemv
from .product import Product
from .surroundings import Anchored


def lower_product(group: Anchored, product: Product) -> tuple[CudaLaunch, ...]:
    """The launches of a product, by the kernel that suits its shape and dtypes."""
    if fits_gemv(product) and group.behind is None:
        return lower_gemv(group, product)
    if why_not_wgmma(product, group.target) is None and not _mma_is_better(group, product):
        return lower_wgmma(group, product)
    if fits_mma(product, group.target):
        return lower_mma(group, product)
    return lower_simt(group, product)


def _mma_is_better(group: Anchored, product: Product) -> bool:
    """Where rows are computed behind a product, blocks may be done earlier than single warps. Patches of pixels are no
    bands of rows.
    """
    if group.behind is None:
        return False
    if product.a.pictures is not None or not fits_mma(product, group.target):
        return product.a.pictures is not None
    return plan_mma(group, product)[0] < plan_wgmma(product, group.target.device, group.behind)[0]
