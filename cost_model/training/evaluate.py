"""Compares predictions with all measurements in a folder.

  python -m tilestitch.cost_model.training.evaluate FOLDER --json OUT [--calibrate N] [--model FILE]

FOLDER holds any of devices.csv, kernels/*.csv.gz, models/end_to_end.csv and models/opgraph/. GPUs missing from
devices.csv are looked up in the model, or in the table of devices. Rows without latency, sizes or a known operator are
left out, and counted as `left_out`. With --calibrate, the model adapts to N measured rows of each class and GPU, which
are left out of the score.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.library.model import SHIPPED, LibraryModel, read_model
from tilestitch.cost_model.training.scoring import (
    Folder,
    KernelScore,
    ModelScore,
    percent,
    read_folder,
    score_kernels,
    score_models,
)


def evaluate(model: LibraryModel, folder: Folder, calibrate: int = 0) -> dict[str, Any]:
    """Return the errors in percent for all GPUs with measurements in the folder."""
    gpus = {str(gpu) for table in folder.kernels.values() for gpu in table.gpu}
    gpus |= {row["gpu"] for row in folder.models}
    kernels, taken = score_kernels(model, folder, sorted(gpus), calibrate)
    models, missing = score_models(model, folder, taken, calibrate > 0)
    return {
        "kernels": kernel_report(kernels),
        "models": {**model_report(models), "without_graph": missing},
        "left_out": dict(folder.left_out),
    }


def kernel_report(scores: Sequence[KernelScore]) -> dict[str, Any]:
    """Return by class the rows above twice the launch floor and their error; then rows below it, large shapes, and each
    GPU.
    """
    return {
        name: _class_report([score for score in scores if score.kernel_class == name])
        for name in dict.fromkeys(score.kernel_class for score in scores)
    }


def _class_report(scores: Sequence[KernelScore]) -> dict[str, Any]:
    columns = ("gpu", "us", "measured_us", "clear", "large")
    whole = KernelScore(scores[0].kernel_class, *(np.concatenate([getattr(s, c) for s in scores]) for c in columns))
    ordinary = whole.clear & ~whole.large
    counted = ordinary if ordinary.any() else whole.clear
    return {
        **_error(whole, counted),
        "below_twice_the_floor": _error(whole, ~whole.clear),
        "large_shapes": _error(whole, whole.clear & whole.large),
        "by_gpu": {str(gpu): _error(whole, counted & (whole.gpu == gpu)) for gpu in np.unique(whole.gpu)},
    }


def _error(score: KernelScore, rows: np.ndarray) -> dict[str, Any]:
    return {"rows": int(rows.sum()), "mape": score.percent(rows)}


def model_report(scores: Sequence[ModelScore]) -> dict[str, Any]:
    plain, fused = [s for s in scores if not s.fused], [s for s in scores if s.fused]
    inside = [s.low_ms <= s.measured_ms <= s.high_ms for s in scores]
    return {
        "points": len(plain),
        "mape": percent(plain),
        "fused_points": len(fused),
        "fused_mape": percent(fused),
        "covered_percent": 100 * sum(inside) / len(inside) if inside else None,
        "rows": [score.to_json() for score in scores],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tilestitch.cost_model.training.evaluate", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--calibrate", type=int, default=0, metavar="N", help="measured rows a class to adapt to")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where to write the result (default: standard output)")
    parser.add_argument("--model", type=Path, default=SHIPPED, metavar="FILE", help="default: the one that is shipped")
    options = parser.parse_args(arguments)
    if options.calibrate < 0:
        parser.error(f"--calibrate {options.calibrate} is negative")
    try:
        found = evaluate(read_model(options.model), read_folder(options.folder), options.calibrate)
        text = json.dumps(found, indent=1, allow_nan=False) + "\n"
        if options.json is None:
            sys.stdout.write(text)
        else:
            options.json.write_text(text, encoding="utf-8")
    except (MeasurementError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
