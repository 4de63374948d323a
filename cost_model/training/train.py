"""Trains the model of library kernels on a folder of measurements, and writes it with its validation inside.

  python -m tilestitch.cost_model.training.train FOLDER [-o FILE] [--seed N] [--table TABLE.md]

Validation holds out one GPU at a time: its kernels and whole models are predicted by a model that was fitted to the
others, from its data sheet alone (zero-shot) and after 20 measured rows a class (calibrated). The same folder and seed
give the same file. xgboost is needed: pip install 'tilestitch[train]'.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.library import model
from tilestitch.cost_model.library.classes import ConvModel, GemmModel
from tilestitch.cost_model.library.data import CONV, GEMM_CLASSES, GRAPH_CLASSES, KernelTable
from tilestitch.cost_model.library.model import LibraryModel, Spread
from tilestitch.cost_model.training import fitting
from tilestitch.cost_model.training.evaluate import kernel_report, model_report
from tilestitch.cost_model.training.scoring import (
    Folder,
    KernelScore,
    ModelScore,
    read_folder,
    score_kernels,
    score_models,
    sheet_for,
)
from tilestitch.cost_model.training.tables import hashes

MODES = {"zero_shot": 0, "calibrated": 20}
INSIDE = 0.9
"""Coverage on the GPUs from which intervals are derived; with so few GPUs, this gives about 80 % on another one."""
UNCOUNTED = tuple(fitting.CONTRADICTED)
"""GPUs that are reported, but excluded from means."""
DRAWS = 1000
FEWEST_MODELS = 6
"""Fewest whole models for an interval."""

Scores = dict[str, tuple[list[KernelScore], list[ModelScore]]]


def fit(folder: Folder, without: str | None, seed: int) -> LibraryModel:
    """Return the model fitted to all GPUs of the folder but one."""
    classes: dict[str, model.ClassModel] = {}
    for name, table in folder.kernels.items():
        rows = table if without is None else table.take(np.flatnonzero(table.gpu != without))
        if name == CONV:
            classes[name] = _fit_convs(rows, folder, classes, seed)
        else:
            classes[name] = (fitting.fit_gemms if table.is_gemm else fitting.fit_rows)(rows, folder.sheets, seed)
    used = {gpu for one in classes.values() for gpu in one.seen}
    return LibraryModel(classes, {gpu: folder.sheets[gpu] for gpu in sorted(used)})


def _fit_convs(table: KernelTable, folder: Folder, classes: Mapping[str, model.ClassModel], seed: int) -> ConvModel:
    batched, shared = (classes.get(name) for name in GEMM_CLASSES)
    if not (isinstance(batched, GemmModel) and isinstance(shared, GemmModel)):
        raise MeasurementError(
            f"{folder.path} has convolutions and no GEMMs, by which they are forecast; add bmm.csv.gz and linear.csv.gz"
        )
    return fitting.fit_convs(table, folder.sheets, shared, batched, seed)


def with_sheets(folder: Folder) -> Folder:
    """Return the folder with the data sheets of all GPUs with measured kernels. Raises MeasurementError where one is
    missing.
    """
    gpus = {str(gpu) for table in folder.kernels.values() for gpu in table.gpu}
    return replace(folder, sheets={**folder.sheets, **{gpu: sheet_for(folder, gpu, {}) for gpu in gpus}})


def validate(folder: Folder, seed: int) -> Scores:
    """Return the scores of each GPU under the model of the others, by mode."""
    scores: Scores = {mode: ([], []) for mode in MODES}
    for gpu in sorted({str(gpu) for table in folder.kernels.values() for gpu in table.gpu}):
        print(f"leaving out {gpu}", file=sys.stderr, flush=True)
        others = fit(folder, gpu, seed)
        for mode, calibrate in MODES.items():
            kernels, taken = score_kernels(others, folder, [gpu], calibrate)
            scores[mode][0].extend(kernels)
            if set(GRAPH_CLASSES) <= set(folder.kernels):
                scores[mode][1].extend(score_models(others, folder, taken, calibrate > 0)[0])
    return scores


def spreads(scores: Scores) -> dict[str, dict[str, Spread]]:
    """Return factors that contain INSIDE of measured over predicted times, by mode and class, and for whole models."""
    found: dict[str, dict[str, Spread]] = {}
    for mode, (kernels, models) in scores.items():
        counted = [score for score in kernels if not set(score.gpu) & set(UNCOUNTED)]
        found[mode] = {
            name: _spread([s.measured_us[s.clear] / s.us[s.clear] for s in counted if s.kernel_class == name])
            for name in dict.fromkeys(score.kernel_class for score in counted)
        }
        whole = [s for s in models if s.row["gpu"] not in UNCOUNTED]
        for key, some in (("model", [s for s in whole if not s.fused]), ("fused", [s for s in whole if s.fused])):
            if len(some) >= FEWEST_MODELS:
                found[mode][key] = _spread([np.array([s.measured_ms / s.predicted_ms for s in some])])
        if "model" in found[mode]:
            found[mode].setdefault("fused", found[mode]["model"])
    return found


def coverage(scores: Scores) -> dict[str, dict[str, float]]:
    """Return the percentage of measurements within intervals derived from the other GPUs alone, by mode and class."""
    found: dict[str, dict[str, float]] = {}
    gpus = {str(s.gpu[0]) for s in scores["zero_shot"][0]} - set(UNCOUNTED)
    for mode in scores:
        inside: dict[str, list[np.ndarray]] = {}
        for gpu in sorted(gpus):
            others = {
                m: ([s for s in kernels if s.gpu[0] != gpu], [s for s in models if s.row["gpu"] != gpu])
                for m, (kernels, models) in scores.items()
            }
            by_others = spreads(others)[mode]
            for score in scores[mode][0]:
                if score.gpu[0] == gpu and score.kernel_class in by_others and score.clear.any():
                    ratios = score.measured_us[score.clear] / score.us[score.clear]
                    inside.setdefault(score.kernel_class, []).append(by_others[score.kernel_class].holds(ratios))
            for whole in scores[mode][1]:
                if whole.row["gpu"] == gpu and "model" in by_others:
                    spread = by_others["fused" if whole.fused else "model"]
                    ratio = np.array([whole.measured_ms / whole.predicted_ms])
                    inside.setdefault("models", []).append(spread.holds(ratio))
        found[mode] = {name: round(float(100 * np.mean(np.concatenate(part))), 1) for name, part in inside.items()}
    return found


def _spread(ratios: Sequence[np.ndarray]) -> Spread:
    """Return the conformal interval: quantiles of n ratios that contain the next one with the desired probability; each
    GPU has equal weight.
    """
    parts = [np.sort(part) for part in ratios if len(part)]
    at = np.array([(1 - INSIDE) / 2, (1 + INSIDE) / 2])
    few = max(0.0, 1.0 / min(map(len, parts)) if len(parts) == 1 else 0.0)
    wide = np.clip(at + np.array([-few, few]), 0.0, 1.0)
    even = np.concatenate([np.quantile(part, np.linspace(0, 1, 201)) if len(parts) > 1 else part for part in parts])
    low, high = np.quantile(even, wide)
    return Spread(float(low), float(high))


def train(folder: Folder, seed: int) -> tuple[LibraryModel, Scores]:
    """Return the model of all GPUs, with the leave-one-out validation, and the intervals derived from it."""
    scores = validate(folder, seed)
    devices = folder.path / "devices.csv"
    measured = [*sorted((folder.path / "kernels").glob("*.csv.gz")), *([devices] if devices.is_file() else [])]
    facts = {
        "recipe": {"seed": seed, "rows_of_a_gpu": fitting.ROWS_OF_A_GPU, "trust": fitting.CONTRADICTED},
        "data": hashes(measured, folder.path),
        "validation": validation(scores),
        "coverage_percent": coverage(scores),
    }
    return replace(fit(folder, None, seed), spreads=spreads(scores), facts=facts), scores


# -- reports -----------------------------------------------------------------------------------------------------------


def validation(scores: Scores) -> dict[str, Any]:
    """Return the errors in percent by mode and GPU, and their means over the GPUs that count; and by whole model, held
    out.
    """
    return {
        mode: {"kernels": _classes(kernels), "models": _models(models), "left_out_models": _left_out_models(models)}
        for mode, (kernels, models) in scores.items()
    }


def _left_out_models(scores: Sequence[ModelScore]) -> dict[str, Any]:
    """Return the errors of each model on GPUs that were held out as well: the common factor of all totals is estimated
    from the other models; the interval contains 80 % of the errors in resamples of as many points.
    """
    counted = [score for score in scores if score.row["gpu"] not in UNCOUNTED]
    found = {}
    for name in sorted({score.row["model"] for score in counted}):
        mine, others = (
            np.array([s.predicted_ms / s.measured_ms for s in counted if (s.row["model"] == name) == own])
            for own in (True, False)
        )
        factor = float(np.exp(-np.median(np.log(others)))) if len(others) else 1.0
        errors = 100 * np.abs(factor * mine - 1)
        draws = np.random.default_rng(0).choice(errors, (DRAWS, len(errors))).mean(axis=1)
        low, high = np.quantile(draws, [0.1, 0.9])
        found[name] = {"points": len(errors), "factor": round(factor, 3), "mape": _rounded(float(errors.mean())),
                       "low": _rounded(float(low)), "high": _rounded(float(high))}  # fmt: skip
    return found


def _classes(scores: Sequence[KernelScore]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in dict.fromkeys(score.kernel_class for score in scores):
        rows = {}
        for score in (s for s in scores if s.kernel_class == name):
            report = kernel_report([score])[name]
            parts = {"ordinary": report, "large": report["large_shapes"], "small": report["below_twice_the_floor"]}
            rows[str(score.gpu[0])] = {key: _rounded(part["mape"]) for key, part in parts.items()}
        mean = _means(rows)
        both = mean["ordinary"], mean["large"]
        mean["large_over_ordinary"] = _rounded(both[1] / both[0]) if both[0] and both[1] is not None else None
        found[name] = {**rows, "mean": mean}
    return found


def _models(scores: Sequence[ModelScore]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for gpu in dict.fromkeys(score.row["gpu"] for score in scores):
        report = model_report([score for score in scores if score.row["gpu"] == gpu])
        found[gpu] = {key: _rounded(report[key]) for key in ("points", "mape", "fused_points", "fused_mape")}
    counted = model_report([score for score in scores if score.row["gpu"] not in UNCOUNTED])
    return {**found, "mean": {k: _rounded(counted[k]) for k in ("points", "mape", "fused_points", "fused_mape")}}


def _means(rows: Mapping[str, Mapping[str, float | None]]) -> dict[str, float | None]:
    counted = [row for gpu, row in rows.items() if gpu not in UNCOUNTED]
    found: dict[str, float | None] = {}
    for key in ("ordinary", "large", "small"):
        values = [value for row in counted if (value := row[key]) is not None]
        found[key] = _rounded(float(np.mean(values))) if values else None
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def table(found: Mapping[str, Any]) -> str:
    """Return the validation as Markdown."""
    return "\n".join(line for mode, scores in found.items() for line in _section(mode, scores))


PARTS = {"ordinary": "", "large": ", large shapes", "small": ", below twice the floor"}


def _section(mode: str, scores: Mapping[str, Any]) -> list[str]:
    gpus = list(dict.fromkeys(gpu for rows in scores["kernels"].values() for gpu in rows))
    lines = [f"## {mode.replace('_', '-')}", "", _line("kernels", gpus), _line("---", ["---"] * len(gpus))]
    for name, rows in scores["kernels"].items():
        for part, title in PARTS.items():
            lines.append(_line(name + title, [_cell(rows.get(gpu, {}).get(part)) for gpu in gpus]))
    lines += ["", "Error of large shapes relative to that of other shapes, means:", ""]
    ratios = {name: rows["mean"]["large_over_ordinary"] for name, rows in scores["kernels"].items()}
    lines += [_line("class", list(ratios)), _line("---", ["---"] * len(ratios))]
    lines.append(_line("ratio", ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios.values()]))
    lines += ["", _line("whole models", ["points", "error", "fused points", "error"]), _line("---", ["---"] * 4)]
    for gpu, row in scores["models"].items():
        cells = [str(row["points"]), _cell(row["mape"]), str(row["fused_points"]), _cell(row["fused_mape"])]
        lines.append(_line(gpu, cells))
    lines += ["", "Models held out as well: the common factor of totals is estimated from the other models.", ""]
    lines += [_line("model", ["points", "factor", "error", "80 % of draws"]), _line("---", ["---"] * 4)]
    for name, row in scores["left_out_models"].items():
        cells = [str(row["points"]), f"{row['factor']:.2f}", _cell(row["mape"])]
        lines.append(_line(name, [*cells, f"{_cell(row['low'])} to {_cell(row['high'])}"]))
    return [*lines, ""]


def _covered(found: Mapping[str, Mapping[str, float]]) -> str:
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    lines = [
        "",
        "## What intervals hold",
        "",
        "Percentage of measurements within intervals derived from the other GPUs.",
        "",
    ]
    lines += [_line("mode", names), _line("---", ["---"] * len(names))]
    lines += [_line(mode.replace("_", "-"), [_cell(row.get(name)) for name in names]) for mode, row in found.items()]
    return "\n".join(lines) + "\n"


def _line(first: str, others: Sequence[str]) -> str:
    return f"| {' | '.join([first, *others])} |"


def _without_interval(score: ModelScore) -> dict[str, Any]:
    """Return a score without its interval: validation derives intervals; the models that it scores have none."""
    return {key: value for key, value in score.to_json().items() if key not in ("low_ms", "high_ms")}


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


HEAD = """# Accuracy of forecasts of library kernels

Mean absolute percentage error in leave-one-out validation: each GPU is predicted by a model trained on the
others. P4 is excluded from means: its data are inconsistent. Generated by
`python -m tilestitch.cost_model.training.train`; [forecasting.md](../forecasting.md) explains the terms.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tilestitch.cost_model.training.train", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("-o", "--output", type=Path, default=model.SHIPPED, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--table", type=Path, metavar="TABLE.md", help="write the validation as a document, too")
    parser.add_argument("--results", type=Path, metavar="FILE.json", help="and every whole model's prediction")
    options = parser.parse_args(arguments)
    try:
        folder = read_folder(options.folder)
        for name, count in folder.left_out.items():
            print(
                f"{count} rows of {name} have no latency, sizes or known operator; they are left out", file=sys.stderr
            )
        trained, scores = train(with_sheets(folder), options.seed)
        text = json.dumps(trained.to_json(), separators=(",", ":"), allow_nan=False) + "\n"
        options.output.write_text(text, encoding="utf-8")
        if options.table is not None:
            text = table(trained.facts["validation"]) + _covered(trained.facts["coverage_percent"])
            options.table.write_text(HEAD + text, encoding="utf-8")
        if options.results is not None:
            found = {mode: [_without_interval(score) for score in models] for mode, (_, models) in scores.items()}
            options.results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    except ImportError as error:
        print(f"error: {error.name} is not installed; pip install 'tilestitch[train]'", file=sys.stderr)
        return 4
    except (MeasurementError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
