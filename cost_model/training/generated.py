"""Trains the model of generated kernels on records of a CPU, and writes it with its validation inside.

  python -m tilestitch.cost_model.training.generated RECORDS [-o FILE] [--seed N] [--plans PLANS.json] [--table FILE.md]
  python -m tilestitch.cost_model.training.generated RECORDS --tune MODEL.json -o FILE.json

RECORDS is what `python -m tilestitch.compiler.measure` writes, either form. Validation predicts each kernel by trees
that have seen no model of its family, and no kernel of its structure. The same records and seed give the same file.
xgboost is needed to grow trees (pip install 'tilestitch[train]'); --tune leaves trees as they are and needs none: some
two hundred records of another machine tell it how much slower or faster that is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilestitch.cost_model.devices import CpuDevice
from tilestitch.cost_model.errors import MeasurementError
from tilestitch.cost_model.facts_json import digest_of
from tilestitch.cost_model.generated.model import SHIPPED, LearnedModel, load_learned
from tilestitch.cost_model.records import Record
from tilestitch.cost_model.training import fit
from tilestitch.cost_model.training.record_files import read_records
from tilestitch.runtime.archive import atomic_file

CPUS = {
    "avx512": CpuDevice(vector_bytes=64, l1_bytes=48 << 10, l2_bytes=2 << 20),
    "avx2": CpuDevice(vector_bytes=32), "sse": CpuDevice(vector_bytes=16), "generic": CpuDevice(vector_bytes=16),
    "neon": CpuDevice(vector_bytes=16, l1_bytes=64 << 10),
}  # fmt: skip
"""The laws' assumptions about CPUs, by vector unit: the same as in planning."""


def cpu_of(records: Sequence[Record]) -> CpuDevice:
    """Return the CPU as the laws see it. Raises MeasurementError for records of several machines, or of an unknown
    one.
    """
    devices = sorted({record.machine.device for record in records})
    if len(devices) != 1:
        raise MeasurementError(f"records of {len(devices)} devices ({'; '.join(devices)}); train on those of one")
    unit = devices[0].rpartition("(")[2].partition(",")[0]
    if unit not in CPUS:
        raise MeasurementError(f"{devices[0]}: its vector unit is none of {', '.join(CPUS)}; measure kernels again")
    return CPUS[unit]


def train(records: Sequence[Record], seed: int, plans: Path | None = None) -> LearnedModel:
    """Return the trained model. plans: the output of `python -m benchmarks.plan_gains`."""
    cpu = cpu_of(records)
    samples = fit.samples_of(records, cpu)
    judged = fit.judge(samples, cpu, seed)
    gains: dict[str, Any] = {"schedule_gains": fit.schedule_gains_of(judged)}
    if plans is not None:
        gains["least_gain"] = plan_gain_of(plans)
    facts = {
        "recipe": {"seed": seed, "depth": fit.DEPTH, "rounds": fit.ROUNDS, "rate": fit.RATE, "folds": fit.FOLDS},
        "device": records[0].machine.device, "versions": records[0].machine.versions,
        "records": len(records), "models": len({record.model for record in records}),
        "digest": digest_of([record.to_json() for record in records]), "validation": fit.validation(judged), **gains,
    }  # fmt: skip
    return replace(fit.fit(samples, seed, fit.spreads_of(judged)), facts=facts)


def plan_gain_of(path: Path) -> float:
    """Return the predicted relative gain from which plans were hardly ever slower.

    Raises MeasurementError for a file not written by `benchmarks.plan_gains`, or with too few or too poor plans.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["results"]
        pairs = [(float(row["promised"]), float(row["took"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MeasurementError(f"{path} has no pairs of plans ({error}); write it by benchmarks.plan_gains") from None
    gain = fit.least_gain(pairs)
    if gain is None:
        raise MeasurementError(f"{path}: no share of the predicted time keeps {len(pairs)} plans from being slower")
    return gain


def table(validation: Mapping[str, Mapping[str, float]]) -> str:
    """Return a Markdown table with a row per template."""
    models = ("learned", "analytical", "random")
    lines = [
        "| template | kernels | structures | rank: learned | analytical | random | error: learned | analytical |"
        " choice: learned | analytical | random |",
        "|---|" + "---|" * 10,
    ]
    for name, row in validation.items():
        ranks = [f"{row[f'{model} rank']:.3f}" for model in models]
        errors = [f"{row[f'{model} error']:.2f}" for model in models[:2]]
        choices = [_cell(row.get(f"{model} choice over best")) for model in models]
        counts = [f"{row['kernels']:.0f}", f"{row['structures']:.0f}"]
        lines.append(f"| {' | '.join([name, *counts, *ranks, *errors, *choices])} |")
    return "\n".join(lines) + "\n"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


HEAD = """# Accuracy of predictions of generated kernels

Kernels are predicted by trees trained without their structure and without models of their family. Rank: Spearman's
correlation of predicted and measured time. Error: mean of the absolute logarithm to base 2. Choice: time of the
schedule predicted to be fastest, relative to the best measured one of the structure, where three or more were
measured. Generated by `python -m tilestitch.cost_model.training.generated`; see [forecasting.md](../forecasting.md).

"""


def _write(path: Path, data: Any) -> None:
    with atomic_file(path) as file:
        file.write(json.dumps(data, separators=(",", ":"), allow_nan=False).encode() + b"\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tilestitch.cost_model.training.generated", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("records", type=Path, metavar="RECORDS")
    parser.add_argument("-o", "--output", type=Path, default=SHIPPED, metavar="FILE.json")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--tune", type=Path, metavar="MODEL.json", help="adapt this model instead of fit trees")
    parser.add_argument("--plans", type=Path, metavar="PLANS.json", help="what plans were worth that it found better")
    parser.add_argument("--table", type=Path, metavar="TABLE.md", help="write the validation as a document, too")
    options = parser.parse_args(arguments)
    try:
        records = read_records(options.records)
        if options.tune is not None:
            cpu = cpu_of(records)
            trained = fit.fine_tune(load_learned(options.tune), fit.samples_of(records, cpu), cpu)
        else:
            trained = train(records, options.seed, options.plans)
        _write(options.output, trained.to_json())
        if options.table is not None:
            options.table.write_text(HEAD + table(trained.facts["validation"]), encoding="utf-8")
    except ImportError as error:
        print(f"error: {error.name} is not installed; pip install 'tilestitch[train]'", file=sys.stderr)
        return 4
    except (MeasurementError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
