"""Fits the models of kernel classes to tables of measurements. Only this module needs xgboost."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilestitch.cost_model.library import convolution, gemm, rows
from tilestitch.cost_model.library.classes import (
    ConvModel,
    GemmModel,
    RowModel,
    Seen,
    choice_features,
    convolution_gemms_us,
)
from tilestitch.cost_model.library.data import KernelTable
from tilestitch.cost_model.library.hierarchy import Family, robust_fit
from tilestitch.cost_model.library.sheet import DataSheet, chips
from tilestitch.cost_model.library.trees import Forest
from tilestitch.cost_model.training.forests import forest_from_dump
from tilestitch.cost_model.training.tables import launch_floor_us

CONTRADICTED = {"P4": {"bmm": 0.5, "linear": 0.1, "elementwise": 0.3, "softmax": 0.3, "layernorm": 0.3, "conv": 0.2}}
"""Weights of GPU data that are inconsistent: equal GEMMs of P4 differ by up to five times."""
ROWS_OF_A_GPU = 1500
"""Rows sampled per GPU and file for a fit: parameters are few, and rows are similar."""
CLEAR_OF_FLOOR = 1.4
"""Rows this many times above the launch floor are informative about their kernel."""
ROWS_AT_FLOOR = 0.2
"""Fraction of other rows that are sampled, relative to those: they inform about host overhead."""
ROWS = 2000.0
"""Total weight of each trusted GPU's rows, however many there are."""
STIFFNESS, TRAIT_STIFFNESS = 20.0, 2.0
"""Regularisation of shared parameters towards their initial values, and of traits towards usual values."""
DEPTH = 4
_SQUARES = {"objective": "reg:squarederror", "base_score": 0.0, "colsample_bytree": 0.6}
ROW_TREES = {**_SQUARES, "rounds": 120, "eta": 0.06, "min_child_weight": 40, "reg_lambda": 5.0}
CONV_TREES = {**_SQUARES, "rounds": 200, "eta": 0.1, "min_child_weight": 20, "reg_lambda": 5.0, "max_depth": 5}
_LEARNING = {"max_depth": DEPTH, "tree_method": "hist", "nthread": 1, "subsample": 0.7}


def fit_gemms(table: KernelTable, sheets: Mapping[str, DataSheet], seed: int) -> GemmModel:
    """Fit the law to kernels with known tiles, and a policy to each generation's choices."""
    table = _drawn(table, seed, known_tiles=True)
    gpus, gpu = np.unique(table.gpu, return_inverse=True)
    names = [str(name) for name in gpus]
    chip = chips([sheets[name] for name in names], gpu)
    kernels = table.gemms()

    def predict(shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
        return gemm.latency_us(kernels, table.tile, table.split, chip, shared, traits)

    trust = _trust(names, table.name)
    shared, traits = fit_family(gemm.FAMILY, predict, table.us, gpu, names, trust, np.ones(len(table)))
    seen = {name: Seen(sheets[name], traits[name], trust[name]) for name in names}
    times = gemm.candidates(kernels, chip, shared, np.stack([traits[name] for name in names])[gpu].T)
    features = choice_features(kernels, chip, times)
    generation = np.array([sheets[name].generation for name in names])[gpu]
    policies = {
        int(own): _policy(features[generation == own], table.tile[generation == own], seed)
        for own in np.unique(generation)
    }
    return GemmModel(shared, seen, policies)


def fit_rows(table: KernelTable, sheets: Mapping[str, DataSheet], seed: int) -> RowModel:
    """Fit the law, and trees to its residuals over all GPUs, without each GPU's median."""
    table = _drawn(table, seed, known_tiles=False)
    gpus, gpu = np.unique(table.gpu, return_inverse=True)
    names = [str(name) for name in gpus]
    chip = chips([sheets[name] for name in names], gpu)
    kernels = table.rows()
    family = rows.FAMILIES[kernels.kind]

    def predict(shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
        return rows.latency_us(kernels, chip, shared, traits)

    trust = _trust(names, table.name)
    share = _share(table.us, gpu)
    shared, traits = fit_family(family, predict, table.us, gpu, names, trust, share)
    own = np.stack([traits[name] for name in names])[gpu].T
    weights = np.array([trust[name] for name in names])[gpu] * (table.us > CLEAR_OF_FLOOR * np.exp(own[0])) * share
    features = rows.features(kernels, chip, shared, own)
    by_law = np.exp(own[1]) + rows.body_us(kernels, chip, shared, own)
    correction = _correction(features, table.us, by_law, gpu, weights, seed, ROW_TREES)
    seen = {name: Seen(sheets[name], traits[name], trust[name]) for name in names}
    return RowModel(kernels.kind, shared, seen, correction)


def fit_convs(
    table: KernelTable, sheets: Mapping[str, DataSheet], shared_gemm: GemmModel, batched_gemm: GemmModel, seed: int
) -> ConvModel:
    """Fit the law over the GEMM models, and trees to its residuals. Small convolutions count, too: they take several
    launches, which is not only host overhead.
    """
    table = _drawn(table, seed, known_tiles=False, clear=0.0)
    gpus, gpu = np.unique(table.gpu, return_inverse=True)
    names = [str(name) for name in gpus]
    chip = chips([sheets[name] for name in names], gpu)
    kernels = table.convs()
    gemm_us = np.zeros((3, len(table)))
    for at, name in enumerate(names):
        own = np.flatnonzero(gpu == at)
        gemm_us[:, own] = convolution_gemms_us(kernels.take(own), sheets[name], shared_gemm, batched_gemm)

    def predict(shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
        return convolution.latency_us(kernels, gemm_us, chip, shared, traits)

    trust = _trust(names, table.name)
    shared, traits = fit_family(convolution.FAMILY, predict, table.us, gpu, names, trust, np.ones(len(table)))
    features = convolution.features(kernels, gemm_us, chip, shared)
    own = np.stack([traits[name] for name in names])[gpu].T
    by_law = np.exp(own[1]) + convolution.body_us(kernels, gemm_us, chip, shared, own)
    weights = np.array([trust[name] for name in names])[gpu]
    correction = _correction(features, table.us, by_law, gpu, weights, seed, CONV_TREES)
    seen = {name: Seen(sheets[name], traits[name], trust[name]) for name in names}
    return ConvModel(shared, seen, correction, shared_gemm, batched_gemm)


def _correction(
    features: np.ndarray, measured_us: np.ndarray, by_law_us: np.ndarray, gpu: np.ndarray, weights: np.ndarray,
    seed: int, settings: Mapping[str, Any],
) -> Forest:  # fmt: skip
    """Return trees for the logarithm of measured over predicted time, minus its median on each GPU."""
    left = np.log(measured_us / by_law_us)
    counted = weights > 0
    left -= np.array([np.median(left[counted & (gpu == at)]) for at in range(gpu.max() + 1)])[gpu]
    learning = {key: value for key, value in settings.items() if key != "rounds"}
    return _trees(features[counted], left[counted], weights[counted], settings["rounds"], seed, learning, 1)


def _share(measured_us: np.ndarray, gpu: np.ndarray) -> np.ndarray:
    """Return the weight of each row within its GPU, 1 on average: the bound of a kernel changes with its size, so that
    octaves of time with few rows get more weight.
    """
    octave = np.floor(np.log2(measured_us)).astype(np.intp)
    _, of, count = np.unique(np.stack([gpu, octave]), axis=1, return_inverse=True, return_counts=True)
    share = count[of.ravel()] ** -0.5
    return share / (np.bincount(gpu, share) / np.bincount(gpu))[gpu]


def _trust(names: Sequence[str], kernel_class: str) -> dict[str, float]:
    return {name: CONTRADICTED.get(name, {}).get(kernel_class, 1.0) for name in names}


def _drawn(table: KernelTable, seed: int, known_tiles: bool, clear: float = CLEAR_OF_FLOOR) -> KernelTable:
    """Return at most ROWS_OF_A_GPU rows per GPU and file, of those `clear` times above the launch floor, and some of
    the others.
    """
    random = np.random.default_rng(seed)
    is_clear = table.us > clear * launch_floor_us(table)
    usable = table.tile >= 0 if known_tiles else np.full(len(table), True)
    kept = []
    for gpu in np.unique(table.gpu):
        for large in (False, True):
            found = usable & (table.gpu == gpu) & (table.large == large)
            above, below = (random.permutation(np.flatnonzero(found & part)) for part in (is_clear, ~is_clear))
            above = above[:ROWS_OF_A_GPU]
            kept.append(np.sort(np.concatenate([above, below[: int(ROWS_AT_FLOOR * len(above))]])))
    return table.take(np.concatenate(kept))


def _policy(features: np.ndarray, tile: np.ndarray, seed: int) -> Forest:
    settings = {
        "objective": "multi:softprob", "num_class": len(gemm.TILES), "eta": 0.25, "min_child_weight": 8,
        "base_score": 0.5,
    }  # fmt: skip
    return _trees(features, tile, np.ones(len(tile)), 25, seed, settings, len(gemm.TILES))


def _trees(
    features: np.ndarray, wanted: np.ndarray, weights: np.ndarray, rounds: int, seed: int,
    settings: Mapping[str, Any], outputs: int,
) -> Forest:  # fmt: skip
    import xgboost

    names = [f"f{number}" for number in range(features.shape[1])]
    data = xgboost.DMatrix(features, wanted, weight=weights, feature_names=names)
    learning = {**_LEARNING, **settings, "seed": seed}
    booster = xgboost.train(learning, data, rounds)
    dump = [json.loads(tree) for tree in booster.get_dump(dump_format="json")]
    return forest_from_dump(dump, learning["max_depth"], outputs)


def fit_family(
    family: Family,
    predict: Callable[[np.ndarray, np.ndarray], np.ndarray],
    measured_us: np.ndarray,
    gpu: np.ndarray,
    gpus: Sequence[str],
    trust: Mapping[str, float],
    share: np.ndarray,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the fitted shared parameters, and the traits of each GPU.

    predict(shared, traits) returns microseconds for shared parameters and traits by row, shape (traits, rows); gpu:
    index into `gpus` of each row; trust: total weight of a GPU's rows; share: weight of each row within its GPU, 1 on
    average.
    """
    count, width = len(family.shared), len(family.traits)
    start = np.array([row[1] for row in family.shared])
    least, most = (np.array([row[at] for row in family.shared]) for at in (2, 3))
    low, high = family.limits
    log_us = np.log(measured_us)
    trusted = np.array([trust[name] for name in gpus])
    rows = np.bincount(gpu, minlength=len(gpus))
    weight = np.sqrt(share * trusted[gpu] * ROWS / np.maximum(1, rows)[gpu])

    def residuals(found: np.ndarray) -> np.ndarray:
        shared, usual = found[:count], found[count : count + width]
        apart = found[count + width :].reshape(len(gpus), width)
        fitted = np.log(predict(shared, (usual + apart)[gpu].T)) - log_us
        return np.concatenate([
            weight * fitted,
            STIFFNESS * (shared - start) / (most - least),
            (TRAIT_STIFFNESS * np.sqrt(trusted)[:, None] * apart / family.scatter).ravel(),
            (usual - family.usual) / family.scatter,
        ])  # fmt: skip

    spread = np.tile(high - low, len(gpus))
    found = robust_fit(
        residuals,
        np.concatenate([start, family.usual, np.zeros(len(gpus) * width)]),
        np.concatenate([least, low, -spread]),
        np.concatenate([most, high, spread]),
    )
    apart = found[count + width :].reshape(len(gpus), width)
    return found[:count], {name: found[count : count + width] + apart[at] for at, name in enumerate(gpus)}
