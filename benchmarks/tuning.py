"""How fast tuning gets somewhere, and how far: one tuner that tries schedules at random, one that a latency model
guides, and guided tuners side by side, each on cores of its own.

    python -m benchmarks.tuning [MODEL.onnx ...] [--seconds S] [--write]

Each way tunes the same plan for so many seconds. What it finds is compared, kernel by kernel and then as a whole, in
the model, with nothing beside it; the sums of the kernels' times there are the result. *Time*: the seconds after which
a way had saved as much, by its measurements of single kernels, as the random one in the end. `--write` writes
benchmarks/results/tuning.json and docs/measurements/tuning.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.turns import markdown, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.tune.confirm import confirmed
from tilestitch.compiler.tune.machine import Builds, Cpu
from tilestitch.compiler.tune.shares import tune_side_by_side
from tilestitch.compiler.tune.subject import Subject
from tilestitch.compiler.tune.tune import GUIDE, Saved, best_of
from tilestitch.compiler.tune.tuner import Tried
from tilestitch.cost_model.models import model_named

PAGE = Path(__file__).parents[1] / "docs" / "measurements" / "tuning.md"
MODELS = Path(__file__).parent / "models"
NAMES = ("mobilenetv2", "resnet50", "bert_base", "gpt2_small")
THREADS = 1


@dataclass(frozen=True)
class Way:
    """A way to tune: the latency model that guides it, and the most tuners side by side."""

    name: str
    guide: str
    shares: int | None


WAYS = (Way("random", "random", 1), Way("guided", GUIDE, 1), Way("side by side", GUIDE, None))


@dataclass
class Timeline:
    """How much of the model's time the best schedules save, by themselves, after so many seconds."""

    saved: Saved
    start_s: float
    points: list[tuple[float, float]] = field(default_factory=list)

    def add(self, one: Tried) -> None:
        self.points.append((time.monotonic() - self.start_s, self.saved.add(one)))

    def seconds_to(self, saved: float) -> float | None:
        return next((seconds for seconds, found in self.points if found >= saved), None)


def tuned(path: Path, way: Way, seconds: float, seed: int) -> tuple[dict[str, Any], Timeline]:
    found = compile_model(path, num_threads=THREADS).specialisations[0]
    machine, guide = Cpu(Builds("cpu"), THREADS), model_named(way.guide)
    subject = Subject.of(found.graph, found.plan, machine, model_named(GUIDE), {}, seed)
    shares = machine.shares(way.shares)
    tuners = subject.tuners(len(shares), guide, seed)
    timeline = Timeline(Saved(subject), time.monotonic())
    tried, lost = tune_side_by_side(tuners, shares[: len(tuners)], seconds, timeline.add)
    assert not lost, lost
    best = best_of(tried)
    pairs = [(task, best[task.structure][1]) for task in subject.tasks if task.structure in best]
    proven = confirmed(subject.graph, subject.plan, pairs, subject.feeds, subject.compiler)
    result = {
        "model": path.stem, "way": way.name, "tuners": len(tuners), "tasks": len(subject.tasks), "tried": len(tried),
        "saved_alone": timeline.points[-1][1] if timeline.points else 0.0,
        "before_us": proven.before_us, "after_us": proven.after_us,
        "timeline": [(round(at, 1), round(saved, 4)) for at, saved in timeline.points[:: max(1, len(tried) // 50)]],
    }  # fmt: skip
    return result, timeline


def race(path: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    found = [tuned(path, way, options.seconds, options.seed) for way in WAYS]
    goal = found[0][0]["saved_alone"]
    rows = []
    for result, timeline in found:
        rows.append({**result, "seconds_to_random": timeline.seconds_to(goal)})
        print({key: value for key, value in rows[-1].items() if key != "timeline"}, file=sys.stderr, flush=True)
    return rows


def page(rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> str:
    header = ("model", "way", "tuners", "schedules tried", "time to random's result, s", "kernels before, us",
              "after, us", "after / before")  # fmt: skip
    cells = [
        [row["model"], row["way"], row["tuners"], row["tried"],
         "-" if row["seconds_to_random"] is None else f"{row['seconds_to_random']:.0f}",
         f"{row['before_us']:.0f}", f"{row['after_us']:.0f}", f"{row['after_us'] / row['before_us']:.3f}"]
        for row in rows
    ]  # fmt: skip
    return (
        "# Tuning, measured\n\n<!-- written by: python -m benchmarks.tuning --write -->\n\n"
        f"Schedules were tried for {options.seconds:.0f} s a way, for one thread: at random by one tuner, guided by "
        "the learned latency model by\none tuner, and guided by tuners side by side, each on a core of its own. *Time "
        "to random's result*: when a way had saved\nas much, by its measurements of single kernels, as the random one "
        "at the end. Kernels before and after are sums of the\nleast time of each launch in the whole model, by turns, "
        "with nothing beside it. See [tuning.md](../tuning.md).\n\n" + markdown(header, cells)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tuning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, default=[MODELS / f"{name}.onnx" for name in NAMES])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    rows = [row for path in options.models for row in race(path, options)]
    text = page(rows, options)
    print(text)
    if options.write:
        write_results("tuning", rows)
        PAGE.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
