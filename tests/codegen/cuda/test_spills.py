"""Kernels whose registers spill are compiled again, and the best result is kept."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from tilestitch.codegen.cuda.toolchain import nvrtc
from tilestitch.codegen.cuda.toolchain.spills import without_spills

HEAD = 'extern "C" __global__ void __launch_bounds__(64) '
PLAIN = HEAD + "kernel(float* x) { x[threadIdx.x] += 1.0f; }"
FREE, ANY, ONE_BLOCK = (HEAD, ()), (HEAD, ("--maxrregcount=255",)), (HEAD.replace("64", "64, 1"), ())


def array(length: int) -> str:
    """A kernel that has an array in a thread's memory."""
    return HEAD + (
        f"kernel(float* x, int* order) {{ float mine[{length}];"
        f"for (int i = 0; i < {length}; ++i) mine[i] = x[i * 64 + threadIdx.x];"
        f"for (int i = 0; i < {length}; ++i) x[i * 64 + threadIdx.x] = mine[order[i] & {length - 1}]; }}"
    )


SMALL, LARGE, NONE = (nvrtc.compile_text(text, "sm_80") for text in (array(32), array(64), PLAIN))


@pytest.mark.parametrize(
    ("answers", "asked", "kept"),
    [
        ([NONE], [FREE], NONE),
        ([SMALL, NONE], [FREE, ANY], NONE),
        ([SMALL, LARGE, NONE], [FREE, ANY, ONE_BLOCK], NONE),
        ([LARGE, SMALL, LARGE], [FREE, ANY, ONE_BLOCK], SMALL),
    ],
)
def test_ways_are_tried_until_nothing_spills(
    answers: list[bytes], asked: list[tuple[str, tuple[str, ...]]], kept: bytes
) -> None:
    left, seen = iter(answers), []

    def compile_(text: str, options: tuple[str, ...]) -> bytes:
        seen.append((text, options))
        return next(left)

    assert without_spills(HEAD, compile_) == kept
    assert seen == asked


def test_a_number_of_blocks_that_is_asked_for_stays() -> None:
    bound = HEAD.replace("64", "64, 4")
    texts = []
    without_spills(bound, lambda text, _: texts.append(text) or SMALL)  # type: ignore[func-returns-value]
    assert texts == [bound, bound, bound]
