"""Random tensors: distribution, seeds, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime.host.reference import run
from tilestitch.runtime.host import NON_DETERMINISTIC, TABLE

SHAPED = [("RandomNormal", {"mean": 2.0, "scale": 0.5}), ("RandomUniform", {"low": -1.0, "high": 3.0})]


@pytest.mark.parametrize(("name", "attrs"), SHAPED)
def test_a_seed_fixes_the_result_and_no_seed_does_not(name: str, attrs: dict[str, Any]) -> None:
    draw = lambda **more: run(name, shape=[100], dtype="float32", **attrs, **more)  # noqa: E731
    np.testing.assert_array_equal(draw(seed=1.5), draw(seed=1.5))
    assert (draw(seed=1.5) != draw(seed=2.5)).any()
    assert (draw() != draw()).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_moments_and_dtype(dtype: str) -> None:
    normal = run("RandomNormal", shape=[20000], dtype=dtype, mean=2.0, scale=0.5, seed=3.0).astype(np.float64)
    assert abs(normal.mean() - 2) < 0.02
    assert abs(normal.std() - 0.5) < 0.02
    uniform = run("RandomUniform", np.zeros((100, 200)), dtype=dtype, low=-1.0, high=3.0, seed=3.0)
    assert uniform.shape == (100, 200)
    assert uniform.astype(np.float64).min() >= -1
    assert abs(uniform.astype(np.float64).mean() - 1) < 0.05


def test_bernoulli_draws_each_element_by_its_own_probability() -> None:
    p = np.repeat([0.0, 0.25, 1.0], 10000).astype(np.float32)
    drawn = run("Bernoulli", p, dtype="bool", seed=1.0).reshape(3, -1).mean(1)
    assert drawn[0] == 0
    assert abs(drawn[1] - 0.25) < 0.02
    assert drawn[2] == 1


def test_multinomial_follows_the_unnormalised_log_probabilities() -> None:
    logits = np.array([[0.0, np.log(3.0)], [5.0, -np.inf]])
    drawn = run("Multinomial", logits.astype(np.float32), dtype="int64", sample_size=20000, seed=1.0)
    assert drawn.shape == (2, 20000)
    assert abs(drawn[0].mean() - 0.75) < 0.02
    assert (drawn[1] == 0).all()


def test_dropout_scales_what_it_keeps() -> None:
    x = np.ones(10000, np.float32)
    kept, mask = TABLE["Dropout"]([x, np.float32(0.75), np.array(True)], {"seed": 1})
    np.testing.assert_array_equal(kept, np.where(mask, 4.0, 0.0))
    assert abs(mask.mean() - 0.25) < 0.02
    same, all_kept = TABLE["Dropout"]([x, np.float32(0.75), np.array(False)], {})
    np.testing.assert_array_equal(same, x)
    assert all_kept.all()


def test_every_random_operator_is_declared() -> None:
    assert {"RandomNormal", "RandomUniform", "Bernoulli", "Multinomial", "Dropout"} == NON_DETERMINISTIC
