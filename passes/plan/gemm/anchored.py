"""A group around a contraction, as schedulers and templates see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.blocks import BlockFormat
from tilestitch.compiler.ir.types import HALVES
from tilestitch.passes.plan.parts import MATMULS, Roles
from tilestitch.passes.plan.roles import roles_of
from tilestitch.passes.plan.view import GroupView


@dataclass(frozen=True)
class AnchoredGroup:
    """A group with an anchor; `outputs` are its non-empty outputs."""

    nodes: tuple[Node, ...]
    roles: Roles
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @staticmethod
    def of(view: GroupView, roles: Roles | None = None) -> AnchoredGroup:
        """Return the view of a legal group; `roles` are its roles, if already known."""
        found = roles or roles_of(view.nodes, view.outputs, view.name)
        assert isinstance(found, Roles), found
        return AnchoredGroup(view.nodes, found, view.inputs, view.stored)

    @property
    def anchor(self) -> Node:
        assert self.roles.anchor is not None
        return self.roles.anchor

    @property
    def result(self) -> Value:
        return self.anchor.outputs[0]

    @property
    def is_matmul(self) -> bool:
        return self.anchor.op in MATMULS

    @property
    def blocks(self) -> BlockFormat | None:
        """The storage format of a blockwise-quantised right operand; None of others."""
        return BlockFormat.of(self.anchor.attrs) if self.anchor.op == "block_matmul" else None

    @property
    def acc_dtype(self) -> str:
        """The accumulator dtype: half floats are accumulated in float32."""
        return "float32" if self.result.dtype in HALVES else self.result.dtype

    @property
    def tf32(self) -> bool:
        """Whether the operands of the anchor may be rounded to TF32."""
        return self.anchor.attrs.get("precision") == "tf32"

    def read_before(self) -> tuple[Value, ...]:
        """Return the group inputs that the anchor's operands are computed from."""
        return self._read(self.anchor.inputs)

    def read_after(self) -> tuple[Value, ...]:
        """Return the group inputs that its outputs read besides the anchor's result."""
        return self._read(self.outputs)

    def _read(self, roots: Sequence[Value]) -> tuple[Value, ...]:
        members = {v: node for node in self.nodes for v in node.outputs}
        seen: set[Value] = set()
        stack = list(roots)
        while stack:
            value = stack.pop()
            if value in seen or value is self.result:
                continue
            seen.add(value)
            if value in members:
                stack.extend(members[value].inputs)
        return tuple(v for v in self.inputs if v in seen)
