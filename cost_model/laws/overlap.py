"""How times that overlap add up."""

from __future__ import annotations

from typing import Any

import numpy as np


def smooth_max(first: Any, second: Any, sharpness: Any) -> Any:
    """Between the larger of two times (sharpness infinite) and their sum (sharpness 1): `p`-norm of both.

    What overlaps perfectly takes as long as the longer; near the corner of a roofline nothing does.
    """
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    safe = np.where(larger > 0, larger, 1.0)
    return larger * (1.0 + (smaller / safe) ** sharpness) ** (1.0 / sharpness)
