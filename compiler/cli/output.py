"""Output of commands: the answer on standard output, as text or with --json as one object; progress and errors on
standard error.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilestitch.compiler.cli.errors import OutputError


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Raise OutputError where standard output cannot be written, except for a closed pipe, whose reader has had
    enough.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror}; send it elsewhere") from error


def say(text: str = "") -> None:
    """Print the answer of a command as text."""
    with _writing():
        print(text)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Print a remark on standard error."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def give(value: Any) -> None:
    """Print the result of a command with --json."""
    with _writing():
        json.dump(value, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")


LEFT_OPEN = "open dimensions are left to the host, for not all sizes can be compiled"
"""What `compile` and `explain` say where no kernels cover all sizes, before the reason."""


def describe_sizes(symbols: Sequence[Mapping[str, Any]]) -> str:
    """Return the sizes of a specialisation, as `batch 1..64, length 1.. (default)`."""
    return ", ".join(_range(**symbol) for symbol in symbols)


def _range(name: str, low: int, high: int, default: bool) -> str:
    from tilestitch.runtime.symbols import NO_LIMIT

    sizes = str(low) if low == high else f"{low}..{'' if high >= NO_LIMIT else high}"
    return f"{name} {sizes}{' (default)' if default else ''}"


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Return rows as columns of equal width; numbers right-aligned."""
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(header), *texts]) for column in range(len(header))]
    right = [all(isinstance(row[column], (int, float)) for row in rows) for column in range(len(header))]
    lines = []
    for line in [list(header), *texts]:
        cells = [text.rjust(width) if flag else text.ljust(width) for text, width, flag in zip(line, widths, right)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


class Progress:
    """One line that is rewritten: `stage n/m detail`. Silent unless standard error is a terminal.

    For `compile_model(progress=…)`: called with a stage, and how much of it is done.
    """

    def __init__(self) -> None:
        self._visible = sys.stderr.isatty()
        self._width = 0

    def __call__(self, stage: str, done: int = 0, total: int = 0) -> None:
        if not self._visible:
            return
        text = f"{stage} {done}/{total}" if total else stage
        print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
        self._width = len(text)

    def clear(self) -> None:
        if self._visible and self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)
            self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
