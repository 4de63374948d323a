"""How overlapping times combine."""

from __future__ import annotations

from typing import Any

import numpy as np


def smooth_max(first: Any, second: Any, sharpness: Any) -> Any:
    """Return the `p`-norm of two times: between the larger (sharpness infinite) and their sum (sharpness 1).

    With perfect overlap the longer time counts; near the corner of a roofline overlap is never perfect.
    """
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    safe = np.where(larger > 0, larger, 1.0)
    return larger * (1.0 + (smaller / safe) ** sharpness) ** (1.0 / sharpness)
