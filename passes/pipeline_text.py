"""Pipelines as text: `canonicalise,fold_constants{max_bytes=1024},fixpoint{limit=4}(cse,dce)`.

`parse_pipeline` and `print_pipeline` are inverse to each other. Values are JSON scalars, bare words, or lists of these
in brackets; fields that have their default value are not printed.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from .errors import PipelineError

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[\w.+:/-]+|.)', re.S)
_WORD = re.compile(r"[A-Za-z_/][\w.:/-]*")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_KEYWORDS = {"true": True, "false": False, "null": None}
_NUMBER_WORDS = frozenset({"NaN", "Infinity"})


@dataclasses.dataclass(frozen=True)
class PassText:
    """An unresolved entry of a textual pipeline: name, arguments, nested entries (None: no parentheses)."""

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()
    body: tuple[PassText, ...] | None = None


def parse_pipeline(text: str, table: Mapping[str, type]) -> tuple[Any, ...]:
    """Return the passes that `text` describes, looked up in `table`. Raises PipelineError, which says where."""
    return tuple(build(entry, table) for entry in parse_text(text))


def print_pipeline(passes: Sequence[Any]) -> str:
    """Return the text of `passes`, which parses back to equal passes."""
    return ",".join(_print(p) for p in passes)


def build(entry: PassText, table: Mapping[str, type]) -> Any:
    """Return the pass of one entry. Raises PipelineError for an unknown pass, field, or a value of the wrong type."""
    if entry.name not in table:
        raise PipelineError(f"there is no pass {entry.name!r}; known: {', '.join(sorted(table))}")
    return build_from_class(table[entry.name], entry, table)


def build_from_class(cls: type, entry: PassText, table: Mapping[str, type]) -> Any:
    """Return an instance of `cls` with the arguments of `entry`. Raises PipelineError as `build` does."""
    # Resolving type hints takes as long as everything else, and most passes have no arguments.
    hints = get_type_hints(cls) if entry.arguments else {}
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name != "body"}
    takes_body = any(f.name == "body" for f in dataclasses.fields(cls))
    values: dict[str, Any] = {}
    for key, value in entry.arguments:
        if key not in fields:
            known = f"it has {', '.join(fields)}" if fields else "it has none"
            raise PipelineError(f"pass {entry.name} has no field {key!r}; {known}")
        if key in values:
            raise PipelineError(f"pass {entry.name}: field {key!r} is given twice")
        values[key] = _converted(value, hints[key], f"pass {entry.name}, field {key}")
    missing = [name for name in required_fields(cls) if name not in values and name != "body"]
    if missing:
        raise PipelineError(f"pass {entry.name} needs {', '.join(missing)}; write {entry.name}{{{missing[0]}=…}}")
    if (entry.body is not None) != takes_body:
        raise PipelineError(f"pass {entry.name} {'needs' if takes_body else 'takes no'} passes in parentheses")
    if entry.body is not None:
        values["body"] = tuple(build(e, table) for e in entry.body)
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        raise PipelineError(f"pass {entry.name}: {error}") from None


def required_fields(cls: type) -> list[str]:
    """Return the fields of a dataclass that have no default."""
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.init and f.default is missing and f.default_factory is missing]


def arguments_text(pass_: Any) -> str:
    """Return the arguments of a pass that differ from their defaults, as `{field=value}`; "" if there are none.

    Raises TypeError for a value that has no text.
    """
    return _print(pass_)[len(pass_.name) :]


@lru_cache(maxsize=64)
def parse_text(text: str) -> tuple[PassText, ...]:
    """Return the entries of `text`, not looked up. Raises PipelineError with the column where it does not parse."""
    parser = _Parser(text)
    entries = parser.entries()
    if parser.peek():
        parser.fail(f"unexpected {parser.peek()!r}")
    return entries


def _shown(token: str) -> str:
    return repr(token) if token else "the end"


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text.rstrip(), 0

    def fail(self, message: str) -> NoReturn:
        form = "write NAME{field=value,…} or MODULE:CLASS{field=value,…}, and commas between several"
        raise PipelineError(f"passes {self.text!r}, column {self.at + 1}: {message}; {form}")

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        return match.group(1) if match else ""

    def take(self, expected: str = "", what: str = "") -> str:
        """Return the next token, which must be EXPECTED if that is given; WHAT describes the expected token in error
        messages.
        """
        token = self.peek()
        if not token or (expected and token != expected):
            self.fail(f"expected {what or repr(expected)}, found {_shown(token)}")
        match = _TOKEN.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return token

    def entries(self) -> tuple[PassText, ...]:
        if self.peek() in ("", ")"):
            return ()
        entries = [self.entry()]
        while self.peek() == ",":
            self.take()
            entries.append(self.entry())
        return tuple(entries)

    def entry(self) -> PassText:
        name = self.peek()
        if not re.fullmatch(r"[A-Za-z_][\w.:/-]*", name):
            self.fail(f"expected the name of a pass, found {_shown(name)}")
        self.take()
        arguments: list[tuple[str, Any]] = []
        if self.peek() == "{":
            self.take()
            while self.peek() != "}":
                key = self.take(what="the name of a field, or '}'")
                if not _NAME.fullmatch(key):
                    self.fail(f"expected the name of a field, found {key!r}")
                self.take("=")
                arguments.append((key, self.value()))
                if self.peek() != ",":
                    break
                self.take()
            self.take("}")
        body = None
        if self.peek() == "(":
            self.take()
            body = self.entries()
            self.take(")")
        return PassText(name, tuple(arguments), body)

    def value(self) -> Any:
        token = self.take(what="a value")
        if token == "[":
            items: list[Any] = []
            while self.peek() != "]":
                items.append(self.value())
                if self.peek() != ",":
                    break
                self.take()
            self.take("]")
            return tuple(items)
        if token in _KEYWORDS:
            return _KEYWORDS[token]
        try:
            value = json.loads(token)
        except json.JSONDecodeError:
            if _WORD.fullmatch(token):
                return token
            self.fail(f"{token!r} is no value")
        return value


def _converted(value: Any, hint: Any, where: str) -> Any:
    """Return `value` if it fits the annotation `hint`; ints are taken for floats. Raises PipelineError."""
    if get_origin(hint) in (Union, types.UnionType):
        for option in get_args(hint):
            try:
                return _converted(value, option, where)
            except PipelineError:
                continue
    elif get_origin(hint) is tuple and isinstance(value, tuple):
        return tuple(_converted(v, get_args(hint)[0], where) for v in value)
    elif hint is type(None) and value is None:
        return None
    elif hint is float and type(value) in (int, float):
        return float(value)
    elif hint in (int, bool, str) and type(value) is hint:
        return value
    wanted = getattr(hint, "__name__", str(hint)) if get_origin(hint) is None else str(hint)
    raise PipelineError(f"{where}: {_print_value(value)} is no {wanted}")


def _print(pass_: Any) -> str:
    arguments, body = [], ""
    for f in dataclasses.fields(pass_):
        value = getattr(pass_, f.name)
        if f.name == "body":
            body = f"({print_pipeline(value)})"
        elif value != _default(f) or type(value) is not type(_default(f)):
            arguments.append(f"{f.name}={_print_value(value)}")
    return pass_.name + (f"{{{','.join(arguments)}}}" if arguments else "") + body


def _default(f: dataclasses.Field[Any]) -> Any:
    return f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default


def _print_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(_print_value, value))}]"
    if isinstance(value, str) and _WORD.fullmatch(value) and value not in _KEYWORDS.keys() | _NUMBER_WORDS:
        return value
    return json.dumps(value)
