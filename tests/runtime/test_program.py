"""Programs survive the way through JSON, and damaged ones are refused with the place of the damage."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilestitch.runtime.errors import ArtifactSchemaError
from tilestitch.runtime.program import (
    ABSENT,
    Arena,
    Arg,
    Body,
    Constant,
    DeviceLaunch,
    DeviceStep,
    Edge,
    Heap,
    HostStep,
    IfStep,
    Input,
    Launch,
    Literal,
    LoopStep,
    NativeStep,
    OptionalType,
    Program,
    ScanStep,
    SequenceMapStep,
    SequenceType,
    Status,
    TensorType,
    ValueSpec,
    constant_reference,
    programs_to_json,
)
from tilestitch.runtime.program_check import programs_from_json
from tilestitch.runtime.tensor_map import TensorMap

FLOAT = TensorType("float32", (2, 3))
BOOL = TensorType("bool", ())
INT = TensorType("int64", ())
MAP = TensorMap("float32", (6,), (), (4,), swizzle="32B")


def identity_body(*types: Any) -> Body:
    """A body that gives its inputs back."""
    values = tuple(ValueSpec(f"v{i}", type_, Input(i)) for i, type_ in enumerate(types))
    numbers = tuple(range(len(types)))
    return Body(Program("body", numbers, numbers, values, ()))


def everything() -> Program:
    """A program with every kind of value and step."""
    values = (
        ValueSpec("x", FLOAT, Input(0)),
        ValueSpec("condition", BOOL, Input(1)),
        ValueSpec("w", FLOAT, Constant("weights", 64)),
        ValueSpec("words", TensorType("string", (2,)), Literal(("a", "ü"))),
        ValueSpec("a", FLOAT, Arena(0, 24)),
        ValueSpec("y", FLOAT, Heap()),
        ValueSpec("status", INT, Status()),
        ValueSpec("s", SequenceType(FLOAT)),
        ValueSpec("o", OptionalType(SequenceType(TensorType("string", None)))),
        ValueSpec("n", TensorType("float32", ("batch", 3))),
        ValueSpec("t", INT),
        ValueSpec("scanned", TensorType("float32", (2, 3))),
        ValueSpec("mapped", SequenceType(FLOAT)),
    )
    branch = Body(Program("b", (0,), (0,), (ValueSpec("c", FLOAT, Input(0)),), ()), (0,))
    steps = (
        NativeStep((Launch("k", 3, (Arg(0), Arg(2, 8), Arg(4), Arg(6)), ("n1", "n2"), 128, ("bad index",)),)),
        HostStep("make", (4, ABSENT), (7, 8, 9, 10, ABSENT), {"a": [1, {"b": math.inf}], "c": constant_reference("w")}),
        IfStep(1, branch, branch, (5,), ("if",)),
        LoopStep(10, 1, (), Body(Program("l", (0, 1), (1,), (ValueSpec("i", INT, Input(0)), ValueSpec("c", BOOL,
        Input(1))), ())), ()),
        ScanStep((), (0,), (0,), (1,), (0,), (0,), identity_body(TensorType("float32", (3,))), (11,)),
        SequenceMapStep(7, (), identity_body(FLOAT), (12,)),
        DeviceStep(
            (
                DeviceLaunch("d", (8, 1, 1), (128, 2, 1), 1024, (Arg(0, 0, MAP), Arg(4, 8)), ("n",), ("bad",), True,
                (2, 1, 1)),
                DeviceLaunch("e", (1, 1, 1), (1, 1, 1), 0, (Arg(4), Arg(6))),
            ),
            (Edge(0, 1, "programmatic"),),
        ),
    )  # fmt: skip
    return Program("everything", (0, 1), (5, 0, 2, 12), values, steps, 64, ("y", "x_again", "w_out", "m"))


def as_json(*programs: Program) -> Any:
    return json.loads(json.dumps(programs_to_json(programs), allow_nan=False))


def test_round_trip() -> None:
    assert programs_from_json(as_json(everything())) == (everything(),)


def paths(data: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all parts of a JSON document."""
    found = [prefix]
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        found += paths(item, (*prefix, key))
    return found


DOCUMENT = as_json(everything())
PATHS = paths(DOCUMENT)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(PATHS), st.sampled_from([None, -2, 10**30, 1.5, "?", True, [], {}, [[]], {"kind": "gpu"}, "delete"])
)
def test_any_changed_part_is_read_or_refused(path: tuple[Any, ...], replacement: Any) -> None:
    document = copy.deepcopy(DOCUMENT)
    if not path:
        document = replacement
    else:
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        if replacement == "delete":
            del parent[path[-1]]
        else:
            parent[path[-1]] = replacement
    with contextlib.suppress(ArtifactSchemaError):
        programs_from_json(document)


def first_mapped(program: Any) -> Any:
    """The first argument of a launch that has a tensor map."""
    return program["steps"][6]["launches"][0]["args"][0]


def tensor_map(program: Any) -> Any:
    return first_mapped(program)[2]


def changed(change: Any) -> Any:
    document = copy.deepcopy(DOCUMENT)
    change(document["specialisations"][0])
    return document


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["values"][4]["location"].update(offset_bytes=48), "beyond the arena"),
        (lambda p: p["values"][4]["location"].update(nbytes=20), "does not fit"),
        (lambda p: p["steps"][0]["launches"][0]["args"].append([99, 0]), "names value 99"),
        (lambda p: p["steps"][0]["launches"][0]["args"].append([9, 0]), "takes 'n'"),
        (lambda p: p["steps"][0]["launches"][0]["args"].append([0, 25]), "beyond its end"),
        (lambda p: p["steps"][0].update(kind="cuda"), "not one of"),
        (lambda p: p["steps"][0].update(more=1), "unknown fields more"),
        (lambda p: p["steps"].pop(2), "read before anything computes it"),
        (lambda p: p["steps"][1].update(outputs=[4]), "not located on the heap"),
        (lambda p: p["inputs"].reverse(), "its location says otherwise"),
        (lambda p: p["values"][0]["type"].update(dtype="float31"), "not one of"),
        (lambda p: p["values"][3]["location"]["items"].pop(), "has 1 strings"),
        (lambda p: p["steps"][2]["then"]["captures"].append(0), "the body has 1 inputs"),
        (lambda p: p["output_names"].pop(), "4 outputs and 3 names"),
        (lambda p: p["output_names"].__setitem__(1, "y"), "of the same name"),
        (lambda p: p["steps"][0]["launches"][0].update(tasks=2**31), "outside 0 to"),
        (lambda p: p["steps"][6]["launches"][0].update(block=[64, 32, 1]), "threads; at most"),
        (lambda p: p["steps"][6]["launches"][0].update(grid=[1, 2**17, 1]), "blocks; at most"),
        (lambda p: p["steps"][6]["launches"][0].update(grid=[0, 1, 1]), "outside 1 to"),
        (lambda p: p["steps"][6]["launches"][0].update(cluster=[3, 1, 1]), "do not fit its grid"),
        (lambda p: p["steps"][6]["launches"][0].update(cooperative=1), "not a boolean"),
        (lambda p: tensor_map(p).update(dims=[7]), "span 28 bytes; the memory has 24"),
        (lambda p: tensor_map(p).update(box=[16]), "may have 32"),
        (lambda p: tensor_map(p).update(more=1), "unknown fields more"),
        (lambda p: first_mapped(p).__setitem__(1, 8), "multiple of 16"),
        (lambda p: first_mapped(p).__setitem__(0, 6), "no tensor"),
        (lambda p: first_mapped(p).append(0), "maybe tensor map"),
        (lambda p: p["steps"][0]["launches"][0]["args"].append(first_mapped(p)), "which only devices have"),
        (lambda p: p["steps"][6]["edges"][0].__setitem__(2, "late"), "of the kind 'late'"),
        (lambda p: p["steps"][6]["edges"][0].__setitem__(1, 2), "leads nowhere"),
        (lambda p: p["steps"][6]["edges"][0].__setitem__(0, 1), "leads nowhere"),
    ],
)
def test_inconsistencies_are_named(change: Any, message: str) -> None:
    with pytest.raises(ArtifactSchemaError, match=message):
        programs_from_json(changed(change))


def test_specialisations_have_one_interface() -> None:
    other = Program("other", (0,), (0,), (ValueSpec("z", FLOAT, Input(0)),), ())
    with pytest.raises(ArtifactSchemaError, match="other inputs or outputs"):
        programs_from_json(as_json(everything(), other))
    with pytest.raises(ArtifactSchemaError, match="no specialisation"):
        programs_from_json({"specialisations": []})


def test_deeply_nested_programs_are_refused() -> None:
    program = Program("leaf", (), (), (), ())
    for _ in range(60):
        body = Body(program)
        step = IfStep(0, body, Body(Program("leaf", (), (), (), ())), ())
        program = Program("p", (), (), (ValueSpec("c", BOOL, Constant("c")),), (step,))
    with pytest.raises(ArtifactSchemaError, match="nested more than"):
        programs_from_json(programs_to_json([program]))
