"""Generator of docs/microsoft.md, the reference of com.microsoft."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from . import FAMILIES
from .operator import Operator

INTRODUCTION = """# Operators of ONNX Runtime

ONNX Runtime's optimisers, its quantisers and exporters of language models write operators of the domain
`com.microsoft`. Those below are compiled: each becomes [primitives](primitives.md), as an operator of ONNX does, so it
fuses with what is around it. This page is generated from the converters' own tables:
`python -m tilestitch.compiler.frontend.converters.microsoft.document > docs/microsoft.md`.

What a node has beyond the operands, outputs and attributes listed here is refused by name, and so is what is listed as
refused. Operands and outputs in brackets may be left out. An attribute with a value may have no other.
"""

CLOSE = """
Into ONNX's own domain, ONNX Runtime's tools write `SimplifiedLayerNormalization`, and `LayerNormalization` for operator
sets before 17, which ONNX's checker does not know. Both are compiled.
"""


def page() -> str:
    sections = [_section(title, family) for title, family in FAMILIES.items()]
    return "\n".join([INTRODUCTION.strip(), *sections, CLOSE.rstrip(), ""])


def _section(title: str, family: Mapping[str, Operator]) -> str:
    rows = [_row(name, operator) for name, operator in family.items()]
    head = [
        "",
        f"## {title}",
        "",
        "| operator | operands | outputs | attributes | refused |",
        "| --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*head, *rows])


def _row(name: str, operator: Operator) -> str:
    attributes = [f"`{a}`" for a in operator.attributes.split()]
    attributes += [f"`{a}` = {value!r}".replace("'", "") for a, value in operator.only.items()]
    refused = [f"`{name}`: {reason}" for name, reason in operator.refused.items()]
    operands, outputs = (_values(names.split(), operator) for names in (operator.operands, operator.outputs))
    return f"| `{name}` | {operands} | {outputs} | {', '.join(attributes)} | {'; '.join(refused)} |"


def _values(names: Iterable[str], operator: Operator) -> str:
    kept = [name for name in names if name.rstrip("?") not in operator.refused]
    return ", ".join(f"[{name[:-1]}]" if name.endswith("?") else name.replace("*", "…") for name in kept)


if __name__ == "__main__":
    print(page(), end="")
