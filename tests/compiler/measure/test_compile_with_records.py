"""Compiling with measured kernels: they take what they took, here or, frozen, anywhere; others are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.models import cnn
from tilestitch.compiler import compile_model
from tilestitch.compiler.errors import OptionError
from tilestitch.compiler.measure.__main__ import main
from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.records import Records
from tilestitch.cost_model.training.record_files import read_records


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    onnx.save(cnn(), folder / "cnn.onnx")
    few = ["--plans", "1", "--schedules", "1", "--rounds", "2"]
    assert main([str(folder / "cnn.onnx"), "--records", str(folder / "here.db"), *few]) == 0
    return folder / "here.db"


@pytest.fixture(scope="module")
def there(here: Path) -> Path:
    """The same kernels as another machine would have measured them: in ten nanoseconds each, so that the search finds
    none better.
    """
    path = here.with_name("there.db")
    with Records.open(path) as records:
        machine = replace(read_records(here)[0].machine, device="another CPU (avx512, 1 thread)")
        records.add(replace(record, machine=machine, latency_us=0.01) for record in read_records(here))
    return path


def predicted(**options: object) -> list[float]:
    explained = compile_model(cnn(), num_threads=1, **options).explain()  # type: ignore[arg-type]
    return [kernel["predicted_us"] for kernel in explained["kernels"]]


def test_kernels_take_what_they_took_on_this_machine(here: Path) -> None:
    measured = {round(record.latency_us, 3) for record in read_records(here)}
    assert {round(us, 3) for us in predicted(records=here)} <= measured
    assert not {round(us, 3) for us in predicted()} <= measured


def test_frozen_records_are_taken_whatever_machine_this_is(there: Path) -> None:
    assert set(predicted(records=there, frozen=True)) == {0.01}
    with pytest.raises(OptionError, match="no records of this machine"):
        compile_model(cnn(), num_threads=1, records=there)


def test_what_records_cannot_be_for_is_refused(here: Path, there: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="name their file with records"):
        compile_model(cnn(), frozen=True)
    with pytest.raises(OptionError, match="for CPUs"):
        compile_model(cnn(), "cuda:sm_90a", records=here)
    with pytest.raises(MeasurementError, match="is not there"):
        compile_model(cnn(), records=tmp_path / "none.db")
    with Records.open(tmp_path / "both.db") as records:
        records.add([*read_records(here), *read_records(there)])
    with pytest.raises(OptionError, match="records of 2 machines"):
        compile_model(cnn(), records=tmp_path / "both.db", frozen=True)
    Records.open(tmp_path / "empty.db").close()
    with pytest.raises(OptionError, match="records of 0 machines"):
        compile_model(cnn(), records=tmp_path / "empty.db", frozen=True)
