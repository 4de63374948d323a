"""Errors and warnings of the frontend. Messages say what is wrong, at which ONNX node or value, and what to do.

`exit_code` is what the command line returns for the error: 1 a bad model, 2 a model that is not supported.
"""

from collections.abc import Mapping, Sequence


class FrontendError(Exception):
    """Base class of the frontend's errors."""

    exit_code = 2


class ModelError(FrontendError):
    """The file or model is not acceptable: not ONNX, truncated, rejected by the checker, contradictory shapes."""

    exit_code = 1


class DeclarationWarning(UserWarning):
    """A model declares something false about itself that its computation does not depend on."""


class ConversionError(FrontendError):
    """One ONNX node cannot be expressed: bad attributes, or operand types that its operator does not accept."""


class InvalidNodeError(ConversionError):
    """One ONNX node violates the definition of its operator: ranks, counts or attributes."""

    exit_code = 1


class SizesClashError(ConversionError):
    """One ONNX node does not fit the given sizes, or the sizes that other nodes require of open dimensions."""


class NotStatic(FrontendError):
    """A converter needs at compile time what is known only at run time (a constant, a dimension, a rank)."""


SEARCHES = tuple(f"com.microsoft.{op}" for op in ("BeamSearch", "WhisperBeamSearch", "GreedySearch", "Sampling"))
"""They generate whole texts; one step of the language model is a graph among their attributes."""

SEARCH_REMEDY = (
    "Choosing tokens is left to the program that runs the model. Compile the models of one step instead, from which "
    "ONNX Runtime's convert_generation made the node: its attributes decoder, encoder and init_decoder hold them."
)


class UnsupportedOperatorsError(FrontendError):
    """The model uses operators that have no converter; `nodes` maps each operator to the names of its nodes."""

    def __init__(self, nodes: Mapping[str, Sequence[str]]) -> None:
        lines = [f"  {op}: {', '.join(names)}" for op, names in sorted(nodes.items())]
        remedy = "Replace them in the model, or add their definition as an ONNX model-local function."
        if any(op.split(" ")[0] in SEARCHES for op in nodes):
            remedy += f" {SEARCH_REMEDY}"
        elif any(op.startswith("com.microsoft.") for op in nodes):
            remedy += (
                " Operators of com.microsoft are made by ONNX Runtime's tools; docs/microsoft.md lists those that are "
                "supported. Take the model as it was before them."
            )
        super().__init__("the model uses operators that are not supported:\n" + "\n".join([*lines, remedy]))
        self.nodes = {op: tuple(names) for op, names in nodes.items()}
