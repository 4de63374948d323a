"""ONNX models as graphs of primitives."""

from .errors import ConversionError, FrontendError, ModelError, NotStatic, UnsupportedOperatorsError
from .importer import CheckedModel, ImportedModel, checked_model, convert_checked, import_model

__all__ = [
    "CheckedModel",
    "ConversionError",
    "FrontendError",
    "ImportedModel",
    "ModelError",
    "NotStatic",
    "UnsupportedOperatorsError",
    "checked_model",
    "convert_checked",
    "import_model",
]
