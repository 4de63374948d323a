"""What a latency model may learn from of a schedule: numbers, flags, and words as flags."""

from dataclasses import replace

from tilestitch.passes.plan.cpu.schedules import CpuWindowSchedule
from tilestitch.passes.schedule.cpu.choices import choices_of

SCHEDULE = CpuWindowSchedule("line", 16, 1, 1, 4, 16)


def test_a_word_is_a_flag_for_each_that_there_is() -> None:
    forms = {name: flag for name, flag in zip(*choices_of(schedule=SCHEDULE), strict=True) if ".form." in name}
    assert forms == {f"schedule.form.{form}": int(form == "line") for form in ("across", "channels", "columns", "line")}


def test_schedules_that_differ_have_choices_that_do() -> None:
    others = [replace(SCHEDULE, form="across"), replace(SCHEDULE, lanes=8), replace(SCHEDULE, block_rows=5)]
    assert len({choices_of(schedule=one) for one in (SCHEDULE, *others)}) == 4
