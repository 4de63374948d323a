"""Which kernel computes a product."""

from __future__ import annotations

from .abi import CudaLaunch
from .gemm_simt import lower_simt
from .product import Product
from .surroundings import Anchored


def lower_product(group: Anchored, product: Product) -> tuple[CudaLaunch, ...]:
    """The launches of a product, by the kernel that suits its shape and dtypes."""
    return lower_simt(group, product)
