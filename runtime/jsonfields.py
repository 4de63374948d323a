"""Checked reading of JSON objects: every field is requested by name and type, and none may be left over."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from .errors import ArtifactSchemaError
from .sizes import MAX_LENGTH, Size

T = TypeVar("T")
MAX_INT = 2**62


def parse_json(text: bytes | memoryview | str) -> Any:
    """Return the data of a JSON text. Raises ValueError.

    Stricter than `json.loads`: UTF-8 only, no duplicate names in an object, no NaN or infinity, no unpaired surrogates.
    """
    try:
        plain = text if isinstance(text, str) else bytes(text).decode()
        data = json.loads(plain, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_finite)
        if _SURROGATE.search(plain):
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return data


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object has the name {next(n for n in names if names.count(n) > 1)!r} twice")
    return data


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON's")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


class Fields:
    """A JSON object whose fields are taken one by one; `where` is its path in the document, for messages.

    Every method raises `ArtifactSchemaError` when the field is missing or of another type.
    """

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise ArtifactSchemaError(f"{where} is {_kind(data)}, not an object")
        self._data: dict[str, Any] = dict(data)
        self.where = where

    def take(self, name: str) -> Any:
        if name not in self._data:
            raise ArtifactSchemaError(f"{self.where} has no field {name!r}")
        return self._data.pop(name)

    def integer(self, name: str, minimum: int = 0, maximum: int = MAX_INT) -> int:
        return integer(self.take(name), f"{self.where}.{name}", minimum, maximum)

    def size(self, name: str, minimum: int = 0, maximum: int = MAX_INT) -> Size:
        """Return an integer, or the text of an expression over symbols, which is not parsed here."""
        return size(self.take(name), f"{self.where}.{name}", minimum, maximum)

    def string(self, name: str) -> str:
        return string(self.take(name), f"{self.where}.{name}")

    def boolean(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool):
            raise ArtifactSchemaError(f"{self.where}.{name} is {_kind(value)}, not a boolean")
        return value

    def optional_boolean(self, name: str) -> bool:
        """Return a boolean that is left out when it is false."""
        return name in self._data and self.boolean(name)

    def one_of(self, name: str, choices: frozenset[str]) -> str:
        value = self.string(name)
        if value not in choices:
            raise ArtifactSchemaError(f"{self.where}.{name} is {value!r}, not one of {', '.join(sorted(choices))}")
        return value

    def sequence(self, name: str, item: Callable[[Any, str], T]) -> tuple[T, ...]:
        """Return a list, each item read by `item(data, where)`."""
        return sequence(self.take(name), f"{self.where}.{name}", item)

    def optional_sequence(self, name: str, item: Callable[[Any, str], T]) -> tuple[T, ...]:
        """Return a list that is left out when it is empty."""
        return self.sequence(name, item) if name in self._data else ()

    def optional(self, name: str, read: Callable[[Any, str], T]) -> T | None:
        """Return a field read by `read(data, where)`, or None if it is left out."""
        return read(self.take(name), f"{self.where}.{name}") if name in self._data else None

    def integers(self, name: str, minimum: int = 0, maximum: int = MAX_INT) -> tuple[int, ...]:
        return self.sequence(name, lambda data, where: integer(data, where, minimum, maximum))

    def sizes(self, name: str, minimum: int = 0, maximum: int = MAX_INT) -> tuple[Size, ...]:
        return self.sequence(name, lambda data, where: size(data, where, minimum, maximum))

    def strings(self, name: str) -> tuple[str, ...]:
        return self.sequence(name, string)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.take(name)
        if not isinstance(value, dict):
            raise ArtifactSchemaError(f"{self.where}.{name} is {_kind(value)}, not an object")
        return value

    def done(self) -> None:
        if self._data:
            raise ArtifactSchemaError(f"{self.where} has unknown fields {', '.join(sorted(self._data))}")


def integer(data: Any, where: str, minimum: int = 0, maximum: int = MAX_INT) -> int:
    if not isinstance(data, int) or isinstance(data, bool):
        raise ArtifactSchemaError(f"{where} is {_kind(data)}, not an integer")
    if not minimum <= data <= maximum:
        raise ArtifactSchemaError(f"{where} is {data}, outside {minimum} to {maximum}")
    return data


def size(data: Any, where: str, minimum: int = 0, maximum: int = MAX_INT) -> Size:
    if not isinstance(data, str):
        return integer(data, where, minimum, maximum)
    if not 0 < len(data) <= MAX_LENGTH:
        raise ArtifactSchemaError(f"{where} is a text of {len(data)} characters, no expression of sizes")
    return data


def string(data: Any, where: str) -> str:
    if not isinstance(data, str):
        raise ArtifactSchemaError(f"{where} is {_kind(data)}, not a string")
    return data


def sequence(data: Any, where: str, item: Callable[[Any, str], T]) -> tuple[T, ...]:
    if not isinstance(data, list):
        raise ArtifactSchemaError(f"{where} is {_kind(data)}, not a list")
    return tuple(item(entry, f"{where}[{index}]") for index, entry in enumerate(data))


def finite_json(data: Any) -> Any:
    """Return data as valid JSON: nan and inf as `{"$float": "nan"}`, tuples as lists, numpy numbers as Python's."""
    if isinstance(data, (str, bool, int)) or data is None:
        return data
    if isinstance(data, float):
        return data if math.isfinite(data) else {"$float": repr(data)}
    if isinstance(data, (list, tuple)):
        return [finite_json(item) for item in data]
    if isinstance(data, dict):
        return {str(key): finite_json(item) for key, item in data.items()}
    if hasattr(data, "item") and getattr(data, "shape", None) == ():
        return finite_json(data.item())
    raise TypeError(f"a step's attribute holds {type(data).__name__}, which is no JSON data; make an array a constant")


def from_finite_json(data: Any, where: str) -> Any:
    """Return the data that `finite_json` encoded."""
    if isinstance(data, list):
        return [from_finite_json(item, f"{where}[{index}]") for index, item in enumerate(data)]
    if not isinstance(data, dict):
        return data
    if set(data) != {"$float"}:
        return {key: from_finite_json(item, f"{where}.{key}") for key, item in data.items()}
    if data["$float"] not in ("nan", "inf", "-inf"):
        raise ArtifactSchemaError(f"{where} is no special float")
    return float(data["$float"])


def _kind(data: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(data), "a number")
