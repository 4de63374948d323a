"""Normalises every accepted form of a model to what the frontend reads: a path or a ModelProto."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ExportError, OptionError

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True)
class Source:
    """A model for `import_model`: `folder` has the external tensors of a ModelProto, `name` is for reports."""

    model: Path | ModelProto
    folder: Path | None = None
    name: str = ""


@contextmanager
def opened(
    model: Any, example_inputs: Any = None, external_data: str | os.PathLike[str] | None = None
) -> Iterator[Source]:
    """Open `model` as a Source while the context lasts: a path, the bytes of a file, a ModelProto, or one of PyTorch's
    ExportedProgram, ONNXProgram, and nn.Module, which is exported with `example_inputs`.

    Raises ModelError for bytes that are not a model, ExportError where PyTorch cannot export, and OptionError for
    anything else and for options that do not belong to it.
    """
    if isinstance(model, type):
        raise OptionError(f"{model.__qualname__} is a class; give an instance of it")
    if isinstance(model, (str, os.PathLike)) and not os.fspath(model):
        raise OptionError("the path of the model is empty; give the path of an ONNX file")
    kind = _torch_kind(model)
    _check_options(model, kind, example_inputs, external_data)
    folder = None if external_data is None else Path(external_data)
    if isinstance(model, (str, os.PathLike)):
        yield Source(Path(model), name=Path(model).stem)
    elif kind:
        with tempfile.TemporaryDirectory(prefix="tilestitch-") as temporary:
            path = Path(temporary, "model.onnx")
            # Saved rather than passed in memory: a protobuf message is limited to 2 GB.
            _saved(model if kind == "ONNXProgram" else _exported(model, kind, example_inputs), path)
            yield Source(path, name=type(model).__name__)
    else:
        proto = _proto(model)
        yield Source(proto, folder, proto.graph.name)


def _proto(model: Any) -> ModelProto:
    from onnx import ModelProto

    from tilestitch.compiler.frontend.importer import parse_model

    if isinstance(model, (bytes, bytearray, memoryview)):
        return parse_model(bytes(model), "the bytes given")
    if isinstance(model, ModelProto):
        return model
    raise OptionError(
        f"a {type(model).__module__}.{type(model).__qualname__} cannot be compiled; give the path or the bytes of an "
        "ONNX file, a ModelProto, or PyTorch's nn.Module, ExportedProgram or ONNXProgram; export models of other "
        "frameworks to ONNX first (tf2onnx, skl2onnx, paddle2onnx, …)"
    )


def _torch_kind(model: Any) -> str:
    """Return which of PyTorch's model classes it belongs to; "" for none. Imports nothing: they all come with torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    if isinstance(model, torch.nn.Module):
        return "Module"
    if isinstance(model, torch.export.ExportedProgram):
        return "ExportedProgram"
    return "ONNXProgram" if isinstance(model, torch.onnx.ONNXProgram) else ""


def _check_options(model: Any, kind: str, example_inputs: Any, external_data: Any) -> None:
    if kind == "Module" and example_inputs is None:
        raise OptionError(
            f"a {type(model).__name__} is exported by running it; give example_inputs: a tensor, a tuple of positional "
            "arguments, or a dict of keyword arguments"
        )
    if kind != "Module" and example_inputs is not None:
        raise OptionError("example_inputs are for a torch.nn.Module only; leave them out")
    if external_data is not None and (kind or isinstance(model, (str, os.PathLike))):
        raise OptionError("external_data is for a ModelProto or bytes; what else holds tensors knows where they lie")


def _exported(model: Any, kind: str, example_inputs: Any) -> Any:
    """Export a module in evaluation mode, or an ExportedProgram, with PyTorch's exporter to an ONNXProgram."""
    import torch

    if kind == "ExportedProgram":
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] | None = None
    elif isinstance(example_inputs, Mapping):
        args, kwargs = (), dict(example_inputs)
    else:
        args = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
        kwargs = None
    try:
        with _evaluating(model if kind == "Module" else None), torch.no_grad():
            # The wrapper of torch.compile has the argument names of the wrapped module.
            return torch.onnx.export(
                getattr(model, "_orig_mod", model), args, kwargs=kwargs, dynamo=True, verbose=False
            )
    except ImportError as error:
        raise ExportError(
            f"PyTorch's exporter needs a package: {error}; pip install onnxscript", exit_code=4
        ) from error
    except Exception as error:  # whatever the module and the exporter raise, the cause is shown
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ExportError(
            f"PyTorch cannot export the {type(model).__name__} to ONNX ({reason}); see what "
            "torch.onnx.export(module, example_inputs, dynamo=True) says, or give an ONNX file made in another way"
        ) from error


@contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    """Put the module into evaluation mode, and restore the mode of each part afterwards."""
    training = [] if module is None else [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _saved(program: Any, path: Path) -> None:
    if program is None:
        raise ExportError("PyTorch's exporter gave nothing; export with torch.onnx.export(..., dynamo=True)")
    program.save(path, external_data=True)
