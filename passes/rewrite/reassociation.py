"""When two constants of a chain may be combined: (x op a) op b to x op (a op b), up to rounding."""

import numpy as np

from tilestitch.passes.plan.float_ranges import DIGITS

SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}


def sum_in_any_order(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether x + a + b is x + (a + b) up to rounding.

    Constants of opposite signs are not combined: adding and subtracting a large number rounds on purpose.
    """
    return not bool((a * b < 0).any())


def product_in_any_order(a: np.ndarray, b: np.ndarray, dtype: str) -> bool:
    """Return whether x * a * b, in that order and in `dtype`, is x * (a * b) up to rounding. `a` and `b` are float64.

    It is not if x * a overflows, or loses digits to underflow, where x * (a * b) does not; nor if a * b itself loses
    digits.
    """
    with np.errstate(all="ignore"):
        first, second = np.broadcast_arrays(np.abs(a), np.abs(b))
        combined = first * second
    grows, shrinks = (first >= 1) & (second >= 1), (first <= 1) & (second <= 1)
    # Losses by underflow stay below the smallest normal number even after scaling up.
    recovers = (first <= 1) & (second <= 2.0 ** (DIGITS[dtype] - 1))
    exact_zero = (combined == 0) & ((first == 0) | (second == 0))
    normal = combined >= SMALLEST_NORMAL[dtype]
    return bool(((grows | shrinks | recovers) & (normal | exact_zero)).all())
