"""Models as ONNX Runtime's tools save them, on the CPU, against ONNX Runtime and against their plain forms.

    python -m benchmarks.saved_forms [NAME ...] [--threads 1 2] [--rounds N]

Of BERT, GPT-2 and ViT (`python -m benchmarks.models`): what a session saves at its extended level, what
onnxruntime.transformers makes of them, and both quantised dynamically. The decoder is that of
`python -m benchmarks.block_weights`, once as exporters of language models write it (MatMulNBits, GroupQueryAttention,
root mean squares as operators), once of ONNX's own operators with the same weights. Ours, ONNX Runtime and our plain
form take turns. With one thread CPU time counts, else wall clock. Errors are the largest ones against ONNX Runtime's
results, and against its results of the plain form, over the largest result. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from benchmarks.block_weights import FORMS, USUAL, Decoder, PlainDecoder
from benchmarks.models import FOLDER
from benchmarks.quantised import least_ms, least_wall_ms, random_inputs, relative_error
from benchmarks.turns import onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import load

KINDS = {"bert_base": "bert", "gpt2_small": "gpt2", "vit_b16": "vit"}
"""Models, and what onnxruntime.transformers calls such."""
HEADS, HIDDEN = 12, 768
DECODER = "decoder"
PLAIN = "plain"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.saved_forms", description=__doc__)
    parser.add_argument("names", nargs="*", default=[*KINDS, DECODER], metavar="NAME", help="only these models")
    parser.add_argument("--threads", nargs="+", type=int, default=[1], metavar="N")
    parser.add_argument("--rounds", type=int, default=15, metavar="N")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    rows: list[dict[str, Any]] = []
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            paths = dict(_forms(name, Path(folder)))
            for threads in options.threads:
                rows += _measured(name, paths, threads, options.rounds)
        print(table([list(row.values()) for row in rows], list(rows[0])), flush=True)
    every = [*KINDS, DECODER]
    print(write_results("saved_forms" if options.names == every else f"saved_forms_{'_'.join(options.names)}", rows))
    return 0


def _forms(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The plain form first."""
    if name == DECODER:
        for form, kind in ((PLAIN, PlainDecoder), ("exported", Decoder)):
            onnx.save(kind(*USUAL, *FORMS["symmetric"]).model(), folder / f"{form}.onnx")
            yield form, folder / f"{form}.onnx"
        return
    plain = FOLDER / f"{name}.onnx"
    yield PLAIN, plain
    makers: dict[str, Callable[[Path, Path], None]] = {
        "session": _by_session,
        "transformers": partial(_by_transformers, KINDS[name]),
    }
    for form, make in makers.items():
        made = folder / f"{form}.onnx"
        make(plain, made)
        yield form, made
        yield f"{form}, quantised", _quantised(made)


def _by_session(plain: Path, made: Path) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(made)
    options.log_severity_level = 3
    ort.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])


def _by_transformers(kind: str, plain: Path, made: Path) -> None:
    from onnxruntime.transformers.optimizer import optimize_model

    model = optimize_model(str(plain), model_type=kind, num_heads=HEADS, hidden_size=HIDDEN, opt_level=0)
    model.save_model_to_file(str(made))


def _quantised(path: Path) -> Path:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    made = path.with_name(f"{path.stem}.quantised.onnx")
    types = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # it cannot see through operators of its own
    quantize_dynamic(path, made, weight_type=QuantType.QInt8, per_channel=True, extra_options=types)
    return made


def _measured(name: str, paths: Mapping[str, Path], threads: int, rounds: int) -> Iterator[dict[str, Any]]:
    """One form after the other, each beside the plain one."""
    feeds = next(random_inputs(onnx.load(paths[PLAIN]))())
    compiled = {form: path.parent / f"{name}.{form}.{threads}.tsm" for form, path in paths.items() if form != PLAIN}
    folder = next(iter(compiled.values())).parent
    compiled[PLAIN] = folder / f"{name}.{threads}.tsm"
    for form, path in paths.items():
        compile_model(path, num_threads=threads).save(compiled[form])
    of_plain = onnxruntime_session(paths[PLAIN], threads).run(None, feeds)[0]
    for form, path in paths.items():
        rival = onnxruntime_session(path, threads)
        with load(compiled[form], num_threads=threads) as ours, load(compiled[PLAIN], num_threads=threads) as plain:
            ways: dict[str, Callable[[], object]] = {
                "ours": partial(ours.run, feeds),
                "rival": partial(rival.run, None, feeds),
                "plain": partial(plain.run, feeds),
            }
            least = least_ms(ways, rounds) if threads == 1 else least_wall_ms(ways, rounds)
            result = next(iter(ours.run(feeds).values()))
        yield {
            "model": name, "form": form, "threads": threads,
            "operators": sum(node.domain == "com.microsoft" for node in onnx.load(path).graph.node),
            "ours_ms": round(least["ours"], 2), "onnxruntime_ms": round(least["rival"], 2),
            "against_onnxruntime": round(least["rival"] / least["ours"], 2),
            "against_plain": round(least["plain"] / least["ours"], 3),
            "error": relative_error(result, rival.run(None, feeds)[0]),
            "error_of_plain": relative_error(result, of_plain),
        }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
