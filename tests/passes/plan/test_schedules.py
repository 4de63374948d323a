"""Schedules as data: to JSON and back, and what is refused."""

from __future__ import annotations

import json

import pytest

from tilestitch.passes.errors import PlanError
from tilestitch.passes.plan.cpu.schedules import (
    CpuAttentionSchedule,
    CpuDotGemmSchedule,
    CpuGemmSchedule,
    CpuLoopSchedule,
    CpuRowSchedule,
    CpuSplitRowSchedule,
    CpuWindowSchedule,
)
from tilestitch.passes.plan.schedules import (
    TEMPLATES,
    ElementwiseSchedule,
    RowSchedule,
    ScatterSchedule,
    Schedule,
    SplitRowSchedule,
    TransposeSchedule,
    schedule_from_json,
    schedule_to_json,
)

EXAMPLES: tuple[Schedule, ...] = (
    ElementwiseSchedule(256, 4, 1, 1, (3, 7)),
    TransposeSchedule(0),
    RowSchedule(4, 32, 4),
    SplitRowSchedule(8, (RowSchedule(4, 32, 4), ElementwiseSchedule(256, 4))),
    ScatterSchedule(256, True),
    CpuAttentionSchedule(8, 8, CpuGemmSchedule(1, 2, 16, 1, 1, 7), CpuGemmSchedule(1, 2, 16, 1, 1, 9, spill=True)),
    CpuDotGemmSchedule(6, 2, 16, 1, 1, 7, dot="vpmaddwd"),
    CpuRowSchedule((3, 4), (False, True), 4, 1, 1, (0, 3)),
    CpuSplitRowSchedule(2, (CpuRowSchedule((3,), (True,), 1, 1, 1), CpuLoopSchedule((3,), 1, 3, 1))),
    CpuWindowSchedule("columns", 16, 1, 4, 1, 16),
)


@pytest.mark.parametrize("schedule", EXAMPLES, ids=lambda s: s.template)
def test_a_schedule_is_the_same_after_json(schedule: Schedule) -> None:
    assert schedule_from_json(json.loads(json.dumps(schedule_to_json(schedule)))) == schedule


def test_every_template_has_a_name_of_its_own() -> None:
    assert all(kind.template == name for name, kind in TEMPLATES.items())


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        ({"template": "magic"}, "none of the templates"),
        ({"threads": -1}, "threads is -1"),
        ({"threads": True}, "threads is True"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"lanes": "4"}, "lanes is '4'"),
        ({"cuts": 3}, "cuts is no list"),
        ({"cuts": [None]}, r"cuts\[0\] is None"),
        ({"colour": 1}, "colour"),
    ],
)
def test_what_is_no_schedule_is_refused_by_name(edit: dict[str, object], named: str) -> None:
    data = {**schedule_to_json(EXAMPLES[0]), **edit}
    with pytest.raises(PlanError, match=named):
        schedule_from_json(data)


@pytest.mark.parametrize("data", [None, [], 3, {}, {"template": 4}, {"template": []}])
def test_other_data_is_refused(data: object) -> None:
    with pytest.raises(PlanError, match="write the plan again"):
        schedule_from_json(data)


def test_a_missing_field_is_named() -> None:
    data = schedule_to_json(RowSchedule(4, 32, 4))
    del data["team"]
    with pytest.raises(PlanError, match="team"):
        schedule_from_json(data)


def test_a_field_that_a_plan_was_made_before_has_its_default() -> None:
    gemm = CpuGemmSchedule(6, 2, 16, 2, 1, 40, prefetch_next=True)
    data = schedule_to_json(gemm)
    del data["k_outer"]
    assert schedule_from_json(data) == gemm


def test_a_schedule_in_the_place_of_another_is_refused() -> None:
    gemm = CpuGemmSchedule(1, 2, 16, 1, 1, 7)
    data = schedule_to_json(CpuAttentionSchedule(8, 8, gemm, gemm))
    data["scores"] = schedule_to_json(RowSchedule(4, 32, 4))
    with pytest.raises(PlanError, match=r"scores is of template rows, which has no place there"):
        schedule_from_json(data)
