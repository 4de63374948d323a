"""Fits the learned model of generated kernels to records, and evaluates it on held-out models."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilestitch.cost_model.analytical import ANALYTICAL
from tilestitch.cost_model.devices import CpuDevice
from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.facts import KernelFacts, Part
from tilestitch.cost_model.generated.features import BODIES, choice_names, described, matrix, seen
from tilestitch.cost_model.generated.model import LearnedModel, Template, adapted
from tilestitch.cost_model.models import RandomModel
from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.cost_model.records import Record
from tilestitch.cost_model.training.forests import forest_from_dump

DEPTH, ROUNDS, RATE, LEAF = 4, 120, 0.08, 12
FEWEST = 40
"""Fewest kernels for growing the trees of a template."""
COUNTS = frozenset({"nodes", "gathers", "divisions", "selects", "casts", "concats", "views"})
"""Choices that count nodes."""
FOLDS = 5
GAINS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4)
NOISE, SELDOM, FEWEST_CHOICES = 1.02, 0.1, 12
"""A choice counts as slower above the first ratio; "seldom" is at most the second fraction of at least the third
number.
"""
INSIDE = 0.8
"""Coverage of intervals on held-out models."""


@dataclass(frozen=True)
class Sample:
    """A record of a single-part kernel, with its features."""

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
        """The family of the model: models that differ only in sizes, such as `cnn-12` and `cnn-28`, or `t5.dynamo18`,
        are held out together.
        """
        return family_of(self.record.model)


def family_of(model: str) -> str:
    return model.split(".")[0].split("-")[0]


def samples_of(records: Iterable[Record], cpu: CpuDevice) -> list[Sample]:
    """Return the samples: records of kernels with one launch of one part that has a template."""
    single = [r for r in records if len(r.kernel.parts) == 1 and r.kernel.parts[0].template]
    rows = described([record.kernel.parts[0] for record in single], cpu)
    return [Sample(*one) for one in zip(single, rows.laws.latency_us.tolist(), rows.common.T, strict=True)]


def fit(samples: Sequence[Sample], seed: int, spreads: Mapping[str, tuple[float, float]] | None = None) -> LearnedModel:
    """Return the model fitted to samples. Raises ImportError without xgboost, and MeasurementError if there are too
    few.
    """
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
    """The kernels of one template: measurements, and predictions of models that have not seen the kernels' families."""

    samples: Sequence[Sample]
    measured_us: np.ndarray
    by_model: Mapping[str, np.ndarray]


def judge(samples: Sequence[Sample], cpu: CpuDevice, seed: int) -> dict[str, Judged]:
    """Return by template held-out predictions: trees have seen neither a model of the kernel's family nor a kernel of
    its structure.
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
    """Return a random assignment of families to folds that spreads the families of each template."""
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
    """Return, by template, the factors on predictions that bound the central part of measurements, without a tenth at
    either end.
    """
    ends = (1 - INSIDE) / 2, (1 + INSIDE) / 2
    found = {}
    for name, one in judged.items():
        low, high = np.quantile(one.measured_us / one.by_model["learned"], ends)
        found[name] = float(low), float(high)
    return found


def schedule_gains_of(judged: Mapping[str, Judged]) -> dict[str, float]:
    """Return by template the least relative gain that must be predicted for a schedule to replace that of the laws, so
    that it is rarely slower; templates with too few measurements are omitted.

    In each structure, the schedule that is fastest by the laws is compared with the one that is fastest by trees which
    have not seen its model.
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
    """Return the least predicted relative gain from which choices are hardly ever slower.

    pairs: for each of some choices, the predicted gain and the measured ratio of times. None: no such gain is known.
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
    """Return by template the numbers of kernels and structures, and by model: the rank correlation, the mean error as a
    power of two, the rank correlation among schedules of one structure, and how much longer than the best measured
    schedule of a structure the model's choice takes.
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
    """Return the indices of the schedules of each structure with at least three measured ones."""
    places: dict[str, list[int]] = {}
    for at, sample in enumerate(one.samples):
        places.setdefault(sample.record.structure, []).append(at)
    return [np.array(found) for found in places.values() if len(found) >= 3]


def _rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return Spearman's rank correlation; 0 where one of them is constant."""
    a, b = _ranks(one), _ranks(other)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2)[inverse]


# -- another machine ---------------------------------------------------------------------------------------------------


def fine_tune(model: LearnedModel, samples: Sequence[Sample], cpu: CpuDevice) -> LearnedModel:
    """Return the model adapted to measurements on another machine; trees are unchanged."""
    bare = replace(model, adaptation=type(model.adaptation)())
    predicted = _predicted(bare, samples, cpu)
    measured = np.array([sample.record.latency_us for sample in samples])
    lines = adapted([sample.template for sample in samples], np.log(predicted), np.log(measured))
    return replace(model, adaptation=lines)
