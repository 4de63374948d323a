"""Files of measured kernels: what goes in comes out, in both forms, and what is none is refused."""

from __future__ import annotations

import gzip
import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.cost_model.kernels import kernels
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.devices import CpuDevice
from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.facts import Arithmetic, Choices, KernelFacts, Part, Traffic, kernel_of
from tilestitch.cost_model.facts_json import facts_from_json, facts_key, facts_to_json
from tilestitch.cost_model.records import Machine, Record, RecordedModel, Records
from tilestitch.cost_model.training.record_files import export_records, import_records, read_records

HERE = Machine("a CPU (avx2, 1 thread)", "Linux 6", "tilestitch 1, TVM 1")
THERE = replace(HERE, device="another CPU")


def kernel(elements: int = 1000, name: str = "x") -> KernelFacts:
    read, written = (Traffic(value, 4 * elements, 4 * elements) for value in (name, "y"))
    return kernel_of(Part(
        "injective", "float32", (read,), (written,),
        (Arithmetic("alu", "float32", elements),), elements, template="cpu_loops",
        choices=Choices(("schedule.rows",), (4,)),
    ))  # fmt: skip


def record(structure: str = "s", us: float = 3.5, machine: Machine = HERE, schedule: str = "{}") -> Record:
    return Record(machine, structure, schedule, kernel(), us, 5, "model")


@given(kernels)
@settings(max_examples=60)
def test_kernels_are_written_and_read_back(kernel: KernelFacts) -> None:
    assert facts_from_json(facts_to_json(kernel)) == kernel


def test_kernels_of_other_names_have_the_same_key_and_other_kernels_another() -> None:
    assert facts_key(kernel(name="x")) == facts_key(kernel(name="z"))
    assert facts_key(kernel(1000)) != facts_key(kernel(1001))


@pytest.mark.parametrize("data", [None, [], [{}], [{"stages": [], "tie": "barrier", "blocks": 0}], [{"stages": 3}],
                                  [{"stages": [[{"kind": "x"}]], "tie": "", "blocks": 0}]])  # fmt: skip
def test_what_is_no_kernel_is_refused(data: object) -> None:
    with pytest.raises(MeasurementError, match="measure again"):
        facts_from_json(data)


def test_records_are_kept_by_structure_schedule_and_machine(tmp_path: Path) -> None:
    given = [record("a"), record("b"), record("a", machine=THERE), record("a", schedule="[]")]
    with Records.open(tmp_path / "r.db") as records:
        records.add(given)
    with Records.open(tmp_path / "r.db", frozen=True) as records:
        assert len(records) == 4
        assert set(records) == set(given)
        assert records.machines() == [HERE, THERE]


def test_a_file_that_takes_no_records_is_known_before(tmp_path: Path) -> None:
    with Records.open(tmp_path / "r.db") as records:
        records.check_writable()
        records.add([record()])
    with Records.open(tmp_path / "r.db", frozen=True) as records, pytest.raises(MeasurementError, match="no records"):
        records.check_writable()


def test_the_same_kernel_measured_again_keeps_the_lower_time(tmp_path: Path) -> None:
    with Records.open(tmp_path / "r.db") as records:
        for us in (4.0, 3.0, 5.0):
            records.add([record(us=us)])
        (kept,) = records
    assert (kept.latency_us, kept.rounds) == (3.0, 15)


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_the_text_form_says_the_same_in_the_same_bytes(name: str, tmp_path: Path) -> None:
    given = [record("a"), record("b", machine=THERE)]
    assert export_records(given, tmp_path / name) == 2
    export_records(given, tmp_path / f"again{name}")
    assert list(import_records(tmp_path / name)) == given == read_records(tmp_path / name)
    assert (tmp_path / name).read_bytes() == (tmp_path / f"again{name}").read_bytes()


def test_both_forms_are_read_as_the_same_records(tmp_path: Path) -> None:
    with Records.open(tmp_path / "r.db") as records:
        records.add([record("b"), record("a")])
        export_records(records, tmp_path / "r.jsonl")
    assert read_records(tmp_path / "r.db") == read_records(tmp_path / "r.jsonl")


@pytest.mark.parametrize("us", [0.0, -1.0, float("nan"), float("inf")])
def test_no_kernel_takes_no_time(us: float) -> None:
    with pytest.raises(MeasurementError, match="measure it again"):
        record(us=us)


@pytest.mark.parametrize("text", ["{", "{}", "[]", "null", '{"device": 3}'])
def test_a_line_that_is_no_record_is_named(text: str, tmp_path: Path) -> None:
    export_records([record()], tmp_path / "r.jsonl")
    with open(tmp_path / "r.jsonl", "a", encoding="utf-8") as file:
        file.write(text + "\n")
    with pytest.raises(MeasurementError, match="line 2"):
        list(import_records(tmp_path / "r.jsonl"))


def test_files_of_something_else_are_refused_and_left_alone(tmp_path: Path) -> None:
    text, other, cut = tmp_path / "text", tmp_path / "other.db", tmp_path / "cut.gz"
    text.write_text("not a database, and long enough not to be taken for an empty one")
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE things (name TEXT)")
    cut.write_bytes(gzip.compress(b"{}" * 100)[:20])
    for path in (text, other):
        with pytest.raises(MeasurementError, match="name another file"):
            Records.open(path)
    with pytest.raises(MeasurementError, match="cannot be read"):
        list(import_records(cut))
    with sqlite3.connect(other) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("things",)]


@pytest.mark.parametrize(
    "change",
    ["latency_us = NULL", "latency_us = 'soon'", "latency_us = 9e999", "latency_us = -1", "rounds = 'many'",
     "rounds = 0", "kernel = '{'", "kernel = '[{}]'", "kernel = NULL", "kernel = x'ff00'",
     f"kernel = '{'[' * 100_000}'"],
)  # fmt: skip
def test_a_row_that_is_no_record_is_refused_with_its_file(change: str, tmp_path: Path) -> None:
    """SQLite holds any type in any column, and NULL for NaN."""
    with Records.open(tmp_path / "r.db") as records:
        records.add([record()])
    with sqlite3.connect(tmp_path / "r.db") as connection:
        connection.execute(f"UPDATE records SET {change}")
    with pytest.raises(MeasurementError, match=r"r\.db has a record that is none"):
        read_records(tmp_path / "r.db")


@pytest.mark.parametrize("name", ["r.db", "r.jsonl.gz"])
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    """Wherever bytes are changed or missing: what is read is records, or nothing."""
    rng, path, refused = random.Random(0), tmp_path / name, 0
    records = [record(str(number)) for number in range(20)]
    if name.endswith(".db"):
        with Records.open(path) as file:
            file.add(records)
    else:
        export_records(records, path)
    whole = path.read_bytes()
    for turn in range(80):
        damaged = bytearray(whole[: rng.randrange(16, len(whole))] if turn % 4 == 0 else whole)
        for _ in range(rng.randrange(1, 8)):
            damaged[rng.randrange(8, len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            read_records(path)
        except MeasurementError:
            refused += 1
    assert refused > 60


def test_frozen_records_must_be_there_and_do_not_change(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="is not there"):
        Records.open(tmp_path / "none.db", frozen=True)
    assert not (tmp_path / "none.db").exists()
    Records.open(tmp_path / "r.db").close()
    with (
        Records.open(tmp_path / "r.db", frozen=True) as records,
        pytest.raises(MeasurementError, match="may be written"),
    ):
        records.add([record()])


def test_a_measured_kernel_takes_what_was_measured_whatever_its_values_are_called() -> None:
    model = RecordedModel.of([record(us=7.0), record(us=6.0)], AnalyticalModel())
    cpu = CpuDevice()
    known, other = model.predict([kernel(name="z"), kernel(2000)], cpu)
    assert known.latency_us == 6.0
    assert other == AnalyticalModel().predict([kernel(2000)], cpu)[0]
