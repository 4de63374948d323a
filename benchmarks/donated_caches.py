"""A step of attention over caches that are buffers, donated and not, against ONNX Runtime that writes in them.

    python -m benchmarks.donated_caches [--rounds N]

One node of GroupQueryAttention with 32 heads of 64 elements, 8 of keys and values, as in Llama-3.2-1B, and the mask
from which onnxruntime-genai's model builder tells its lengths, or these as inputs. Caches have room for `ROOM` tokens;
a step adds one to those that are there. ONNX Runtime's inputs and outputs are bound to the same buffers. One thread,
CPU time, in turns; results are compared. They go to benchmarks/results/donated_caches.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx

from benchmarks.turns import cpu_microseconds, onnxruntime_session, write_results
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.output import table
from tilestitch.runtime import Module, load

ROOM = 4096
TOKENS = (0, 30, 300, 2000, 4000)
CACHES = {"past_k": "new_k", "past_v": "new_v"}
LENGTHS = {
    "a mask": (
        "int64[b,t] mask",
        """one = Constant <value = int64[1] {1}> ()
      sums = ReduceSum (mask, one)
      last = Sub (sums, one)
      lengths = Cast <to = 6> (last)
      sizes = Shape (mask)
      size = Gather (sizes, one)
      total = Cast <to = 6> (size)""",
    ),
    "inputs": ("int32[b] lengths, int32 total", ""),
}


def model_of(lengths: str) -> onnx.ModelProto:
    inputs, nodes = LENGTHS[lengths]
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[b,s,2048] q, float[b,s,512] k, float[b,s,512] v, float[b,8,p,64] past_k, float[b,8,p,64] past_v, {inputs})
    => (float[b,s,2048] y, float[b,8,r,64] new_k, float[b,8,r,64] new_v) {{
      {nodes}
      y, new_k, new_v = com.microsoft.GroupQueryAttention <num_heads = 32, kv_num_heads = 8> (
        q, k, v, past_k, past_v, lengths, total)
    }}""")


def fed(tokens: int, lengths: str = "a mask") -> dict[str, np.ndarray]:
    random = np.random.default_rng(tokens)
    shapes = {"q": (1, 1, 2048), "k": (1, 1, 512), "v": (1, 1, 512), **dict.fromkeys(CACHES, (1, 8, ROOM, 64))}
    feeds = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    if lengths == "a mask":
        return {**feeds, "mask": np.ones((1, tokens + 1), np.int64)}
    return {**feeds, "lengths": np.full(1, tokens, np.int32), "total": np.array(tokens + 1, np.int32)}


def bound(session: Any, feeds: dict[str, np.ndarray]) -> tuple[Callable[[], object], Callable[[], np.ndarray]]:
    """A run of ONNX Runtime in which caches are written where they lie, and what gives its result."""
    import onnxruntime as ort

    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y", "cpu")
    for name, output in CACHES.items():
        binding.bind_ortvalue_output(output, values[name])
    return lambda: session.run_with_iobinding(binding), lambda: binding.get_outputs()[0].numpy()


@cache
def loaded(lengths: str) -> tuple[Module, Module, Any]:
    """The model compiled without and with donation, and ONNX Runtime's session."""
    model = model_of(lengths)
    compiled = compile_model(model, num_threads=1, donate=[*CACHES]).to_bytes()
    plain = load(compile_model(model, num_threads=1).to_bytes(), num_threads=1)
    return plain, load(compiled, num_threads=1, donate=[*CACHES]), onnxruntime_session(model, 1)


def measured(lengths: str, tokens: int, rounds: int) -> dict[str, Any]:
    plain, donated, session = loaded(lengths)
    feeds = fed(tokens, lengths)
    mine = {name: array.copy() for name, array in feeds.items()}
    theirs, result = bound(session, {name: array.copy() for name, array in feeds.items()})
    ways = {
        "onnxruntime": theirs, "copied": lambda: plain.run(feeds), "donated": lambda: donated.run(mine),
    }  # fmt: skip
    theirs()
    for module, given in ((plain, feeds), (donated, mine)):
        np.testing.assert_allclose(module.run(given)["y"], result(), rtol=1e-4, atol=1e-5)
    times = cpu_microseconds(ways, rounds)
    speeds = {f"{way}_speed": round(times["onnxruntime"] / times[way], 2) for way in ("copied", "donated")}
    return {
        "lengths": lengths,
        "tokens": tokens,
        **{f"{way}_us": round(time, 1) for way, time in times.items()},
        **speeds,
    }


def main() -> int:
    """Prints a table and writes a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.donated_caches", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200, metavar="N")
    options = parser.parse_args()
    rows = [measured(lengths, tokens, options.rounds) for lengths in LENGTHS for tokens in TOKENS]
    print(table([list(row.values()) for row in rows], list(rows[0])))
    print(f"written to {write_results('donated_caches', rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
