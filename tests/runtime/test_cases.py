"""Launches with a kernel for each region of sizes: which one is run, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.programs import contents, module
from tests.runtime.signed import plain, signed
from tests.runtime.test_sizing import BATCH, INCREMENT_TASKS, ROWS, SEQ, SIZES, bind_anew, sample
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import artifact_bytes
from tilestitch.runtime.errors import ArtifactSchemaError
from tilestitch.runtime.program import (
    Arena,
    Arg,
    Cases,
    Input,
    Launch,
    NativeStep,
    Program,
    TensorType,
    ValueSpec,
    programs_to_json,
)
from tilestitch.runtime.program_check import programs_from_json

ARGS = (Arg(0), Arg(1), Arg(2))
INCREMENT = Launch("sized_increment", INCREMENT_TASKS, ARGS, ("add",))
REVERSE = Launch("sized_reverse", "batch", ARGS, ("add",), "4*seq")
REGIONS = Cases("batch*seq", (100, 1000), (REVERSE, INCREMENT))


def cased_program(cases: Cases[Launch] | None = REGIONS) -> Program:
    """u = x + 1, and from 100 to 999 elements the rows of x backwards; y = u + 1."""
    values = (
        ValueSpec("x", ROWS, Input(0)),
        SIZES,
        ValueSpec("u", ROWS, Arena(0, "4*batch*seq")),
        ValueSpec("y", ROWS),
    )
    after = replace(INCREMENT, args=(Arg(2), Arg(1), Arg(3)))
    steps = (NativeStep((replace(INCREMENT, cases=cases), after)),)
    return Program("cased", (0,), (3, 2), values, steps, "4*batch*seq", (), (BATCH, SEQ))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bound", [False, True], ids=["resized", "bound"])
def test_the_kernel_of_the_region_is_run(
    bound: bool, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bound:
        bind_anew(monkeypatch)
    with module(tmp_path, cased_program(), threads=threads) as loaded:
        for batch, seq in [
            (1, 99),
            (1, 100),
            (1, 101),
            (3, 333),
            (2, 500),
            (1, 1001),
            (1, 1),
            (11, 9),
            (10, 10),
            (1, 1),
        ]:
            x = sample(batch, seq)
            results, within = loaded.run({"x": x}), 100 <= batch * seq < 1000
            np.testing.assert_array_equal(results["u"], x[:, ::-1] if within else x + 1)
            np.testing.assert_array_equal(results["y"], results["u"] + 1)
            named = [plain(timed.symbol) for timed in loaded.profile({"x": x})]
            assert named == ["sized_reverse" if within else "sized_increment", "sized_increment"]


def test_cases_print_and_parse_back() -> None:
    programs, signatures = signed(cased_program())
    data = json.loads(json.dumps(programs_to_json(programs, signatures)))
    assert programs_from_json(data) == programs
    launches = data["specialisations"][0]["steps"][0]["launches"]
    assert launches[0]["cases"]["from"] == [100, 1000]
    assert "cases" not in launches[1]


def _cases(**changes: Any) -> Callable[[], Program]:
    return lambda: cased_program(replace(REGIONS, **changes))


def _case(**changes: Any) -> Callable[[], Program]:
    return _cases(launches=(replace(REVERSE, **changes), INCREMENT))


def _packed() -> Program:
    program = cased_program()
    (step,) = program.steps
    assert isinstance(step, NativeStep)
    first, second = step.launches
    return replace(program, steps=(NativeStep((first, replace(second, packed=True))),))


@pytest.mark.parametrize(
    ("forged", "message"),
    [
        (_cases(starts=(100, 100)), "do not ascend"),
        (_cases(starts=(1000, 100)), "do not ascend"),
        (_cases(starts=(100,)), "1 starts and 2 kernels"),
        (_cases(starts=(), launches=()), "0 starts and 0 kernels"),
        (_cases(starts=(0, 100)), "0, outside 1 to"),
        (_cases(starts=tuple(range(1, 18)), launches=(REVERSE,) * 17), "from 1 to 16"),
        (_cases(size="batch*length"), "no expression over the program's symbols"),
        (_cases(size="batch*"), "no expression over the program's symbols"),
        (_cases(size=7), "no expression over the program's symbols"),
        (_packed, "has cases, and is packed with others"),
    ],
)
def test_tables_that_are_none_are_refused(forged: Callable[[], Program], message: str) -> None:
    with pytest.raises(ArtifactSchemaError, match=message):
        load(artifact_bytes(contents(forged())), num_threads=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda case: case.update(tasks=7), "was compiled for"),
        (lambda case: case.update(scratch_bytes=4), "was compiled for"),
        (lambda case: case.update(symbol="sized_reverse_0123456789abcdef"), "has no signature"),
        (lambda case: case.update(args=[[0, 0]]), "unknown fields args"),
    ],
)
def test_cases_are_checked_by_the_signatures_of_their_kernels(
    change: Callable[[dict[str, Any]], None], message: str
) -> None:
    programs, signatures = signed(cased_program())
    data = json.loads(json.dumps(programs_to_json(programs, signatures)))
    change(data["specialisations"][0]["steps"][0]["launches"][0]["cases"]["kernels"][0])
    with pytest.raises(ArtifactSchemaError, match=message):
        programs_from_json(data)


def test_cases_that_write_elsewhere_are_refused() -> None:
    programs, signatures = signed(cased_program())
    data = json.loads(json.dumps(programs_to_json(programs, signatures)))
    symbol = next(symbol for symbol in signatures if plain(symbol) == "sized_reverse")
    entry = data["kernels"].pop(symbol)
    entry["parameters"][0]["writes"] = True
    other = signatures_symbol(symbol, entry)
    data["kernels"][other] = entry
    data["specialisations"][0]["steps"][0]["launches"][0]["cases"]["kernels"][0]["symbol"] = other
    with pytest.raises(ArtifactSchemaError, match=r"which the kernel would write|write other values"):
        programs_from_json(data)


def signatures_symbol(symbol: str, entry: Any) -> str:
    """A symbol as of a kernel that was compiled for this signature."""
    from tilestitch.runtime.kernel_signature import KernelSignature

    return f"{plain(symbol)}_{KernelSignature.from_json(entry, 'kernel').digest}"


def test_programs_without_symbols_have_no_cases() -> None:
    x, y = (replace(v, type=TensorType("float32", (2, 50))) for v in cased_program().values[::3])
    kernel = Launch("increment", 4, (Arg(0), Arg(1)))
    steps = (NativeStep((replace(kernel, cases=Cases("batch*seq", (4,), (kernel,))),)),)
    with pytest.raises(ArtifactSchemaError, match="no expression over the program's symbols"):
        load(artifact_bytes(contents(Program("fixed", (0,), (1,), (x, y), steps))), num_threads=1)
