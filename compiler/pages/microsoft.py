"""Generator of docs/microsoft.md, the reference of com.microsoft."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilestitch.compiler.frontend.converters.microsoft import FAMILIES
from tilestitch.compiler.frontend.converters.microsoft.operator import Operator

INTRODUCTION = """# Operators of ONNX Runtime

ONNX Runtime's optimisers, its quantisers and exporters of language models write operators of the domain
`com.microsoft`. Those below are compiled: each becomes [primitives](primitives.md), as an operator of ONNX does, so it
fuses with what is around it. This page is generated from the converters' own tables:
`python -m tilestitch.compiler.pages.microsoft > docs/microsoft.md`.

What a node has beyond the operands, outputs and attributes listed here is refused by name, and so is what is listed as
refused. Operands and outputs in brackets may be left out. An attribute with a value may have no other.
"""

CLOSE = """
Into ONNX's own domain, ONNX Runtime's tools write `SimplifiedLayerNormalization`, and `LayerNormalization` for operator
sets before 17, which ONNX's checker does not know. Both are compiled.
"""

DIFFERENCES = """
## Differences from ONNX Runtime

Artifacts compute what an operator's documentation defines. Arithmetic in float64 or in integers shows that ONNX Runtime
1.32 (on CPUs, without optimisations) does not, in these cases:

| operator | what ONNX Runtime does |
| --- | --- |
"""
FAULTS = {
    "`MatMulNBits` with `g_idx`":
        "gives unrelated numbers for 2 bits, and for 4 bits with packed zero points. Those with float ones or none are "
        "right; 8 bits are refused",
    "`MatMulIntegerToFloat`": "multiplies `bias` by `b_scale`, if that has an entry for each column and B is batched",
    "`QLinearSoftmax`": "drops fractions of codes, so that a tenth of them are one too low",
    "`QLinearAveragePool` with `ceil_mode`":
        "divides by the elements of a window beyond the padding, too, where `count_include_pad` is 1",
    "`QMoE` of 8 bits in blocks": "rounds tokens to 8 bits: errors are up to 0.01 of the largest result",
    "`MoE`, `QMoE`": "choose the last of experts of equal probability; artifacts the first, as `TopK` does",
    "`DynamicQuantizeLSTM`": "rounds states by the range of each thread's sequences; artifacts by that of all",
    "`NonZero` of a scalar": "gives one row of indices, (1, N), where ONNX's text has none, (0, N)",
    "`LSTM`, `GRU`, `RNN`": "end a sequence of length 0 with states of 0; artifacts with its initial states",
    "`GridSample`, `cubic` with `border`":
        "continues the image beyond its border, as PyTorch does, and interpolates there; the definition and ONNX's "
        "reference give places beyond the border the value at the border",
    "`QuantizeLinear` of float16": "divides in float32, not in the dtype of the scale: codes of ties differ by one",
}  # fmt: skip
"""Operators, and results of ONNX Runtime that are not as defined."""


def page() -> str:
    sections = [_section(title, family) for title, family in FAMILIES.items()]
    faults = [f"| {operator} | {fault} |" for operator, fault in FAULTS.items()]
    return "\n".join([INTRODUCTION.strip(), *sections, CLOSE.rstrip(), DIFFERENCES.rstrip(), *faults, ""])


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
