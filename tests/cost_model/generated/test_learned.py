"""The learned model of generated kernels: it learns what the laws do not say, and is never faster than hardware."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cost_model.generated.made import CPU, kernel, records
from tests.cost_model.kernels import kernels
from tilestitch.cost_model.analytical import AnalyticalModel
from tilestitch.cost_model.devices import find_device
from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.facts import KernelFacts, kernel_of
from tilestitch.cost_model.generated.features import derived
from tilestitch.cost_model.generated.model import LEAST_GAIN, SHIPPED, LearnedModel, load_learned, shipped
from tilestitch.cost_model.joined import listed_facts
from tilestitch.cost_model.models import model_named
from tilestitch.cost_model.on_cpu import floor_us
from tilestitch.cost_model.records import Record
from tilestitch.cost_model.training import fit, generated
from tilestitch.cost_model.training.record_files import export_records


@pytest.fixture(scope="session")
def grows_trees() -> None:
    """Training needs xgboost; predicting, judging and adapting do not."""
    pytest.importorskip("xgboost")


@pytest.fixture(scope="module")
def trained(grows_trees: None) -> LearnedModel:
    return generated.train(records(60, seed=1), seed=0)


def error(model: object, given: list[Record]) -> float:
    """Mean of the absolute logarithm to base 2."""
    predicted = model.predict([record.kernel for record in given], CPU)  # type: ignore[attr-defined]
    ratios = [record.latency_us / one.latency_us for record, one in zip(given, predicted, strict=True)]
    return float(np.mean(np.abs(np.log2(ratios))))


def test_it_learns_what_a_schedule_is_worth(trained: LearnedModel) -> None:
    others = records(30, seed=2)
    assert error(trained, others) < 0.3 * error(AnalyticalModel(), others)
    tiles = [kernel(200, 200, 200, rows) for rows in (1, 6, 14)]
    one, six, fourteen = (found.latency_us for found in trained.predict(tiles, CPU))
    assert six < one and six < fourteen
    assert len({found.latency_us for found in AnalyticalModel().predict(tiles, CPU)}) == 1


def test_validation_says_how_well_models_do_that_were_left_out(trained: LearnedModel) -> None:
    (row,) = trained.facts["validation"].values()
    assert row["learned rank"] > 0.97 > row["random rank"]
    assert row["learned rank of schedules"] > 0.9 > row["analytical rank of schedules"]
    assert 1.0 <= row["learned choice over best"] < 1.1 < row["random choice over best"]


def test_families_of_one_template_are_spread_over_the_folds() -> None:
    (one, *_), (part,) = records(1, seed=1), kernel(8, 8, 8, 1).parts
    rows = kernel_of(replace(part, template="cpu_rows"))
    gemms = [replace(one, structure=f"{n}", model=f"gemm{n}-0") for n in range(3 * fit.FOLDS)]
    others = [replace(one, structure=f"r{n}", model=f"rows{n}-0", kernel=rows) for n in range(4)]
    folds = fit.folds_of(fit.samples_of([*gemms, *others], CPU), seed=0)
    assert sorted(folds[record.family] for record in fit.samples_of(gemms, CPU)) == sorted([*range(fit.FOLDS)] * 3)
    assert len({folds[f"rows{n}"] for n in range(4)}) == 4


def test_a_choice_must_promise_as_much_as_kept_others_from_being_slower() -> None:
    sure = [(gain / 100, 1 - gain / 100) for gain in range(1, 60)]
    assert fit.least_gain(sure) == fit.GAINS[0]
    unsure = [(gain, 1.1 if gain < 0.2 else took) for gain, took in sure]
    assert fit.least_gain(unsure) == 0.2
    assert fit.least_gain([(gain, 1.1) for gain, _ in sure]) is None
    assert fit.least_gain(sure[: fit.FEWEST_CHOICES - 1]) is None and fit.least_gain([]) is None


def test_schedules_are_compared_where_held_out_ones_were_ranked_well(trained: LearnedModel) -> None:
    assert set(trained.judges_schedules) == {"cpu_gemm"} and trained.judges_schedules["cpu_gemm"] <= 0.1
    assert trained.least_gain == LEAST_GAIN
    noise = Random(0)
    random = [replace(record, latency_us=record.latency_us * noise.uniform(0.2, 5)) for record in records(60, seed=1)]
    assert not generated.train(random, 0).judges_schedules


PLANS = [{"promised": gain / 100, "took": 1.05 if gain < 12 else 0.9} for gain in range(1, 40)]
ODD_PLANS = ("{}", '{"results": [{"promised": 0.2}]}', '{"results": []}')


def test_what_plans_were_worth_says_what_others_must_promise(tmp_path: Path) -> None:
    (tmp_path / "plans.json").write_text(json.dumps({"results": PLANS}))
    assert generated.plan_gain_of(tmp_path / "plans.json") == 0.1
    for odd in ODD_PLANS:
        (tmp_path / "plans.json").write_text(odd)
        with pytest.raises(MeasurementError, match=r"plans\.json"):
            generated.plan_gain_of(tmp_path / "plans.json")


def test_a_trained_model_knows_what_plans_must_promise(tmp_path: Path, grows_trees: None) -> None:
    (tmp_path / "plans.json").write_text(json.dumps({"results": PLANS}))
    export_records(records(30, seed=1), tmp_path / "r.jsonl")
    paths = [str(tmp_path / "r.jsonl"), "-o", str(tmp_path / "m.json"), "--plans", str(tmp_path / "plans.json")]
    assert generated.main(paths) == 0 and load_learned(tmp_path / "m.json").least_gain == 0.1
    (tmp_path / "plans.json").write_text(ODD_PLANS[0])
    assert generated.main(paths) == 1


def test_intervals_hold_most_of_what_was_left_out(trained: LearnedModel) -> None:
    others = records(30, seed=3)
    predicted = trained.predict([record.kernel for record in others], CPU)
    inside = [p.low_us <= r.latency_us <= p.high_us for p, r in zip(predicted, others, strict=True)]
    assert 0.6 < np.mean(inside) <= 1.0


def test_the_same_records_give_the_same_file_whatever_their_order_in_it(tmp_path: Path, grows_trees: None) -> None:
    given = records(30, seed=1)
    for name in ("one", "two"):
        export_records(given, tmp_path / f"{name}.jsonl")
        assert generated.main([str(tmp_path / f"{name}.jsonl"), "-o", str(tmp_path / f"{name}.json")]) == 0
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    read, made = load_learned(tmp_path / "one.json"), generated.train(given, 0)
    asked = [record.kernel for record in records(5, seed=9)]
    for a, b in zip(read.predict(asked, CPU), made.predict(asked, CPU), strict=True):
        assert a.latency_us == pytest.approx(b.latency_us, rel=1e-3)


def test_two_hundred_records_of_another_machine_are_worth_more_than_none(trained: LearnedModel, tmp_path: Path) -> None:
    there = records(90, seed=4, slower=2.3, device="another CPU (avx512, 1 thread)")
    few, others = there[:200], there[200:]
    tuned = fit.fine_tune(trained, fit.samples_of(few, CPU), CPU)
    assert error(tuned, others) < 0.4 * error(trained, others)
    (tmp_path / "model.json").write_text(json.dumps(trained.to_json()))
    export_records(few, tmp_path / "few.jsonl")
    command = [str(tmp_path / "few.jsonl"), "--tune", str(tmp_path / "model.json"), "-o", str(tmp_path / "tuned.json")]
    assert generated.main(command) == 0
    assert error(model_named(str(tmp_path / "tuned.json")), others) == pytest.approx(error(tuned, others), abs=0.01)


@given(kernels)
@settings(max_examples=60, deadline=None)
def test_no_prediction_is_faster_than_nominal_rates(kernel: KernelFacts) -> None:
    model = shipped()
    for cores in (1, 7):
        cpu = replace(CPU, cores=cores)
        (found,) = model.predict([kernel], cpu)
        assert found.low_us <= found.latency_us <= found.high_us
        assert found.latency_us >= floor_us(kernel, replace(cpu, launch_us=0.0)) and np.isfinite(found.high_us)


@given(st.lists(kernels, min_size=2, max_size=4))
@settings(max_examples=25, deadline=None)
def test_a_prediction_does_not_depend_on_what_else_is_asked(asked: list[KernelFacts]) -> None:
    model = shipped()
    asked = [kernel(128, 128, 128, 6), *asked]
    for cores in (1, 7):
        cpu = replace(CPU, cores=cores)
        assert model.predict(asked, cpu) == [model.predict([one], cpu)[0] for one in asked]


def test_pixels_that_are_read_where_they_lie_may_meet_in_a_set_of_the_cache() -> None:
    """As rows of GEMMs may: which of both is copied first, schedules call by other names."""
    conv = {
        "schedule.rows": 1.0, "schedule.columns": 14.0, "schedule.vectors": 2.0, "schedule.lanes": 16.0,
        "shape.in_channels": 1024.0, "shape.out_channels": 64.0, "shape.spatial.0": 28.0, "shape.kernel.0": 3.0,
    }  # fmt: skip
    gemm = {
        "schedule.rows": 14.0, "schedule.vectors": 2.0, "schedule.lanes": 16.0,
        "shape.m": 28.0, "shape.n": 64.0, "shape.k": 1024.0,
    }  # fmt: skip

    def in_conflict(choices: dict[str, float], **others: float) -> float:
        every = {name: np.array([value]) for name, value in {**choices, **others}.items()}
        return float(derived(every)["schedule in conflict"][0])

    for choices, staged in ((conv, "schedule.stage"), (gemm, "schedule.stage_left")):
        assert in_conflict(choices, **{staged: 0.0}) == 14 and in_conflict(choices, **{staged: 1.0}) == 0
    assert in_conflict(conv, **{"schedule.stage": 0.0, "shape.in_channels": 1040.0}) == 1
    assert in_conflict(conv, **{"schedule.stage": 0.0, "shape.in_channels": 512.0}) == 7
    assert in_conflict(conv, **{"schedule.stage": 0.0, "shape.in_channels": 512.0, "shape.strides.0": 2.0}) == 14


def test_several_threads_gain_what_the_laws_say(trained: LearnedModel) -> None:
    (part,) = kernel(256, 256, 256, 6).parts
    tasks = kernel(256, 256, 256, 6).renamed(str)
    wide = KernelFacts((replace(tasks.sequence[0], stages=((replace(part, tasks=8),),)),))
    one, four = (trained.predict([wide], replace(CPU, cores=cores))[0].latency_us for cores in (1, 4))
    laws = [AnalyticalModel().predict([wide], replace(CPU, cores=cores))[0].latency_us for cores in (1, 4)]
    assert one / four == pytest.approx(laws[0] / laws[1])


def test_kernels_side_by_side_are_wrong_by_their_mean(trained: LearnedModel) -> None:
    good, bad = kernel(128, 128, 128, 6), kernel(128, 128, 128, 1)
    one, both, other = (trained.predict([k], CPU)[0].latency_us for k in (good, listed_facts([good, bad]), bad))
    assert 2 * one < both < 2 * other


def test_of_gpus_it_has_the_analytical_model_s_word() -> None:
    gpu = find_device("h100")
    assert shipped().predict([kernel(64, 64, 64, 6)], gpu) == AnalyticalModel().predict([kernel(64, 64, 64, 6)], gpu)


EMPTY = '{"format":1,"facts":{},"adaptation":{"lines":{},"centre":0},"templates":{"a":{}}}'


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 9, "templates": {}}', EMPTY])
def test_a_file_that_is_no_model_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(MeasurementError, match=r"odd\.json"):
        load_learned(tmp_path / "odd.json")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("adaptation", "centre"), float("nan")), (("adaptation", "lines"), {"": []}),
        (("adaptation", "lines"), {"": [0.0, float("inf")]}), (("facts", "schedule_gains"), "good"),
        (("facts", "schedule_gains"), {"cpu_gemm": "high"}), (("facts", "schedule_gains"), {"cpu_gemm": -0.5}),
        (("facts", "least_gain"), float("nan")), (("facts", "least_gain"), 1.5),
        (("templates", "cpu_gemm", "low"), float("nan")), (("templates", "cpu_gemm", "high"), -1.0),
        (("templates", "cpu_gemm", "names"), []), (("templates", "cpu_gemm", "forest", "outputs"), 0),
        (("templates", "cpu_gemm", "forest", "outputs"), -1),
        (("templates", "cpu_gemm", "forest", "leaf", 0, 0), float("inf")),
        (("templates", "cpu_gemm", "forest", "threshold", 0, 0), float("nan")),
        (("templates", "cpu_gemm", "forest", "feature", 0, 0), 1000),
        (("templates", "cpu_gemm", "forest", "feature", 0, 0), -1),
    ],
)  # fmt: skip
def test_a_damaged_model_is_refused_when_it_is_loaded(place: tuple[Any, ...], value: object, tmp_path: Path) -> None:
    """Not when it is asked, in the middle of a search."""
    data: Any = json.loads(SHIPPED.read_text(encoding="utf-8"))
    inside = data
    for name in place[:-1]:
        inside = inside[name]
    inside[place[-1]] = value
    (tmp_path / "m.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(MeasurementError, match=r"m\.json"):
        load_learned(tmp_path / "m.json")


def test_records_of_two_devices_or_too_few_train_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = [*records(2, seed=1), *records(2, seed=1, device="another CPU (avx2, 1 thread)")]
    few = records(2, seed=1)
    for each, reason in ((mixed, "records of 2 devices"), (few, "too few"), ([], "records of 0 devices")):
        export_records(each, tmp_path / "r.jsonl")
        assert generated.main([str(tmp_path / "r.jsonl"), "-o", str(tmp_path / "m.json")]) == 1
        assert reason in capsys.readouterr().err
    assert not (tmp_path / "m.json").exists()


def test_the_shipped_file_is_small_and_says_what_it_was_made_of() -> None:
    from tilestitch.cost_model.generated.model import SHIPPED

    assert SHIPPED.stat().st_size < 2_000_000
    assert {"recipe", "device", "digest", "validation"} <= shipped().facts.keys()
