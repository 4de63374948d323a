"""Results as arrays of the caller's library, such as torch tensors. The library is imported when requested."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from .device import OnDevice, to_host
from .dtypes import dtype_name
from .errors import InputError

_HOMES = {"jax": "jax.numpy", "jaxlib": "jax.numpy"}
"""Module with a library's `from_dlpack` where it is not the package of its array class."""


def converted(results: Mapping[str, Any], like: Any, keep: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results as arrays of the library that `like` names or is an array of, without copies where the library
    can share memory. Strings stay numpy arrays; results named in `keep` stay as they are.

    Raises `InputError` for a library that is missing or lacks DLPack, and for data types that it lacks.
    """
    library = _library(like)
    return {name: value if name in keep else _convert(name, value, library) for name, value in results.items()}


def _library(like: Any) -> Any:
    name = like if isinstance(like, str) else type(like).__module__.partition(".")[0]
    try:
        library = importlib.import_module(_HOMES.get(name, name))
    except ImportError as error:
        raise InputError(
            f"like={like!r}: {error}; give 'numpy', 'torch' or another library of arrays that is installed"
        ) from error
    if not hasattr(library, "from_dlpack"):
        raise InputError(
            f"like: {name} has no from_dlpack, so results cannot become its arrays; "
            "give 'numpy', 'torch', 'jax' or 'cupy', or an array of one of them"
        )
    return library


def _convert(name: str, value: Any, library: Any) -> Any:
    if isinstance(value, list):
        return [_convert(name, item, library) for item in value]
    if library is np:
        return to_host(value)
    if not isinstance(value, (np.ndarray, OnDevice)) or value.dtype.kind == "O":
        return value
    try:
        return library.from_dlpack(value) if value.dtype.isbuiltin == 1 else _viewed(value, library)
    except (AttributeError, BufferError, TypeError, RuntimeError, ValueError) as error:
        raise InputError(
            f"like: output {name!r} of {dtype_name(value.dtype)} cannot become an array of {library.__name__} "
            f"({error}); leave `like` out to get it as a numpy array"
        ) from error


def _viewed(value: Any, library: Any) -> Any:
    """Return an array of a data type that numpy lacks, passed as integers of its size and viewed as its type."""
    name = dtype_name(value.dtype)
    if not name.startswith(("bfloat", "float8")):
        raise TypeError("its elements take less than a byte, which every library stores in its own way")
    dtype = getattr(library, name)
    if isinstance(value, OnDevice):
        return library.from_dlpack(value)
    return library.from_dlpack(value.view(f"u{value.dtype.itemsize}")).view(dtype)
