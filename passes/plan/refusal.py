"""Refusals as data: what was not done, by which rule, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tilestitch.passes.errors import PlanError
from tilestitch.runtime.jsonfields import Fields

Number: TypeAlias = int | float


@dataclass(frozen=True)
class WhyNot:
    """A refusal: `subject` (what was not done), `rule` (what refused), `reason` in words, and its numbers."""

    subject: str
    rule: str
    reason: str
    numbers: Mapping[str, Number] = field(default_factory=dict)

    def __str__(self) -> str:
        figures = ", ".join(f"{k}={v}" for k, v in self.numbers.items())
        return f"{self.subject}: {self.reason}{f' ({figures})' if figures else ''} [{self.rule}]"

    def to_json(self) -> dict[str, Any]:
        return {"subject": self.subject, "rule": self.rule, "reason": self.reason, "numbers": dict(self.numbers)}

    @staticmethod
    def from_json(data: Any, where: str = "refusal") -> WhyNot:
        fields = Fields(data, where)
        numbers = fields.mapping("numbers")
        if not all(isinstance(v, (int, float)) for v in numbers.values()):
            raise PlanError(f"{where}.numbers holds something that is no number")
        why = WhyNot(fields.string("subject"), fields.string("rule"), fields.string("reason"), numbers)
        fields.done()
        return why
