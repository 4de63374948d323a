"""Translates the inline PTX of a kernel to calls of the functions in `include/emulator/ptx.h`."""

from __future__ import annotations

import re
from ast import literal_eval
from dataclasses import dataclass

from .errors import EmulatorUnsupportedError
from .ptx_families import family_call

_ASM = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_OPERAND = re.compile(r'\s*(?:\[(\w+)\])?\s*"([^"]*)"\s*\((.*)\)\s*$', re.DOTALL)
_REFERENCE = re.compile(r"%(?:(\d+)|\[(\w+)\])")
_DECLARED = re.compile(r"\.reg\s+\.\w+([^;]*);")
_SPECIAL = re.compile(r"%%?([a-z]\w*(?:\.[xyz])?)")
_LABEL = re.compile(r"([A-Za-z_$][\w$]*)(?:%=)?\s*:(?!:)")
_INSTRUCTION = re.compile(r"(?:@(!?)(\w+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)
_REGISTERS = {
    "pred": "bool", "b16": "uint16_t", "u16": "uint16_t", "b32": "uint32_t", "u32": "uint32_t", "s32": "int32_t",
    "b64": "uint64_t", "u64": "uint64_t", "s64": "int64_t", "f32": "float", "f64": "double",
}  # fmt: skip
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@dataclass(frozen=True)
class _Operand:
    name: str
    constraint: str
    expression: str


def translate_asm(text: str) -> str:
    """Return the text with every `asm` statement replaced by C++, on as many lines as before.

    Raises EmulatorUnsupportedError for what the emulator does not support.
    """
    parts: list[str] = []
    position = 0
    for match in _ASM.finditer(text):
        if match.start() < position:
            continue
        end = _closing(text, match.end())
        statement = text[match.end() : end]
        parts += [text[position : match.start()], _translate(statement), "\n" * statement.count("\n")]
        position = end + 1
    return "".join(parts) + text[position:]


def _closing(text: str, start: int) -> int:
    """Return the position of the parenthesis that closes the one opened before `start`."""
    depth, position = 1, start
    while position < len(text):
        string = _STRING.match(text, position)
        if string:
            position = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
        position += 1
    raise EmulatorUnsupportedError("a kernel's text ends within an asm statement; compile the model again")


def _split(text: str, separator: str) -> list[str]:
    """Split a text at separators outside strings, parentheses, brackets and braces."""
    parts, depth, begin, position = [], 0, 0, 0
    while position < len(text):
        string = _STRING.match(text, position)
        if string:
            position = string.end()
            continue
        char = text[position]
        depth += (char in "([{") - (char in ")]}")
        if char == separator and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
        position += 1
    return [*parts, text[begin:]]


def _translate(statement: str) -> str:
    sections = _split(statement, ":")
    template = "".join(literal_eval(string) for string in _STRING.findall(sections[0]))
    operands = [_operand(part) for section in sections[1:3] for part in _split(section, ",") if part.strip()]
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", template, flags=re.DOTALL).strip()
    for name in {name for names in _DECLARED.findall(code) for name in re.findall(r"%+(\w+)", names)}:
        code = re.sub(rf"%+{name}\b", name, code)  # a register's name may begin with a percent sign
    parts = [part.strip() for part in _instructions(code)]
    labels = ", ".join(part[:-1] for part in parts if part.endswith(":"))
    body = " ".join(_statement(part, operands) for part in parts)
    return f"do {{ {f'__label__ {labels}; ' if labels else ''}{body} }} while (0)"


def _operand(text: str) -> _Operand:
    match = _OPERAND.match(text)
    if match is None:
        raise EmulatorUnsupportedError(f"the emulator cannot read the asm operand {text.strip()!r}")
    return _Operand(match[1] or "", match[2], match[3])


def _instructions(code: str) -> list[str]:
    """Split PTX into instructions without their semicolons; braces that stand alone open and close a scope. Labels end
    in a colon.
    """
    parts: list[str] = []
    while code := code.strip():
        if label := _LABEL.match(code):
            parts.append(f"{label[1]}:")
            code = code[label.end() :]
            continue
        if code[0] in "{}":
            parts.append(code[0])
            code = code[1:].lstrip(";") if code[0] == "}" else code[1:]
            continue
        instruction, _, code = code.partition(";")
        parts.append(instruction)
    return parts


def _statement(text: str, operands: list[_Operand]) -> str:
    if text in ("{", "}"):
        return text
    if text.endswith(":"):
        return f"{text};"
    if text.startswith(".reg"):
        kind, _, names = text[4:].strip().lstrip(".").partition(" ")
        if kind in _REGISTERS:
            return f"{_REGISTERS[kind]} {', '.join(name.strip() + ' = 0' for name in names.split(','))};"
    match = _INSTRUCTION.match(text)
    if match is None:
        raise EmulatorUnsupportedError(f"the emulator does not stand in for the PTX {text!r}")
    negated, predicate, name, rest = match.groups()
    guard = f"if ({negated}{predicate}) " if predicate else ""
    if name in ("bra", "bra.uni"):
        return f"{guard}goto {rest.strip().removesuffix('%=')};"
    if call := family_call(name, [_whole(part.strip(), operands) for part in _split(rest, ",") if part.strip()]):
        return f"{guard}{{ {call} }}"
    values = [_value(part, operands) for part in _flat(rest)]
    if name.startswith("setp."):
        return f"{guard}{values[0]} = {values[1]} {_comparison(name)} {values[2]};"
    return f"{guard}emu_ptx::{re.sub(r'[.:]', '_', name)}({', '.join(values)});"


def _comparison(name: str) -> str:
    parts = name.split(".")
    if len(parts) != 3 or parts[1] not in _COMPARISONS:
        raise EmulatorUnsupportedError(f"the emulator does not stand in for the PTX instruction {name!r}")
    return _COMPARISONS[parts[1]]


def _flat(rest: str) -> list[str]:
    """Return the operands, those in braces one by one."""
    parts = [part.strip() for part in _split(rest, ",") if part.strip()]
    return [
        inner.strip() for part in parts for inner in (part[1:-1].split(",") if part.startswith("{") else [part])
    ]  # fmt: skip


def _whole(text: str, operands: list[_Operand]) -> str:
    """Return an operand as `family_call` takes it: lists stay in braces, and addresses become pointers."""
    if text.startswith("{"):
        return "{" + ", ".join(_value(item, operands) for item in _flat(text)) + "}"
    if not text.startswith("["):
        return _value(text, operands)
    address, *start = (part.strip() for part in _split(text[1:-1], ","))
    if start:
        return f"emu_box({_value(f'[{address}]', operands)}, {_whole(start[0], operands)})"
    return f"emu_pointer({_value(text, operands)})"


def _value(text: str, operands: list[_Operand]) -> str:
    if text.startswith("["):
        return _address(text, operands)
    text = _REFERENCE.sub(lambda match: f"({_referred(match, operands).expression})", text)
    return _SPECIAL.sub(lambda match: f"emu_registers::{match[1].replace('.', '_')}()", text)


def _referred(match: re.Match[str], operands: list[_Operand]) -> _Operand:
    return operands[int(match[1])] if match[1] else next(o for o in operands if o.name == match[2])


def _address(text: str, operands: list[_Operand]) -> str:
    """Return an address (an operand or a register, plus a constant) as a number in shared memory or as a pointer."""
    base, _, offset = (part.strip() for part in text[1:-1].partition("+"))
    match = _REFERENCE.fullmatch(base)
    if match is None and not base.isidentifier():
        raise EmulatorUnsupportedError(f"the emulator does not stand in for the PTX address {text!r}")
    operand = _referred(match, operands) if match else _Operand(base, "", base)
    expression = f"({operand.expression}) + ({_value(offset, operands)})" if offset else operand.expression
    if match is None:
        return f"emu_register_address({expression})"
    if "r" in operand.constraint:
        return f"uint32_t({expression})"
    return f"emu_address({f'uint64_t{expression}' if offset else expression})"
