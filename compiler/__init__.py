"""The compiler: ONNX in, artifact out.

`compile_model` is loaded on first use: importing a sub-package (`tilestitch.compiler.ir`, say) does not import TVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilestitch.compiler.driver import CompiledModel, compile_model

__all__ = ["CompiledModel", "compile_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tilestitch.compiler import driver

    return getattr(driver, name)
