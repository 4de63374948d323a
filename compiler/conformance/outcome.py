"""Outcome of one case, and the recognition of outcomes with the same cause."""

import re
from dataclasses import asdict, dataclass
from typing import Any

from tilestitch.compiler.conformance.compare import Mismatch

PASS = "pass"
UNSUPPORTED_EXIT_CODE = 2


@dataclass(frozen=True)
class Outcome:
    """`status` is pass, unsupported, error, wrong, crash or timeout; `reason` is one line, empty for a pass."""

    name: str
    kind: str
    operators: str
    status: str
    reason: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.status == PASS

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": round(self.seconds, 3)}


def classify(error: BaseException) -> tuple[str, str]:
    """Return status and one-line reason of a failure."""
    if isinstance(error, Mismatch):
        return "wrong", str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
    if isinstance(error, MemoryError) or not lines:
        return "error", line
    if type(error).__name__ == "InternalError" and len(lines) > 1:  # TVM puts a trace first and the message last
        line = f"InternalError: {lines[-1]}"
    exit_code = getattr(error, "exit_code", None)
    if exit_code is not None:  # ours: written to be read as a whole
        line = f"{type(error).__name__}: {' '.join(lines)}"
    return "unsupported" if exit_code == UNSUPPORTED_EXIT_CODE else "error", line[:400]


def cause(outcome: Outcome) -> str:
    """Return the reason without what varies between cases: quoted names, numbers, compared values."""
    text = outcome.reason
    if outcome.status == "wrong":
        text = re.sub(r"^(\w+): .*", r"wrong \1", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", text)
    text = re.sub(r"\[[^\]]*\]", "[…]", text)
    text = re.sub(r"_[0-9a-f]{8,}\b", "_#", text)  # hashes in the names of kernels
    text = re.sub(r"(?<![A-Za-z_])-?\d+(\.\d+)?(e-?\d+)?", "#", text)
    return f"{outcome.status}: {text}"[:160]
