"""Fits the learned model of generated kernels to records, and judges it on models that were left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.cpu import CpuDevice
from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.facts import KernelFacts, Part
from tilestitch.cost_model.library.trees import forest_from_dump
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.cost_model.random_model import RandomModel
from tilestitch.cost_model.records import Record

from .adaptation import adapted
from .features import BODIES, COUNTS, choice_names, described, matrix, seen
from .model import LearnedModel, Template

DEPTH, ROUNDS, RATE, LEAF = 4, 120, 0.08, 12
FEWEST = 40
"""Kernels that trees of a template are grown from."""
FOLDS = 5
GAINS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4)
NOISE, SELDOM, FEWEST_CHOICES = 1.02, 0.1, 12
"""A choice is slower if it takes so many times as long, and seldom so if at most this share of as many is."""
INSIDE = 0.8
"""Of what is measured on models that were left out, intervals hold so much."""


@dataclass(frozen=True)
class Sample:
    """A record of a kernel of one part, as trees see it."""

    record: Record
    law_us: float
    common: np.ndarray

    @property
    def part(self) -> Part:
        return self.record.kernel.parts[0]

    @property
    def template(self) -> str:
        return self.part.template

    @property
    def family(self) -> str:
        """Models that differ in sizes only are left out together: `cnn-12` and `cnn-28`, `t5.dynamo18`."""
        return family_of(self.record.model)


def family_of(model: str) -> str:
    return model.split(".")[0].split("-")[0]


def samples_of(records: Iterable[Record], cpu: CpuDevice) -> list[Sample]:
    """Return those of kernels of one launch of one part, of a template."""
    single = [r for r in records if len(r.kernel.parts) == 1 and r.kernel.parts[0].template]
    rows = described([record.kernel.parts[0] for record in single], cpu)
    return [Sample(*one) for one in zip(single, rows.laws.latency_us.tolist(), rows.common.T, strict=True)]


def fit(samples: Sequence[Sample], seed: int, spreads: Mapping[str, tuple[float, float]] | None = None) -> LearnedModel:
    """Raise ImportError without xgboost, and MeasurementError where there is too little to learn from."""
    templates = {}
    for name in sorted({sample.template for sample in samples}):
        mine = [sample for sample in samples if sample.template == name]
        if len(mine) >= FEWEST:
            low, high = (spreads or {}).get(name, (1.0, 1.0))
            templates[name] = _template(mine, seed, low, high)
    if not templates:
        raise MeasurementError(f"{len(samples)} records are too few to learn from; measure more kernels")
    return LearnedModel(templates)


def _template(samples: Sequence[Sample], seed: int, low: float, high: float) -> Template:
    import xgboost

    parts = [sample.part for sample in samples]
    template = samples[0].template
    names = tuple(name for name in choice_names(parts) if not (template in BODIES and name in COUNTS))
    features = seen(matrix(np.array([sample.common for sample in samples]).T, parts, names), template)
    target = np.log([sample.record.latency_us / sample.law_us for sample in samples])
    base = float(np.median(target))
    options = {
        "max_depth": DEPTH, "eta": RATE, "subsample": 0.8, "colsample_bytree": 0.5, "min_child_weight": LEAF,
        "lambda": 2.0, "objective": "reg:pseudohubererror", "base_score": 0.0, "seed": seed, "nthread": 1,
        "tree_method": "hist",
    }  # fmt: skip
    booster = xgboost.train(options, xgboost.DMatrix(features, target - base), ROUNDS)
    forest = forest_from_dump([json.loads(tree) for tree in booster.get_dump(dump_format="json")], DEPTH, 1)
    return Template(replace(forest, leaf=forest.leaf + base / len(forest.leaf)), names, low, high)


# -- judging -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """Of the kernels of one template, what was measured and what models say that have not seen their models."""

    samples: Sequence[Sample]
    measured_us: np.ndarray
    by_model: Mapping[str, np.ndarray]


def judge(samples: Sequence[Sample], cpu: CpuDevice, seed: int) -> dict[str, Judged]:
    """Return every kernel is predicted by trees that have seen neither a model of its family nor a kernel of its
    structure.
    """
    fold = folds_of(samples, seed)
    learned = np.zeros(len(samples))
    for number in range(FOLDS):
        places = [at for at, sample in enumerate(samples) if fold[sample.family] == number]
        left_out = {samples[at].record.structure for at in places}
        known = [s for s in samples if fold[s.family] != number and s.record.structure not in left_out]
        if places and known:
            learned[places] = _predicted(fit(known, seed), [samples[at] for at in places], cpu)
    analytical, random = (_predicted(model, samples, cpu) for model in (ANALYTICAL, RandomModel()))
    measured = np.array([sample.record.latency_us for sample in samples])
    found = {}
    for name in sorted({sample.template for sample in samples}):
        mine = np.array([at for at, sample in enumerate(samples) if sample.template == name])
        by_model = {"learned": learned[mine], "analytical": analytical[mine], "random": random[mine]}
        found[name] = Judged([samples[at] for at in mine], measured[mine], by_model)
    return found


def folds_of(samples: Sequence[Sample], seed: int) -> dict[str, int]:
    """Return the fold of each family, at random, but that families of one template are spread over the folds."""
    templates: dict[str, Counter[str]] = {}
    for sample in samples:
        templates.setdefault(sample.family, Counter())[sample.template] += 1
    mixed = map(str, np.random.default_rng(seed).permutation(sorted(templates)))
    most = {family: min(counts, key=lambda t: (-counts[t], t)) for family, counts in templates.items()}
    return {family: number % FOLDS for number, family in enumerate(sorted(mixed, key=lambda family: most[family]))}


def _predicted(model: LatencyModel, samples: Sequence[Sample], cpu: CpuDevice) -> np.ndarray:
    kernels: list[KernelFacts] = [sample.record.kernel for sample in samples]
    return np.array([prediction.latency_us for prediction in model.predict(kernels, cpu)])


def spreads_of(judged: Mapping[str, Judged]) -> dict[str, tuple[float, float]]:
    """Return the factors on predictions between which what was measured lies, but for a tenth on either side."""
    ends = (1 - INSIDE) / 2, (1 + INSIDE) / 2
    found = {}
    for name, one in judged.items():
        low, high = np.quantile(one.measured_us / one.by_model["learned"], ends)
        found[name] = float(low), float(high)
    return found


def schedule_gains_of(judged: Mapping[str, Judged]) -> dict[str, float]:
    """By template, the share of the predicted time that another schedule than the laws' must promise to be no slower,
    so that it is slower in few cases only; templates of which too little was measured to say so are left out.

    In each structure the schedule that the laws find fastest is set against the one that trees find fastest which have
    not seen its model.
    """
    found = {}
    for name, one in judged.items():
        pairs = []
        for at in _by_structure(one):
            learned, laws, measured = one.by_model["learned"][at], one.by_model["analytical"][at], one.measured_us[at]
            usual, best = int(np.argmin(laws)), int(np.argmin(learned))
            if usual != best:
                pairs.append((1 - learned[best] / learned[usual], measured[best] / measured[usual]))
        gain = least_gain(pairs)
        if gain is not None:
            found[name] = gain
    return found


def least_gain(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Return the least share of the predicted time from which on choices that promise as much are hardly ever slower.

    pairs: what each of some choices promised, and how many times as long it took. None: no such share is known.
    """
    known = np.array(list(pairs)).reshape(-1, 2)
    for gain in GAINS:
        ratios = known[known[:, 0] >= gain, 1]
        if len(ratios) < FEWEST_CHOICES:
            break
        if np.mean(ratios > NOISE) <= SELDOM and np.exp(np.mean(np.log(ratios))) < 1:
            return gain
    return None


def validation(judged: Mapping[str, Judged]) -> dict[str, dict[str, float]]:
    """By template: how many kernels and structures; by model the rank correlation, the mean error as a power of two,
    the rank correlation among schedules of one structure, and how much longer than the best measured schedule of a
    structure the one takes that the model finds fastest.
    """
    found = {}
    for name, one in judged.items():
        structures = _by_structure(one)
        row: dict[str, float] = {
            "kernels": len(one.samples), "structures": len({s.record.structure for s in one.samples}),
            "compared": len(structures),
        }  # fmt: skip
        for model, predicted in one.by_model.items():
            row[f"{model} rank"] = _rank_correlation(predicted, one.measured_us)
            row[f"{model} error"] = float(np.mean(np.abs(np.log2(predicted / one.measured_us))))
            if structures:
                ranks = [_rank_correlation(predicted[at], one.measured_us[at]) for at in structures]
                lost = [one.measured_us[at][np.argmin(predicted[at])] / one.measured_us[at].min() for at in structures]
                row[f"{model} rank of schedules"] = float(np.mean(ranks))
                row[f"{model} choice over best"] = float(np.exp(np.mean(np.log(lost))))
        found[name] = {key: round(value, 4) for key, value in row.items()}
    return found


def _by_structure(one: Judged) -> list[np.ndarray]:
    """Return the places of the schedules of each structure of which three or more were measured."""
    places: dict[str, list[int]] = {}
    for at, sample in enumerate(one.samples):
        places.setdefault(sample.record.structure, []).append(at)
    return [np.array(found) for found in places.values() if len(found) >= 3]


def _rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's; 0 where one of both is all equal."""
    a, b = _ranks(one), _ranks(other)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    """Equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2)[inverse]


# -- another machine ---------------------------------------------------------------------------------------------------


def fine_tune(model: LearnedModel, samples: Sequence[Sample], cpu: CpuDevice) -> LearnedModel:
    """Return the model with what measurements of another machine say of it; trees stay as they are."""
    bare = replace(model, adaptation=type(model.adaptation)())
    predicted = _predicted(bare, samples, cpu)
    measured = np.array([sample.record.latency_us for sample in samples])
    lines = adapted([sample.template for sample in samples], np.log(predicted), np.log(measured))
    return replace(model, adaptation=lines)
