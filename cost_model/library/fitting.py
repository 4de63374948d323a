"""Fits the models of kernel classes to tables of measurements. xgboost is needed here, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilestitch.cost_model.library import gemm, rows
from tilestitch.cost_model.library.classes import GemmModel, RowModel, Seen, choice_features
from tilestitch.cost_model.library.data import KernelTable, launch_floor_us
from tilestitch.cost_model.library.hierarchy import fit_family
from tilestitch.cost_model.library.sheet import DataSheet, chips
from tilestitch.cost_model.library.trees import Forest, forest_from_dump

CONTRADICTED = {"P4": {"bmm": 0.5, "linear": 0.05, "elementwise": 0.3, "softmax": 0.3, "layernorm": 0.3}}
"""How much the data of a GPU count that contradict themselves: like GEMMs of P4 differ by up to five times."""
ROWS_OF_A_GPU = 1500
"""Drawn for a fit from each GPU and file: parameters are few, and rows are much alike."""
CLEAR_OF_FLOOR = 1.4
"""Rows this many times above the launch floor say something about their kernel."""
DEPTH = 4
_LEARNING = {"max_depth": DEPTH, "tree_method": "hist", "nthread": 1, "subsample": 0.7}


def fit_gemms(table: KernelTable, sheets: Mapping[str, DataSheet], seed: int) -> GemmModel:
    """Fits the law to kernels whose tile is known, and a policy to each generation's choices."""
    table = _drawn(table, seed, known_tiles=True)
    gpus, gpu = np.unique(table.gpu, return_inverse=True)
    names = [str(name) for name in gpus]
    chip = chips([sheets[name] for name in names], gpu)
    kernels = table.gemms()

    def predict(shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
        return gemm.latency_us(kernels, table.tile, table.split, chip, shared, traits)

    trust = _trust(names, table.name)
    shared, traits = fit_family(gemm.FAMILY, predict, table.us, gpu, names, trust)
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
    """Fits the law, and trees to what it leaves on the GPUs together: a GPU's own median is no matter for them."""
    table = _drawn(table, seed, known_tiles=False)
    gpus, gpu = np.unique(table.gpu, return_inverse=True)
    names = [str(name) for name in gpus]
    chip = chips([sheets[name] for name in names], gpu)
    kernels = table.rows()
    family = rows.FAMILIES[kernels.kind]

    def predict(shared: np.ndarray, traits: np.ndarray) -> np.ndarray:
        return rows.latency_us(kernels, chip, shared, traits)

    trust = _trust(names, table.name)
    shared, traits = fit_family(family, predict, table.us, gpu, names, trust)
    own = np.stack([traits[name] for name in names])[gpu].T
    left = np.log(table.us / predict(shared, own))
    left -= np.array([np.median(left[gpu == at]) for at in range(len(names))])[gpu]
    weights = np.array([trust[name] for name in names])[gpu]
    correction = _trees(
        rows.features(kernels, chip, shared, own), left, weights, 120, seed,
        {"objective": "reg:squarederror", "base_score": 0.0, "eta": 0.06, "min_child_weight": 40, "reg_lambda": 5.0,
         "colsample_bytree": 0.6}, 1,
    )  # fmt: skip
    seen = {name: Seen(sheets[name], traits[name], trust[name]) for name in names}
    return RowModel(kernels.kind, shared, seen, correction)


def _trust(names: Sequence[str], kernel_class: str) -> dict[str, float]:
    return {name: CONTRADICTED.get(name, {}).get(kernel_class, 1.0) for name in names}


def _drawn(table: KernelTable, seed: int, known_tiles: bool) -> KernelTable:
    """At most ROWS_OF_A_GPU of each GPU and file, of those that are clear of the launch floor."""
    random = np.random.default_rng(seed)
    usable = table.us > CLEAR_OF_FLOOR * launch_floor_us(table)
    if known_tiles:
        usable &= table.tile >= 0
    kept = []
    for gpu in np.unique(table.gpu):
        for large in (False, True):
            found = np.flatnonzero(usable & (table.gpu == gpu) & (table.large == large))
            kept.append(np.sort(random.permutation(found)[:ROWS_OF_A_GPU]))
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
    booster = xgboost.train({**_LEARNING, **settings, "seed": seed}, data, rounds)
    return forest_from_dump([json.loads(tree) for tree in booster.get_dump(dump_format="json")], DEPTH, outputs)
