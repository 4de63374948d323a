"""Measured kernels: a file of records (SQLite), and the latency model that looks them up.

A record describes one kernel as compiled (its structure and schedule) on one machine (device, driver, versions of the
compilers). When a kernel is measured again, the lower time is kept: other load on a machine makes kernels slower,
nothing makes them faster.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from .errors import MeasurementError
from .facts import KernelFacts
from .facts_json import facts_from_json, facts_key, facts_to_json
from .protocol import AnyDevice, LatencyModel, Prediction

FORMAT = 1


@dataclass(frozen=True)
class Machine:
    """The machine of measurements. device: a processor with its vector unit and threads, or a GPU; driver: of a GPU;
    for a CPU its operating system; versions: of the tools that generate machine code.
    """

    device: str
    driver: str
    versions: str

    def __str__(self) -> str:
        return f"{self.device}, {self.driver}, {self.versions}"


@dataclass(frozen=True)
class Record:
    """One measured kernel. structure: a digest of its nodes and operands without their names; schedule: its choices as
    JSON text; rounds: number of measurements, of which latency_us is the least; model: its origin.
    """

    machine: Machine
    structure: str
    schedule: str
    kernel: KernelFacts
    latency_us: float
    rounds: int
    model: str

    def __post_init__(self) -> None:
        if not (isfinite(self.latency_us) and self.latency_us > 0 and self.rounds >= 1):
            raise MeasurementError(
                f"a record of {self.model} says {self.latency_us} us of {self.rounds} rounds; measure it again"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.machine), "structure": self.structure, "schedule": self.schedule,
            "kernel": facts_to_json(self.kernel), "latency_us": self.latency_us, "rounds": self.rounds,
            "model": self.model,
        }  # fmt: skip

    @staticmethod
    def from_json(data: Any) -> Record:
        """Return the record in JSON data. Raises MeasurementError unless `data` is as `to_json` writes it."""
        wanted = {*(f.name for f in fields(Machine)), *(f.name for f in fields(Record))} - {"machine"}
        if not isinstance(data, dict) or set(data) != wanted:
            raise MeasurementError(f"a record has the fields {', '.join(sorted(wanted))}; export the records again")
        try:
            return Record(
                Machine(*(str(data[f.name]) for f in fields(Machine))), str(data["structure"]), str(data["schedule"]),
                facts_from_json(data["kernel"]), float(data["latency_us"]), int(data["rounds"]), str(data["model"]),
            )  # fmt: skip
        except MeasurementError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise MeasurementError(f"a record has a field of another type: {error}; export the records again") from None


class Records:
    """A file of records. Several processes may append to it."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection

    @staticmethod
    def open(path: str | Path, *, frozen: bool = False) -> Records:
        """Open a file of records. frozen: the file must exist, and is not changed. Raises MeasurementError if it is no
        file of records.
        """
        path = Path(path)
        if frozen and not path.is_file():
            raise MeasurementError(f"{path} is not there; measure kernels with `tilestitch tune --save-records`")
        try:
            name = f"{path.absolute().as_uri()}?mode={'ro' if frozen else 'rwc'}"
            connection = sqlite3.connect(name, uri=True, timeout=60)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not frozen and not version and not tables:
                connection.executescript(SCHEMA)
                version = FORMAT
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise MeasurementError(f"{path} is no file of records: {error}; name another file") from None
        if version != FORMAT:
            raise MeasurementError(f"{path} has records of format {version}, not {FORMAT}; name another file")
        return Records(path, connection)

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def check_writable(self) -> None:
        """Raise MeasurementError if records cannot be added."""
        try:
            self._connection.execute("DELETE FROM records WHERE 0")
            self._connection.rollback()
        except sqlite3.Error as error:
            raise MeasurementError(f"{self.path} takes no records: {error}; name a file that may be written") from None

    def add(self, records: Iterable[Record]) -> None:
        rows = [
            (*asdict(r.machine).values(), r.structure, r.schedule, facts_key(r.kernel),
             json.dumps(facts_to_json(r.kernel), separators=(",", ":")), r.latency_us, r.rounds, r.model)
            for r in records
        ]  # fmt: skip
        try:
            with self._connection:
                self._connection.executemany(INSERT, rows)
        except sqlite3.Error as error:
            raise MeasurementError(f"{self.path} takes no records: {error}; name a file that may be written") from None

    def __iter__(self) -> Iterator[Record]:
        """Yield all records, in an order that depends only on them."""
        order = "device, driver, versions, structure, schedule"
        query = f"SELECT {order}, kernel, latency_us, rounds, model FROM records ORDER BY {order}"
        for row in self._rows(query):
            try:
                yield _record(*row)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                what = f"{self.path} has a record that is none ({error})"
                raise MeasurementError(f"{what}; import its JSON lines anew") from None

    def __len__(self) -> int:
        ((count,),) = self._rows("SELECT count(*) FROM records")
        return int(count)

    def machines(self) -> list[Machine]:
        query = "SELECT DISTINCT device, driver, versions FROM records ORDER BY device, driver, versions"
        return [Machine(*row) for row in self._rows(query)]

    def known(self) -> set[tuple[str, str, Machine]]:
        """Return the structure, schedule and machine of every record."""
        query = "SELECT structure, schedule, device, driver, versions FROM records"
        return {(structure, schedule, Machine(*rest)) for structure, schedule, *rest in self._rows(query)}

    def _rows(self, query: str) -> Iterable[Sequence[Any]]:
        try:
            return self._connection.execute(query).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise MeasurementError(f"{self.path} cannot be read: {error}; import its JSON lines anew") from None


def _record(
    device: str,
    driver: str,
    versions: str,
    structure: str,
    schedule: str,
    kernel: Any,
    us: Any,
    rounds: Any,
    model: str,
) -> Record:
    """Return the record in a row of the file. Raises ValueError and its like for invalid rows: SQLite holds any type in
    any column.
    """
    machine = Machine(device, driver, versions)
    return Record(machine, structure, schedule, facts_from_json(json.loads(kernel)), float(us), int(rounds), model)


SCHEMA = f"""
CREATE TABLE records (
  device TEXT, driver TEXT, versions TEXT, structure TEXT, schedule TEXT, facts TEXT, kernel TEXT,
  latency_us REAL, rounds INTEGER, model TEXT,
  PRIMARY KEY (structure, schedule, device, driver, versions)
) WITHOUT ROWID;
PRAGMA user_version = {FORMAT};
"""
INSERT = """
INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
  latency_us = min(latency_us, excluded.latency_us), rounds = rounds + excluded.rounds,
  facts = excluded.facts, kernel = excluded.kernel
"""


# -- as a latency model ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedModel:
    """Measured latencies where available, and another model's predictions for all other kernels."""

    measured_us: dict[str, float]
    otherwise: LatencyModel

    @property
    def name(self) -> str:
        return f"records+{self.otherwise.name}"

    @property
    def judges_schedules(self) -> Mapping[str, float]:
        found: Mapping[str, float] = getattr(self.otherwise, "judges_schedules", {})
        return found

    @property
    def least_gain(self) -> float | None:
        found: float | None = getattr(self.otherwise, "least_gain", None)
        return found

    @staticmethod
    def of(records: Iterable[Record], otherwise: LatencyModel) -> RecordedModel:
        """Return the model of records, all from one machine."""
        found: dict[str, float] = {}
        for record in records:
            key = facts_key(record.kernel)
            found[key] = min(record.latency_us, found.get(key, record.latency_us))
        return RecordedModel(found, otherwise)

    def predict(self, batch: Sequence[KernelFacts], device: AnyDevice) -> list[Prediction]:
        predicted = self.otherwise.predict(batch, device)
        return [self._measured(kernel, given) for kernel, given in zip(batch, predicted, strict=True)]

    def _measured(self, kernel: KernelFacts, predicted: Prediction) -> Prediction:
        us = self.measured_us.get(facts_key(kernel))
        return predicted if us is None else Prediction(us, us, us, predicted.bound)
