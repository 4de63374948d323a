"""Parameters of a law: some shared by all GPUs, and traits of each GPU, which scatter around a usual value.

For a GPU without measurements, traits are the usual values of similar GPUs; a few measurements shift them, to the
extent that they contradict these. Fits are robust: least squares whose weights fall with the size of the residual.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

OUTLIER = 0.1
"""Residual of the logarithm beyond which the loss is linear."""
NEIGHBOUR = 0.3
"""Weight of a GPU for one of the next generation, relative to one of the same."""

ALONE = (
    ("log_host_us", np.log(32.0), 0.25, 1.0, 5.5),
    ("log_gap_us", np.log(20.0), 0.25, 1.0, 4.6),
)
"""Traits of kernels launched one at a time: the host's time for each, which hides short kernels entirely; and the GPU's
time before and after the kernel itself.
"""

RARE = frozenset({"far_apart"})
"""Traits that are negligible for most GPUs and large for a few."""

Residuals = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Family:
    """The parameters of a law. shared: name, start, least, most; traits: name, usual value, scatter, least, most."""

    shared: tuple[tuple[str, float, float, float], ...]
    traits: tuple[tuple[str, float, float, float, float], ...]

    @property
    def usual(self) -> np.ndarray:
        return np.array([trait[1] for trait in self.traits])

    @property
    def scatter(self) -> np.ndarray:
        return np.array([trait[2] for trait in self.traits])

    @property
    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array([trait[3] for trait in self.traits]), np.array([trait[4] for trait in self.traits])


def robust_fit(
    residuals: Residuals, start: np.ndarray, least: np.ndarray, most: np.ndarray, steps: int = 40
) -> np.ndarray:
    """Return the parameters between `least` and `most` that minimise the sum of soft absolute residuals
    (Levenberg-Marquardt).
    """
    at, damping = np.clip(start, least, most), 1e-2
    found = residuals(at)
    cost = _cost(found)
    for _ in range(steps):
        jacobian = _jacobian(residuals, at, found, least, most)
        weight = 1.0 / np.sqrt(1.0 + (found / OUTLIER) ** 2)
        normal = jacobian.T @ (weight[:, None] * jacobian)
        slope = jacobian.T @ (weight * found)
        free = ~(((at <= least) & (slope > 0)) | ((at >= most) & (slope < 0)))
        improved = False
        while damping < 1e8:
            step = np.zeros_like(at)
            bent = normal + damping * np.diag(np.diag(normal) + 1e-9)
            step[free] = -np.linalg.solve(bent[np.ix_(free, free)], slope[free])
            there = np.clip(at + step, least, most)
            now = residuals(there)
            if (other := _cost(now)) < cost:
                improved = cost - other > 1e-6 * cost
                at, found, cost, damping = there, now, other, max(damping / 5, 1e-6)
                break
            damping *= 4
        if not improved:
            return at
    return at


def _cost(found: np.ndarray) -> float:
    return float(np.sum(np.sqrt(1.0 + (found / OUTLIER) ** 2) - 1.0))


def _jacobian(
    residuals: Residuals, at: np.ndarray, found: np.ndarray, least: np.ndarray, most: np.ndarray
) -> np.ndarray:
    columns = []
    for number, value in enumerate(at):
        step = 1e-4 * max(1.0, abs(value))
        step = -step if value + step > most[number] else step
        there = at.copy()
        there[number] = value + step
        columns.append((residuals(there) - found) / step)
    return np.stack(columns, axis=1)


def alone_us(body_us: np.ndarray, traits: np.ndarray) -> np.ndarray:
    """Return the microseconds measured for kernels that are launched one at a time, back to back."""
    return np.maximum(np.exp(traits[0]), np.exp(traits[1]) + body_us)


def likeness(generation: int, other: int) -> float:
    """Return the weight of a GPU of one generation for one of another."""
    return NEIGHBOUR ** abs(generation - other)


def expected_traits(family: Family, traits: Mapping[str, np.ndarray], trust: Mapping[str, float]) -> np.ndarray:
    """Return the expected traits from measured GPUs: the mean weighted by `trust`; for launch overheads, which do not
    depend on generations, the median, and for traits that few GPUs have, the median weighted by `trust`.
    """
    if not traits:
        return family.usual
    weights = np.array([trust[name] for name in traits])
    values = np.stack(list(traits.values()))
    mean = weights @ values / weights.sum()
    mean[: len(ALONE)] = np.median(values[:, : len(ALONE)], axis=0)
    for at in (number for number, trait in enumerate(family.traits) if trait[0] in RARE):
        order = np.argsort(values[:, at])
        below = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
        mean[at] = np.interp(0.5, below, values[order, at])
    return mean


def adapted_traits(
    family: Family, expected: np.ndarray, log_ratios: Callable[[np.ndarray], np.ndarray], strength: float
) -> np.ndarray:
    """Return the traits adapted to measurements. log_ratios: of predicted over measured latency, for given traits;
    strength: weight of the expectation, in measurements.
    """

    def residuals(traits: np.ndarray) -> np.ndarray:
        return np.concatenate([log_ratios(traits), strength * OUTLIER * (traits - expected) / family.scatter])

    return robust_fit(residuals, expected, *family.limits)
