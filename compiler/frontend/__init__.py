"""ONNX models as graphs of primitives."""

from .errors import ConversionError, DeclarationWarning, FrontendError, ModelError, NotStatic, UnsupportedOperatorsError
from .importer import CheckedModel, ImportedModel, checked_model, convert_checked, import_model
from .scope import Choosing

__all__ = [
    "CheckedModel",
    "Choosing",
    "ConversionError",
    "DeclarationWarning",
    "FrontendError",
    "ImportedModel",
    "ModelError",
    "NotStatic",
    "UnsupportedOperatorsError",
    "checked_model",
    "convert_checked",
    "import_model",
]
