"""Models of kernel classes: a law with fitted parameters, and trees where the law alone is insufficient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilestitch.cost_model.library import convolution, gemm, hierarchy, rows
from tilestitch.cost_model.library.convolution import Convs
from tilestitch.cost_model.library.gemm import Gemms
from tilestitch.cost_model.library.rows import Kind, RowKernels
from tilestitch.cost_model.library.sheet import Chips, DataSheet, chips, sheet_of
from tilestitch.cost_model.library.trees import Forest, forest_from_json

PRIOR_WORTH = 1.0
"""Weight of a trait's prior, in measurements, when it adapts."""

TILE_STEPS = 4
UNHEARD, UNHEARD_ELSEWHERE = 0.02, 1.0
"""Prior probability that a library takes a tile against its policy, over all tiles and relative to the policy; the
second is for GPU generations without a known policy.
"""
_AREA = np.array([width * height for width, height in gemm.TILES], float)


@dataclass(frozen=True)
class Seen:
    """A GPU that parameters were fitted to. trust: weight of its data, 1 without contrary evidence."""

    sheet: DataSheet
    traits: np.ndarray
    trust: float


@dataclass(frozen=True)
class Adapted:
    """The assumed traits of one GPU. tiles: the frequency of each tile relative to expectation."""

    sheet: DataSheet
    traits: np.ndarray
    tiles: np.ndarray

    @property
    def host_us(self) -> float:
        """Lower bound on the time of a kernel launched alone."""
        return float(np.exp(self.traits[0]))

    @property
    def gap_us(self) -> float:
        """Overhead before and after a kernel launched alone."""
        return float(np.exp(self.traits[1]))


def expected(family: hierarchy.Family, seen: Mapping[str, Seen], sheet: DataSheet) -> Adapted:
    """Return the traits of a GPU from its data sheet; for a measured one, its own."""
    tiles = np.ones(len(gemm.TILES))
    same = next((one for one in seen.values() if replace(one.sheet, gpu=sheet.gpu) == sheet), None)
    if same is not None:
        return Adapted(sheet, same.traits, tiles)
    trust = {name: one.trust * hierarchy.likeness(one.sheet.generation, sheet.generation) for name, one in seen.items()}
    traits = {name: one.traits for name, one in seen.items()}
    return Adapted(sheet, hierarchy.expected_traits(family, traits, trust), tiles)


# -- GEMMs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GemmModel:
    """The model of a class of GEMMs. policies: by GPU generation, trees that score the library's candidate tiles."""

    shared: np.ndarray
    seen: Mapping[str, Seen]
    policies: Mapping[int, Forest]

    def expected(self, sheet: DataSheet) -> Adapted:
        return expected(gemm.FAMILY, self.seen, sheet)

    def latency_us(self, kernels: Gemms, to: Adapted) -> np.ndarray:
        """Return the microseconds of each kernel launched alone."""
        return hierarchy.alone_us(self.body_us(kernels, to), to.traits)

    def body_us(self, kernels: Gemms, to: Adapted) -> np.ndarray:
        """Return the geometric mean time over candidate tiles, weighted by their probabilities."""
        times, likely = self._choices(kernels, to)
        return np.exp((likely * np.log(times.T)).sum(axis=1))

    def tile(self, kernels: Gemms, to: Adapted) -> np.ndarray:
        """Return the most likely tile of each kernel, as indices into TILES."""
        return self._choices(kernels, to)[1].argmax(axis=1)

    def least_us(self, kernels: Gemms, sheet: DataSheet) -> np.ndarray:
        return gemm.least_us(kernels, chips([sheet]))

    def adapted(self, to: Adapted, kernels: Gemms, tile: np.ndarray, measured_us: np.ndarray) -> Adapted:
        """Return the traits adapted to measurements. tile: the tiles of these kernels, -1 where unknown."""
        there = self._with_tiles(to, kernels, tile)

        def log_ratios(traits: np.ndarray) -> np.ndarray:
            return np.log(self.latency_us(kernels, replace(there, traits=traits)) / measured_us)

        return replace(there, traits=hierarchy.adapted_traits(gemm.FAMILY, to.traits, log_ratios, PRIOR_WORTH))

    def _with_tiles(self, to: Adapted, kernels: Gemms, tile: np.ndarray) -> Adapted:
        """Return the traits with tile frequencies adjusted to those observed, with one pseudo-observation each."""
        known = np.flatnonzero(tile >= 0)
        count = np.bincount(tile[known], minlength=len(gemm.TILES))
        there = to
        for _ in range(TILE_STEPS if len(known) else 0):
            _, likely = self._choices(kernels.take(known), there)
            there = replace(there, tiles=there.tiles * (count + 1.0) / (likely.sum(axis=0) + 1.0))
        return there

    def _choices(self, kernels: Gemms, to: Adapted) -> tuple[np.ndarray, np.ndarray]:
        chip = chips([to.sheet])
        times = gemm.candidates(kernels, chip, self.shared, to.traits)
        own = to.sheet.generation
        policies = [self.policies[own]] if own in self.policies else list(self.policies.values())
        features = choice_features(kernels, chip, times)
        chosen = np.mean([_softmax(policy(features)) for policy in policies], axis=0)
        # Large tiles read operands less often; a library that does not distinguish sizes always takes them.
        unheard = UNHEARD / len(gemm.TILES) if own in self.policies else UNHEARD_ELSEWHERE * _AREA / _AREA.sum()
        likely = (chosen + unheard) * to.tiles
        return times, likely / likely.sum(axis=1, keepdims=True)

    def to_json(self) -> dict[str, Any]:
        policies = {str(generation): forest.to_json() for generation, forest in sorted(self.policies.items())}
        return {**_parameters(gemm.FAMILY, self.shared, self.seen), "policies": policies}


def gemm_from_json(found: Mapping[str, Any], sheets: Mapping[str, DataSheet]) -> GemmModel:
    shared, seen = _read_parameters(gemm.FAMILY, found, sheets)
    return GemmModel(shared, seen, {int(g): forest_from_json(f) for g, f in found["policies"].items()})


def choice_features(kernels: Gemms, chip: Chips, times: np.ndarray) -> np.ndarray:
    """Return features for predicting a library's choice of tile: times relative to the best, and the shape."""
    relative = np.log2(times / times.min(axis=0)).T
    work = kernels.batch * kernels.m * kernels.k / (chip.sm_count * 8192.0)
    shape = np.stack([work, kernels.n, kernels.m, kernels.k, kernels.batch], axis=1)
    return np.concatenate([relative, np.log2(shape)], axis=1)


def _softmax(scores: np.ndarray) -> np.ndarray:
    grown = np.exp(scores - scores.max(axis=1, keepdims=True))
    return grown / grown.sum(axis=1, keepdims=True)


# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowModel:
    """The model of a class of memory-bound kernels. correction: trees for the logarithm of measured over predicted
    time.
    """

    kind: Kind
    shared: np.ndarray
    seen: Mapping[str, Seen]
    correction: Forest

    def expected(self, sheet: DataSheet) -> Adapted:
        return expected(rows.FAMILIES[self.kind], self.seen, sheet)

    def latency_us(self, kernels: RowKernels, to: Adapted) -> np.ndarray:
        """Return the microseconds of each kernel launched alone."""
        return hierarchy.alone_us(self.body_us(kernels, to), to.traits)

    def body_us(self, kernels: RowKernels, to: Adapted) -> np.ndarray:
        chip = chips([to.sheet])
        by_law = rows.body_us(kernels, chip, self.shared, to.traits)
        correction = self.correction(rows.features(kernels, chip, self.shared, to.traits))
        return np.maximum((to.gap_us + by_law) * np.exp(correction) - to.gap_us, rows.least_us(kernels, chip))

    def least_us(self, kernels: RowKernels, sheet: DataSheet) -> np.ndarray:
        return rows.least_us(kernels, chips([sheet]))

    def adapted(self, to: Adapted, kernels: RowKernels, measured_us: np.ndarray) -> Adapted:
        """Return the traits adapted to measurements. The correction is unchanged: few measurements do not inform it."""

        def log_ratios(traits: np.ndarray) -> np.ndarray:
            return np.log(self.latency_us(kernels, replace(to, traits=traits)) / measured_us)

        traits = hierarchy.adapted_traits(rows.FAMILIES[self.kind], to.traits, log_ratios, PRIOR_WORTH)
        return replace(to, traits=traits)

    def to_json(self) -> dict[str, Any]:
        return {
            **_parameters(rows.FAMILIES[self.kind], self.shared, self.seen),
            "correction": self.correction.to_json(),
        }


def rows_from_json(kind: Kind, found: Mapping[str, Any], sheets: Mapping[str, DataSheet]) -> RowModel:
    shared, seen = _read_parameters(rows.FAMILIES[kind], found, sheets)
    return RowModel(kind, shared, seen, forest_from_json(found["correction"]))


# -- convolutions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvModel:
    """The model of convolutions, based on the model of the GEMMs that they are equivalent to. shared_gemm: GEMMs with
    one right operand, batched_gemm: batches; correction: trees for the logarithm of measured over predicted time.
    """

    shared: np.ndarray
    seen: Mapping[str, Seen]
    correction: Forest
    shared_gemm: GemmModel
    batched_gemm: GemmModel

    def expected(self, sheet: DataSheet) -> Adapted:
        return expected(convolution.FAMILY, self.seen, sheet)

    def latency_us(self, kernels: Convs, to: Adapted) -> np.ndarray:
        """Return the microseconds of each kernel launched alone."""
        return hierarchy.alone_us(self.body_us(kernels, to), to.traits)

    def body_us(self, kernels: Convs, to: Adapted) -> np.ndarray:
        chip = chips([to.sheet])
        gemm_us = convolution_gemms_us(kernels, to.sheet, self.shared_gemm, self.batched_gemm)
        correction = self.correction(convolution.features(kernels, gemm_us, chip, self.shared))
        return self._corrected(kernels, gemm_us, correction, to)

    def least_us(self, kernels: Convs, sheet: DataSheet) -> np.ndarray:
        return convolution.least_us(kernels, chips([sheet]))

    def adapted(self, to: Adapted, kernels: Convs, measured_us: np.ndarray) -> Adapted:
        """Return the traits adapted to measurements. The correction and the GEMM models are unchanged."""
        chip = chips([to.sheet])
        gemm_us = convolution_gemms_us(kernels, to.sheet, self.shared_gemm, self.batched_gemm)
        correction = self.correction(convolution.features(kernels, gemm_us, chip, self.shared))

        def log_ratios(traits: np.ndarray) -> np.ndarray:
            there = self._corrected(kernels, gemm_us, correction, replace(to, traits=traits))
            return np.log(hierarchy.alone_us(there, traits) / measured_us)

        traits = hierarchy.adapted_traits(convolution.FAMILY, to.traits, log_ratios, PRIOR_WORTH)
        return replace(to, traits=traits)

    def _corrected(self, kernels: Convs, gemm_us: np.ndarray, correction: np.ndarray, to: Adapted) -> np.ndarray:
        chip = chips([to.sheet])
        by_law = convolution.body_us(kernels, gemm_us, chip, self.shared, to.traits)
        return np.maximum((to.gap_us + by_law) * np.exp(correction) - to.gap_us, convolution.least_us(kernels, chip))

    def to_json(self) -> dict[str, Any]:
        return {**_parameters(convolution.FAMILY, self.shared, self.seen), "correction": self.correction.to_json()}


def convolution_gemms_us(kernels: Convs, sheet: DataSheet, shared: GemmModel, batched: GemmModel) -> np.ndarray:
    """Return the microseconds, without launches, of the GEMMs of each algorithm on a GPU, in the shape (3, kernels)."""
    one, many = shared.expected(sheet), batched.expected(sheet)
    return np.stack([
        shared.body_us(convolution.implicit(kernels), one),
        batched.body_us(convolution.fused(kernels), many),
        batched.body_us(convolution.split(kernels), many),
    ])  # fmt: skip


def convs_from_json(
    found: Mapping[str, Any], sheets: Mapping[str, DataSheet], shared_gemm: GemmModel, batched_gemm: GemmModel
) -> ConvModel:
    shared, seen = _read_parameters(convolution.FAMILY, found, sheets)
    return ConvModel(shared, seen, forest_from_json(found["correction"]), shared_gemm, batched_gemm)


# -- files -------------------------------------------------------------------------------------------------------------


def _parameters(family: hierarchy.Family, shared: np.ndarray, seen: Mapping[str, Seen]) -> dict[str, Any]:
    names = [row[0] for row in family.shared]
    traits = [row[0] for row in family.traits]
    return {
        "shared": {name: float(f"{value:.6g}") for name, value in zip(names, shared)},
        "gpus": {
            name: {"trust": one.trust, **{t: float(f"{v:.6g}") for t, v in zip(traits, one.traits)}}
            for name, one in sorted(seen.items())
        },
    }


def _read_parameters(
    family: hierarchy.Family, found: Mapping[str, Any], sheets: Mapping[str, DataSheet]
) -> tuple[np.ndarray, dict[str, Seen]]:
    shared = np.array([float(found["shared"][row[0]]) for row in family.shared])
    seen = {
        name: Seen(sheets[name], np.array([float(one[row[0]]) for row in family.traits]), float(one["trust"]))
        for name, one in found["gpus"].items()
    }
    return shared, seen


def sheets_from_json(found: Mapping[str, Any], where: str) -> dict[str, DataSheet]:
    return {name: sheet_of({"gpu": name, **figures}, where) for name, figures in found.items()}
