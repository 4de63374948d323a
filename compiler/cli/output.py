"""What commands print: their answer on standard output, as text or with --json as one object; progress and errors on
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
    """OutputError where standard output cannot be written, but for a closed pipe: its reader has had enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror}; send it elsewhere") from error


def say(text: str = "") -> None:
    """The answer of a command, as text for people."""
    with _writing():
        print(text)


def warn(text: str) -> None:
    """What the user should know before the answer is of use, on standard error."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def note(text: str) -> None:
    """What the user may want to know, on standard error."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def give(value: Any) -> None:
    """The result of a command with --json."""
    with _writing():
        json.dump(value, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")


def describe_sizes(symbols: Sequence[Mapping[str, Any]]) -> str:
    """Sizes that a specialisation is for, as `batch 1..64, length 1.. (default)`."""
    return ", ".join(_range(**symbol) for symbol in symbols)


def _range(name: str, low: int, high: int, default: bool) -> str:
    from tilestitch.runtime.symbols import NO_LIMIT

    sizes = str(low) if low == high else f"{low}..{'' if high >= NO_LIMIT else high}"
    return f"{name} {sizes}{' (default)' if default else ''}"


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Columns of equal width; numbers to the right."""
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

    An instance is what `compile_model(progress=…)` takes: it is called with a stage, and how much of it is done.
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
