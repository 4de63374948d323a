"""Records of measured kernels as text, JSON lines, and from files in either form."""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.records import Record, Records


def export_records(records: Iterable[Record], path: str | Path) -> int:
    """Write one JSON object per line, compressed if the name ends in .gz; return their number."""
    lines = [json.dumps(record.to_json(), separators=(",", ":"), sort_keys=True) + "\n" for record in records]
    data = "".join(lines).encode()
    Path(path).write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)
    return len(lines)


def import_records(path: str | Path) -> Iterator[Record]:
    """Yield the records of a text file. Raises MeasurementError, naming the line, for invalid ones."""
    try:
        data = Path(path).read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise MeasurementError(f"{path} cannot be read as JSON lines: {error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        try:
            yield Record.from_json(json.loads(line))
        except (json.JSONDecodeError, RecursionError) as error:
            raise MeasurementError(f"{path}, line {number}: no JSON ({error}); export the records again") from None
        except MeasurementError as error:
            raise MeasurementError(f"{path}, line {number}: {error}") from None


def read_records(path: str | Path) -> list[Record]:
    """Return the records of a file in either form."""
    with open(path, "rb") as file:
        is_database = file.read(6) == b"SQLite"
    if not is_database:
        return list(import_records(path))
    with Records.open(path, frozen=True) as records:
        return list(records)
