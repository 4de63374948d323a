"""One measurement of the queue: what it is, how it is made, and how long it may take."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIMIT_S = 25.0
"""What a case may take unless it says otherwise; then its process is killed."""

LONG_S = 240.0
"""For cases in which another compiler tunes."""


STAND_IN_BYTES = 16 << 20


@dataclass(frozen=True)
class Case:
    """`run` measures in a process of its own and returns the row's values, or raises.

    key: what is measured, as JSON; together with `part` it names the case. needs: packages beside numpy and
    cuda-bindings. fingerprint: of what is measured; with another one, an earlier result is of something else.
    """

    part: str
    key: Mapping[str, Any]
    run: Callable[[], Mapping[str, Any]] = field(compare=False)
    limit_s: float = LIMIT_S
    needs: tuple[str, ...] = ()
    fingerprint: str = ""

    @property
    def name(self) -> str:
        return f"{self.part} {json.dumps(self.key)}"


@dataclass(frozen=True)
class Setup:
    """What parts make their cases from: the unpacked bundle.

    executes: kernels do what they should; not so on a stand-in for the driver, where results are not judged.
    """

    bundle: Path
    executes: bool = True

    def listing(self, name: str) -> list[dict[str, Any]]:
        """The entries of `NAME.json` in the bundle; none where the bundle has no such part."""
        path = self.bundle / f"{name}.json"
        found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
        return found

    def kernels(self, source: str) -> bytes:
        """The machine code of `kernels/SOURCE.cu`."""
        return (self.bundle / "kernels" / f"{source}.cubin").read_bytes()

    def room(self, nbytes: int) -> int:
        """So many bytes; fewer where device memory is the host's."""
        return nbytes if self.executes else min(nbytes, STAND_IN_BYTES)

    def judged(self, error: float, limit: float) -> dict[str, Any]:
        """The values of a row about a result. Raises `WrongResult` beyond the limit, for NaN too."""
        if not self.executes:
            return {"relative_error": None, "right": None}
        if not error <= limit:
            raise WrongResult(f"relative error {error:.3g} exceeds {limit}")
        return {"relative_error": error, "right": True}


class WrongResult(Exception):
    """A kernel computed something else than its reference."""
