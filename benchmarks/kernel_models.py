"""Models of many sizes, whose kernels the learned cost model is trained on.

    python -m benchmarks.kernel_models FOLDER [--count N] [--seed N]
    python -m benchmarks.kernel_models FOLDER --operators [FAMILY ...] [--each N] [--seed N]

Blocks of the models that the replay compiles, with sizes drawn at random: no PyTorch, no downloads, the same files for
the same seed. With `--operators` models of single operators, for templates of which blocks have few kernels
(`kernel_operators.py`); measure these by a planner that does not put independent operators side by side into one
launch: `xla` has their epilogues, `none` has not. Models that the cost model is judged by are none of these.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import onnx
from onnx import ModelProto

from benchmarks.kernel_operators import FAMILIES, model_of
from benchmarks.replay import catalogue
from tests.models import cnn, transformer
from tests.networks import bert, gpt2, residual_block

WIDTHS = (32, 48, 64, 96, 128, 192, 256, 320, 384, 512)
CHANNELS = (8, 16, 24, 32, 48, 64, 96, 128)
SIZES = (7, 8, 12, 14, 19, 28, 32, 41, 56)
ROWS = (1, 2, 5, 16, 33, 64, 100, 128, 197, 256, 512)


def _transformer(random: Random) -> ModelProto:
    hidden = random.choice((64, 128, 192, 256, 384))
    return transformer(hidden=hidden, sequence=random.choice(ROWS[2:]), causal=random.random() < 0.5)


def _bert(random: Random) -> ModelProto:
    heads = random.choice((2, 4))
    return bert(batch=random.choice((1, 2)), length=random.choice((16, 48, 96)), hidden=heads * 32, heads=heads)


def _gpt2(random: Random) -> ModelProto:
    heads = random.choice((2, 4, 6))
    return gpt2(length=random.choice((4, 16, 64, 128)), hidden=heads * 32, heads=heads, layers=1)


def _residual(random: Random) -> ModelProto:
    cin, cout = random.choice(CHANNELS), random.choice(CHANNELS)
    return residual_block(batch=random.choice((1, 2)), cin=cin, cout=cout, size=random.choice(SIZES))


def _attention(random: Random) -> ModelProto:
    queries, keys = random.choice(ROWS), random.choice(ROWS[2:])
    return catalogue.attention(queries, keys, random.choice((1, 4, 8)), random.choice((32, 64)))


def _recurrent(kind: str, gates: int) -> Callable[[Random], ModelProto]:
    def build(random: Random) -> ModelProto:
        steps, batch = random.choice((2, 4)), random.choice((1, 3))
        return catalogue.recurrent(kind, gates, steps, batch, random.choice(WIDTHS), random.choice(WIDTHS))

    return build


BLOCKS: Mapping[str, Callable[[Random], ModelProto]] = {
    "gated_mlp": lambda r: catalogue.gated_mlp(r.choice(ROWS), r.choice(WIDTHS), 2 * r.choice(WIDTHS)),
    "attention": _attention,
    "lstm": _recurrent("LSTM", 4),
    "gru": _recurrent("GRU", 3),
    "inception": lambda r: catalogue.inception(r.choice(CHANNELS), r.choice(SIZES)),
    "mobile_block": lambda r: catalogue.mobile_block(r.choice(CHANNELS), r.choice(SIZES)),
    "group_norm": lambda r: catalogue.group_norm(r.choice(CHANNELS), r.choice(SIZES)),
    "long_rows": lambda r: catalogue.long_rows(r.choice((1, 2, 5)), r.choice((20_000, 65_536, 150_000))),
    "columns": lambda r: catalogue.columns(r.choice((256, 1000, 4096)), r.choice(WIDTHS)),
    "projections": lambda r: catalogue.projections(r.choice(ROWS), r.choice(WIDTHS)),
    "sorting": lambda r: catalogue.sorting(r.choice((5, 33)), r.choice((30, 300, 999))),
    "cnn": lambda r: cnn(channels=r.choice(CHANNELS), size=r.choice((16, 32, 64))),
    "transformer": _transformer,
    "bert": _bert,
    "gpt2": _gpt2,
    "residual": _residual,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernel_models", description="Write models of many sizes."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--count", type=int, default=160, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--operators", nargs="*", choices=FAMILIES, metavar="FAMILY",
        help=f"models of single operators instead, of all families or of those named: {', '.join(FAMILIES)}",
    )  # fmt: skip
    parser.add_argument("--each", type=int, default=2, metavar="N", help="of each family of these (default 2)")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.operators is not None:
        for family in options.operators or FAMILIES:
            for number in range(options.each):
                onnx.save(model_of(family, f"{options.seed} {number}"), options.folder / f"{family}-{number}.onnx")
        return 0
    names = list(BLOCKS)
    for number in range(options.count):
        name = names[number % len(names)]
        model = BLOCKS[name](Random(f"{options.seed} {number}"))
        onnx.save(model, options.folder / f"{name}-{number}.onnx")
    return 0


if __name__ == "__main__":
    sys.exit(main())
