"""Programs with symbols: their JSON, and what is refused when they are read."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.signed import signed
from tests.runtime.test_program import paths
from tilestitch.runtime.errors import ArtifactSchemaError
from tilestitch.runtime.program import (
    Arena,
    Arg,
    DeviceLaunch,
    DeviceStep,
    Heap,
    HostStep,
    Input,
    Launch,
    NativeStep,
    Program,
    SizeCheck,
    Sizes,
    Symbol,
    TensorType,
    ValueSpec,
    programs_to_json,
    size_reference,
)
from tilestitch.runtime.program_check import programs_from_json

BATCH, SEQ, PAST = Symbol("batch", 1, 64), Symbol("seq", 1, 512), Symbol("past", 0, 2048)
ROWS = TensorType("float32", ("batch", "seq", 4))
LONG = TensorType("float32", ("batch", "past + seq", 4))


def rows_program() -> Program:
    """Two launches over (batch, seq, 4) with the first result in the arena, a launch on a device, and a host step."""
    values = (
        ValueSpec("x", ROWS, Input(0)),
        ValueSpec("cache", LONG, Input(1)),
        ValueSpec("sizes", TensorType("int64", (3,)), Sizes()),
        ValueSpec("a", ROWS, Arena("64*(batch % 2)", "16*batch*seq")),
        ValueSpec("y", ROWS, Heap()),
        ValueSpec("z", LONG, Heap()),
        ValueSpec("open", TensorType("float32", ("batch", "unk__0")), Heap()),
    )
    steps = (
        NativeStep(
            (
                Launch("k", "(batch*seq + 7)//8", (Arg(0), Arg(2), Arg(3)), ("first",), "4*seq"),
                Launch("k", "batch*seq", (Arg(3), Arg(2), Arg(4)), ("second",)),
            )
        ),
        HostStep("make", (1,), (6,), {"shape": [size_reference("batch"), 4]}),
        DeviceStep((DeviceLaunch("d", ("batch", "seq", 1), (128, 1, 1), 0, (Arg(1), Arg(2), Arg(5))),)),
    )
    checks = (SizeCheck("batch*seq % 2", "==", 0, "ONNX node Reshape_3: the elements must be even in number"),)
    return Program(
        "rows", (0, 1), (4, 5, 6), values, steps, "16*batch*seq + 64*(batch % 2)", (), (BATCH, SEQ, PAST), checks
    )


def as_json(*programs: Program) -> Any:
    return json.loads(json.dumps(programs_to_json(*signed(*programs)), allow_nan=False))


DOCUMENT = as_json(rows_program())
PATHS = paths(DOCUMENT)


def test_round_trip() -> None:
    programs, _ = signed(rows_program())
    assert programs_from_json(as_json(rows_program())) == programs


def test_a_program_without_symbols_says_nothing_of_them() -> None:
    value = ValueSpec("x", TensorType("float32", (2,)), Input(0))
    data = Program("p", (0,), (0,), (value,), ()).to_json()
    assert set(data) == {"name", "inputs", "outputs", "values", "steps", "arena_bytes", "output_names"}


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(PATHS),
    st.sampled_from([None, -2, 10**30, "?", "seq", "1//0", "seq*seq*seq", "9" * 30, "(" * 99, [], {}, "delete"]),
)
def test_any_changed_part_is_read_or_refused(path: tuple[Any, ...], replacement: Any) -> None:
    document = copy.deepcopy(DOCUMENT)
    if not path:
        return
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    if replacement == "delete":
        del parent[path[-1]]
    else:
        parent[path[-1]] = replacement
    with contextlib.suppress(ArtifactSchemaError):
        programs_from_json(document)


def launch(program: Any) -> Any:
    return program["steps"][0]["launches"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["symbols"].append(p["symbols"][0]), "two symbols have one name"),
        (lambda p: p["symbols"][0].update(name="a b"), "no expression can use"),
        (lambda p: p["symbols"][0].update(name="max"), "no expression can use"),
        (lambda p: p["symbols"][0].update(low=65), "from 65 to 64: nothing"),
        (lambda p: p["symbols"][0].update(high=2**31), "outside 0 to"),
        (lambda p: p["symbols"][0].update(low=-1), "outside 0 to"),
        (lambda p: p["symbols"].pop(), "no list of the program's symbols"),
        (lambda p: p["symbols"].reverse(), "was compiled for the symbols batch:1..64, seq:1..512, past:0..2048"),
        (lambda p: p["symbols"][1].update(high=513), "was compiled for the symbols"),
        (lambda p: p["symbols"].append(Symbol("more").to_json()), "do not determine the symbol 'more'"),
        (lambda p: p["values"][1]["type"].update(shape=["batch", "2048", 4]), "do not determine the symbol 'past'"),
        (lambda p: p["values"][1]["type"].update(shape=["batch", "past*seq", 4]), "do not determine the symbol 'past'"),
        (lambda p: p["values"][2]["type"].update(shape=[2]), "no list of the program's symbols"),
        (lambda p: p["values"][3]["location"].update(nbytes="16*batch*"), "no expression of sizes"),
        (lambda p: p["values"][3]["location"].update(nbytes=""), "no expression of sizes"),
        (lambda p: p["values"][3]["location"].update(offset_bytes="length"), "no symbol 'length'"),
        (lambda p: p.update(arena_bytes="past.."), "no expression of sizes"),
        (lambda p: p["checks"][0].update(left="b"), "no symbol 'b'"),
        (lambda p: p["checks"][0].update(relation="<"), "not one of"),
        (lambda p: p["steps"][1]["attrs"].update(shape=[{"$size": "b"}]), "no symbol 'b'"),
        (lambda p: p["steps"][1]["attrs"].update(shape={"$size": 3}), "is no expression"),
        (lambda p: launch(p).update(tasks="batch"), "but was compiled for"),
        (lambda p: launch(p)["args"].pop(1), "3 parameters, but gets 2 arguments"),
        (lambda p: launch(p)["args"].__setitem__(1, [0, 0]), "of the kind tensor, and not sizes"),
        (lambda p: launch(p)["args"].__setitem__(0, [2, 0]), "of the kind sizes, and not tensor"),
        (lambda p: launch(p)["args"].__setitem__(1, [2, 8]), "which has 24 bytes; the kernel needs 24"),
    ],
)  # fmt: skip
def test_inconsistencies_are_named(change: Callable[[Any], Any], message: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    change(document["specialisations"][0])
    with pytest.raises(ArtifactSchemaError, match=message):
        programs_from_json(document)


def test_a_kernel_is_right_for_narrower_ranges_too() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["specialisations"][0]["symbols"][1].update(low=2, high=9)
    programs_from_json(document)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: replace(p, arena_bytes="4"),
        lambda p: replace(p, checks=(SizeCheck(1, "<=", 2, "no rule"),)),
        lambda p: replace(p, steps=(HostStep("make", (), (), {"n": {"$size": "4"}}),)),
    ],
)
def test_a_program_without_symbols_has_no_expressions(change: Callable[[Program], Program]) -> None:
    value = ValueSpec("x", TensorType("float32", (2,)), Input(0))
    with pytest.raises(ArtifactSchemaError, match="no symbols"):
        programs_from_json(as_json(change(Program("p", (0,), (0,), (value,), ()))))


def test_dimensions_that_are_no_expressions_are_known_only_at_run_time() -> None:
    """As in a program without symbols: host steps may have them, kernels not."""
    program = rows_program()
    step = NativeStep((Launch("k", 1, (Arg(6), Arg(4))),))
    with pytest.raises(ArtifactSchemaError, match=r"'open' of type .* of no fixed size"):
        programs_from_json(as_json(replace(program, steps=(program.steps[1], step))))
