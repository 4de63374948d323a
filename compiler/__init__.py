"""The compiler: ONNX in, artifact out.

What is named here is loaded on first use: importing a sub-package (`tilestitch.compiler.ir`, say) does not import TVM.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilestitch.compiler.driver import CompiledModel, compile_model
    from tilestitch.compiler.tune.tune import tune_model

__all__ = ["CompiledModel", "compile_model", "tune_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "tune_model":
        from tilestitch.compiler.tune import tune

        return tune.tune_model
    from tilestitch.compiler import driver

    return getattr(driver, name)
