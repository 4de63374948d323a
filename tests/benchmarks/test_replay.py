"""The comparison of two trees: what it shows, and that equal dumps show nothing."""

from __future__ import annotations

from benchmarks.replay.__main__ import differences

OLD = {"plan": {"tile": 64}, "programs": [{"grid": 1}], "kernels": {"gemm_1.cu": "a\nb", "rows_1.cu": "c"}}


def test_equal_dumps_do_not_differ() -> None:
    assert list(differences(OLD, OLD)) == []


def test_a_changed_decision_is_shown_with_both_values() -> None:
    found = list(differences(OLD, {**OLD, "plan": {"tile": 128}}))
    assert found[0] == "plan"
    assert '- "tile": 64' in found
    assert '+ "tile": 128' in found


def test_a_kernel_with_another_digest_is_compared_with_the_one_it_replaces() -> None:
    found = list(differences(OLD, {**OLD, "kernels": {"gemm_2.cu": "a\nB", "rows_1.cu": "c"}}))
    assert found[0] == "kernel gemm_1.cu -> gemm_2.cu"
    assert "-b" in found and "+B" in found


def test_kernels_that_are_gone_or_new_are_shown() -> None:
    gone = list(differences(OLD, {**OLD, "kernels": {"gemm_1.cu": "a\nb"}}))
    assert gone[0] == "kernel rows_1.cu -> " and "-c" in gone
    assert next(iter(differences({**OLD, "kernels": {"gemm_1.cu": "a\nb"}}, OLD))) == "kernel  -> rows_1.cu"


def test_a_failure_is_a_difference() -> None:
    assert next(iter(differences(OLD, {"error": "KernelError: no"}))) == "error"


def test_only_the_parts_that_were_asked_for_are_compared() -> None:
    new = {**OLD, "plan": {"tile": 128}}
    assert list(differences(OLD, new, frozenset({"kernels", "programs"}))) == []
