"""Finds divisions of 64-bit integers in CUDA text, as TVM writes it: each operation in parentheses of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

_DECLARED = re.compile(r"\bint64_t(?:\* __restrict__)? (\w+)")
_DIVISION = re.compile(r" [/%] ")
_CAST = re.compile(r"\((\w+)\)")


def kernels_of(text: str) -> str:
    """The kernels of a CUDA text, without the functions of ours before them."""
    return text[text.index('extern "C" __global__') :]


def wide_divisions(text: str) -> list[str]:
    """The 64-bit quotients and remainders among the operations of a kernel's text."""
    wide = set(_DECLARED.findall(text))
    return [f"{a}{sign}{b}" for a, sign, b in _divisions(text) if _is_wide(a, wide) or _is_wide(b, wide)]


def _divisions(text: str) -> Iterator[tuple[str, str, str]]:
    for found in _DIVISION.finditer(text):
        yield (
            text[_start(text, found.start()) : found.start()],
            found.group(),
            text[found.end() : _end(text, found.end())],
        )


def _start(text: str, end: int) -> int:
    """Where the operand before a sign begins: after the parenthesis that holds both."""
    depth = 0
    for at in range(end - 1, -1, -1):
        depth += {")": 1, "]": 1, "(": -1, "[": -1}.get(text[at], 0)
        if depth < 0 or text[at] in ";{}":
            return at + 1
    return 0


def _end(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[at], 0)
        if depth < 0 or text[at] in ";{}":
            return at
    return len(text)


def _is_wide(expression: str, wide: set[str]) -> bool:
    """Whether an operand is a 64-bit integer: a variable of that type, a cast to it, or what has an operand that is."""
    expression = expression.strip()
    while expression.startswith("(") and _end(expression, 1) == len(expression) - 1:
        expression = expression[1:-1].strip()
    cast = _CAST.match(expression)
    if cast and cast.group(1) in ("int", "int64_t", "float", "double", "uint", "half"):
        return cast.group(1) == "int64_t"
    parts = [part for part in _operands(expression) if part != expression]
    return any(_is_wide(part, wide) for part in parts) if parts else _name(expression) in wide


def _operands(expression: str) -> list[str]:
    """What stands between operators and commas that are in no parentheses; the arguments of a call."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(expression):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if depth == 0 and (character == "," or (character in "+-*/%<>&|?:=" and expression[at - 1 : at] == " ")):
            parts.append(expression[start:at])
            start = at + 1
    parts.append(expression[start:])
    call = re.fullmatch(r"(min|max)\((.*)\)", expression)
    return _operands(call.group(2)) if call else [part.strip() for part in parts if part.strip()]


def _name(expression: str) -> str:
    return re.split(r"\W", expression, maxsplit=1)[0]
