"""Greedy decoding with a small Llama whose cache has an open length: tilestitch against ONNX Runtime with IO binding.

    python -m benchmarks.decode [--steps N] [--prompt N] [--threads N ...] [--exporter script|dynamo]

Both engines read the same prompt, and then each generates its own tokens, which have to be equal. They take turns of
some steps; the first of a turn is not counted. Then each decodes once more alone in a process of its own, which tells
how its resident memory grows. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from benchmarks.open_models.catalogue import MODELS
from benchmarks.open_models.model import EXPORTERS, export
from benchmarks.turns import write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import load

MODEL = "llama"
PAST, PRESENT = "past_key_values", "present"
TURN = 32
"""Steps of an engine before the other's turn."""
HEADER = ("engine", "threads", "ms per token", "first quarter", "last quarter", "tokens", "MiB grown")
MIB = 2**20


class Engine(Protocol):
    """Keeps a cache between calls."""

    facts: Mapping[str, Any]

    def logits(self, ids: np.ndarray, positions: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Of NEW tokens [1, NEW], those of the last: [words]. The mask is [1, past + NEW]."""
        ...


def nothing(shape: Sequence[int | str]) -> np.ndarray:
    """The cache of one sequence that has not begun."""
    sizes = {"batch": 1, "past": 0}
    return np.empty([size if isinstance(size, int) else sizes[size] for size in shape], np.float32)


class Ours:
    """An open artifact; the caches that a call returns are the next one's inputs."""

    donate: tuple[str, ...] = ()

    def __init__(self, path: Path, threads: int) -> None:
        start = time.perf_counter()
        compiled = compile_model(path, num_threads=threads, donate=self.donate)
        told = compiled.explain()
        self.facts: Mapping[str, Any] = {
            "compile_s": round(time.perf_counter() - start, 2),
            "kernels": len(told["kernels"]),
            "host_steps": told["host"]["steps"],
        }
        self._model = load(compiled.to_bytes(), device="cpu", num_threads=threads, donate=self.donate)
        past = [info for info in self._model.inputs if info.name.startswith(PAST)]
        self._cache = {info.name: nothing(info.shape or ()) for info in past}

    def logits(self, ids: np.ndarray, positions: np.ndarray, mask: np.ndarray) -> np.ndarray:
        tokens = {"input_ids": ids, "position_ids": positions, "attention_mask": mask}
        results = self._model.run({**tokens, **self._cache})
        self._cache = {name: results[name.replace(PAST, PRESENT)] for name in self._cache}
        return np.asarray(results["logits"])[0, -1]


class Donated(Ours):
    """Caches grow where they lie."""

    donate = (f"{PAST}*",)


class OnnxRuntime:
    """Results stay where they are, and are bound as the next call's inputs."""

    def __init__(self, path: Path, threads: int) -> None:
        import onnxruntime as ort

        ort.set_default_logger_severity(4)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.facts: Mapping[str, Any] = {}
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._outputs = [value.name for value in self._session.get_outputs()]
        past = [value for value in self._session.get_inputs() if value.name.startswith(PAST)]
        self._cache = {value.name: ort.OrtValue.ortvalue_from_numpy(nothing(value.shape)) for value in past}

    def logits(self, ids: np.ndarray, positions: np.ndarray, mask: np.ndarray) -> np.ndarray:
        binding = self._session.io_binding()
        for name, array in (("input_ids", ids), ("position_ids", positions), ("attention_mask", mask)):
            binding.bind_cpu_input(name, array)
        for name, value in self._cache.items():
            binding.bind_ortvalue_input(name, value)
        for name in self._outputs:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        results = dict(zip(self._outputs, binding.get_outputs(), strict=True))
        self._cache = {name: results[name.replace(PAST, PRESENT)] for name in self._cache}
        return np.asarray(results["logits"].numpy()[0, -1])


ENGINES: Mapping[str, type[Ours] | type[OnnxRuntime]] = {
    "tilestitch": Ours, "tilestitch, donated": Donated, "onnxruntime": OnnxRuntime,
}  # fmt: skip


class Decoding:
    """One engine's text so far, and how long each token took."""

    def __init__(self, engine: Engine, prompt: np.ndarray) -> None:
        self.engine, self.tokens = engine, [int(token) for token in prompt]
        self.times_us: list[float] = []
        self._fed = 0
        self.step()
        self.times_us.clear()  # the prompt's

    def step(self) -> None:
        new = np.array([self.tokens[self._fed :]])
        start = time.perf_counter()
        positions = np.arange(self._fed, len(self.tokens))[None]
        logits = self.engine.logits(new, positions, np.ones((1, len(self.tokens)), np.int64))
        self._fed = len(self.tokens)
        self.tokens.append(int(logits.argmax()))
        self.times_us.append((time.perf_counter() - start) * 1e6)


def prompt_of(length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 8192, length)


def raced(path: Path, threads: int, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Both engines in turns: times, and whether they agree."""
    decodings = {name: Decoding(make(path, threads), prompt_of(options.prompt)) for name, make in ENGINES.items()}
    counted: dict[str, list[float]] = {name: [] for name in decodings}
    for done in range(0, options.steps, TURN):
        for name, decoding in decodings.items():
            for _ in range(min(TURN, options.steps - done)):
                decoding.step()
            counted[name] += decoding.times_us[done + 1 :]
    wanted = decodings["onnxruntime"].tokens
    equal = {name: common_length(decoding.tokens, wanted) for name, decoding in decodings.items()}
    quarter = max(1, options.steps // 4)
    return {
        name: {
            "threads": threads, **decodings[name].engine.facts,
            "median_us": round(median(times), 1), "first_quarter_us": round(median(times[:quarter]), 1),
            "last_quarter_us": round(median(times[-quarter:]), 1), "steps": options.steps,
            "tokens_equal": equal[name] - options.prompt, "different_tokens": len({*decodings[name].tokens}),
        }
        for name, times in counted.items()
    }  # fmt: skip


def common_length(tokens: Sequence[int], wanted: Sequence[int]) -> int:
    """How many tokens are those that are wanted, before the first that is not."""
    pairs = enumerate(zip(tokens, wanted, strict=True))
    return next((place for place, pair in pairs if len({*pair}) > 1), len(wanted))


def memory(name: str, path: Path, threads: int, options: argparse.Namespace) -> list[float]:
    """Resident MiB of one engine alone, every TURN steps after the first TURN."""
    decoding, found = Decoding(ENGINES[name](path, threads), prompt_of(options.prompt)), []
    for step in range(1, options.steps + 1):
        decoding.step()
        if step % TURN == 0:
            found.append(round(resident_bytes() / MIB, 2))
    return found


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def row(name: str, result: Mapping[str, Any]) -> tuple[object, ...]:
    times = [f"{result[key] / 1e3:.2f}" for key in ("median_us", "first_quarter_us", "last_quarter_us")]
    resident = result["resident_mib"]
    grown = f"{resident[-1] - resident[0]:.1f}" if resident else ""
    return name, result["threads"], *times, f"{result['tokens_equal']} of {result['steps'] + 1} equal", grown


def measured(path: Path, threads: int, options: argparse.Namespace) -> Sequence[dict[str, Any]]:
    results = raced(path, threads, options)
    for name, result in results.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            result["resident_mib"] = pool.apply(memory, (name, path, threads, options))
    return [{"engine": name, **result} for name, result in results.items()]


def main() -> int:
    """Prints a table and writes a file; exit code 3 when tokens differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=512, metavar="N")
    parser.add_argument("--prompt", type=int, default=16, metavar="N", help="tokens before the first step")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--exporter", choices=EXPORTERS, default="script")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.json")
    options = parser.parse_args()
    path = export(MODELS[MODEL], MODEL, options.exporter)
    results = [result for threads in options.threads for result in measured(path, threads, options)]
    print(table([row(result["engine"], result) for result in results], HEADER))
    print(f"written to {write_results('decode', results, options.output)}")
    return 0 if all(result["tokens_equal"] == options.steps + 1 for result in results) else 3


if __name__ == "__main__":
    sys.exit(main())
