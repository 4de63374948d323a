"""A run looks at the sizes of what it reads: inputs that only the branch not taken reads may have any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from tilestitch.compiler import compile_model
from tilestitch.runtime import Module, load
from tilestitch.runtime.errors import InputError

MERGED = parser.parse_model("""
<ir_version: 8, opset_import: ["" : 17]>
decoder (bool cached, float[batch, seq] x, float[batch, length] sound, float[batch, past] cache,
         float[batch, length] kept) => (float[batch, seq] y, float[batch, total] grown, float[batch, made] new)
{
  twice = Add (x, x)
  y, grown, new = If (cached) <
    then_branch = with_cache () => (float[batch, seq] a, float[batch, b1] b, float[batch, c1] c) {
      sum = ReduceSum <keepdims = 1> (cache, one)
      most = ReduceMax <axes = [1], keepdims = 1> (kept)
      some = Add (twice, sum)
      a = Add (some, most)
      b = Concat <axis = 1> (cache, x)
      c = Identity (most)
    },
    else_branch = first () => (float[batch, seq] a, float[batch, b2] b, float[batch, c2] c) {
      most = ReduceMax <axes = [1], keepdims = 1> (sound)
      a = Add (twice, most)
      b = Identity (x)
      c = Relu (sound)
    }
  >
}
""")
MERGED.graph.initializer.add(name="one", data_type=7, dims=[1], int64_data=[1])


@pytest.fixture(scope="module")
def decoder() -> Iterator[Module]:
    with load(compile_model(MERGED).to_bytes()) as module:
        yield module


def feeds(cached: bool, **sizes: Any) -> dict[str, np.ndarray]:
    shapes = {"x": (2, 3), "sound": (2, 7), "cache": (2, 5), "kept": (2, 7)} | sizes
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {"cached": np.array(cached), **arrays}


@pytest.mark.parametrize(
    "given",
    [
        feeds(True),
        feeds(False),
        feeds(False, cache=(2, 0), kept=(2, 0)),
        feeds(False, cache=(2, 1), kept=(2, 1)),
        feeds(False, x=(1, 9), sound=(1, 40), cache=(1, 0), kept=(1, 1)),
        feeds(True, sound=(2, 1)),
    ],
)
def test_sizes_count_of_what_the_branch_reads(decoder: Module, given: dict[str, np.ndarray]) -> None:
    for _ in range(3):  # a second run of the same sizes goes another way
        results = decoder.run(given)
        for got, want in zip(results.values(), ReferenceEvaluator(MERGED).run(None, given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "error", "problem"),
    [
        (feeds(True, cache=(1, 5)), InputError, r"input 'cache'.*dimension 0 is 1, but batch is 2"),
        (feeds(False, cache=(1, 5)), InputError, r"input 'cache'.*dimension 0 is 1, but batch is 2"),
        (feeds(False, cache=(2, 5, 1)), InputError, "rank 3"),
    ],
)
def test_what_the_branch_reads_has_to_fit(
    decoder: Module, given: dict[str, np.ndarray], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        decoder.run(given)
