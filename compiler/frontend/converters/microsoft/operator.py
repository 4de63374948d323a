"""The supported operands, outputs and attributes of com.microsoft nodes, and refusal of all others.

ONNX's checker knows nothing of this domain, so those that a converter honours are declared next to it and checked
before it runs: others are refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...context import Context, Converted, Converter, Versioned

REMEDY = "export or optimise the model without it, or take the model as it was before ONNX Runtime's tools"


@dataclass(frozen=True)
class Operator:
    """A converter and what it honours.

    `operands` and `outputs` name positions, in order; `?` ends the name of one that may be left out, `*` that of the
    last one that may be repeated. `only`: attributes that must have the value given here. `refused`: known operands and
    outputs that are not supported, and why; an output that the model does not use is no matter.
    """

    convert: Converter
    operands: str
    attributes: str = ""
    outputs: str = "Y"
    only: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def versions(self) -> tuple[Versioned, ...]:
        """Return the entries in a table of converters: all operators of this domain have version 1."""
        return ((1, self),)

    def __call__(self, ctx: Context) -> Converted:
        self._check_operands(ctx)
        self._check_outputs(ctx)
        self._check_attributes(ctx)
        return self.convert(ctx)

    def output_names(self) -> tuple[str, ...]:
        return tuple(name.rstrip("?") for name in self.outputs.split())

    def _check_operands(self, ctx: Context) -> None:
        stated = self.operands.split()
        if len(ctx.inputs) > len(stated) and not stated[-1].endswith("*"):
            raise ctx.fail(
                f"it has {len(ctx.inputs)} operands, but the operator takes {len(stated)}; correct the model"
            )
        for index, name in enumerate(stated):
            given = ctx.optional(index) is not None
            if not given and not name.endswith(("?", "*")):
                raise ctx.fail(f"operand {name!r} is missing; correct the model")
            self._check_refused(ctx, "operand", name.rstrip("?*"), given)

    def _check_outputs(self, ctx: Context) -> None:
        names = self.output_names()
        if ctx.num_outputs > len(names):
            raise ctx.fail(f"it has {ctx.num_outputs} outputs, but the operator has {len(names)}; correct the model")
        for index, name in enumerate(names):
            self._check_refused(ctx, "output", name, ctx.reads_output(index))

    def _check_refused(self, ctx: Context, kind: str, name: str, given: bool) -> None:
        if given and name in self.refused:
            raise ctx.fail(f"{kind} {name!r} is not supported: {self.refused[name]}; {REMEDY}")

    def _check_attributes(self, ctx: Context) -> None:
        honoured = self.attributes.split()
        for attribute in ctx.node.attribute:
            if attribute.name in honoured:
                continue
            value = ctx.attr(attribute.name)
            if attribute.name not in self.only:
                raise ctx.fail(f"attribute {attribute.name!r} (here {value!r}) is not supported; {REMEDY}")
            if value != self.only[attribute.name]:
                only = self.only[attribute.name]
                raise ctx.fail(f"attribute {attribute.name!r} is {value!r}; only {only!r} is supported; {REMEDY}")
