"""What is made of the same constants is made once, as long as it lives."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tilestitch.passes.rewrite.merge_gemms import made_once


def test_the_same_operands_give_the_same_array() -> None:
    a, b = np.arange(3), np.arange(3)
    first = made_once("sum", [a, b], lambda: a + b)
    assert made_once("sum", [a, b], lambda: pytest.fail("made again")) is first
    assert not first.flags.writeable
    assert made_once("difference", [a, b], lambda: a - b) is not first
    assert made_once("sum", [b, a], lambda: b + a) is not first


def test_nothing_is_kept_alive_and_identities_that_are_used_again_are_no_identities() -> None:
    calls = 0

    def made(operand: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        return operand + 1

    for number in range(20):
        operand = np.full(5, number)
        np.testing.assert_array_equal(made_once("plus 1", [operand], lambda x=operand: made(x)), operand + 1)
        gc.collect()
    assert calls == 20
