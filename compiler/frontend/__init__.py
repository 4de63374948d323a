"""ONNX models as graphs of primitives."""

from .errors import ConversionError, FrontendError, ModelError, NotStatic, UnsupportedOperatorsError
from .importer import ImportedModel, import_model

__all__ = [
    "ConversionError",
    "FrontendError",
    "ImportedModel",
    "ModelError",
    "NotStatic",
    "UnsupportedOperatorsError",
    "import_model",
]
