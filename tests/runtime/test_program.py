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

from tests.runtime.signed import signed
from tilestitch.runtime.errors import ArtifactSchemaError
from tilestitch.runtime.program import (
    ABSENT,
    Arena,
    Arg,
    Body,
    CallStep,
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
        NativeStep((Launch("k", 3, (Arg(0), Arg(2), Arg(4), Arg(6)), ("n1", "n2"), 128, ("bad index",)),)),
        HostStep("make", (4, ABSENT), (7, 8, 9, 10, ABSENT), {"a": [1, {"b": math.inf}], "c": constant_reference("w")}),
        IfStep(1, branch, branch, (5,), ("if",)),
        LoopStep(10, 1, (), Body(Program("l", (0, 1), (1,), (ValueSpec("i", INT, Input(0)), ValueSpec("c", BOOL,
        Input(1))), ())), ()),
        ScanStep((), (0,), (0,), (1,), (0,), (0,), identity_body(TensorType("float32", (3,))), (11,)),
        SequenceMapStep(7, (), identity_body(FLOAT), (12,)),
        DeviceStep(
            (
                DeviceLaunch("d", (8, 1, 1), (128, 2, 1), 1024, (Arg(0, 0, MAP), Arg(4, 16)), ("n",), ("bad",),
                cluster=(2, 1, 1)),
                DeviceLaunch("e", (1, 1, 1), (1, 1, 1), 0, (Arg(4), Arg(6)), cooperative=True, elastic=True),
            ),
            (Edge(0, 1, "programmatic"),),
        ),
        CallStep(branch, (ABSENT,), ("call",)),
    )  # fmt: skip
    return Program("everything", (0, 1), (5, 0, 2, 12), values, steps, 64, ("y", "x_again", "w_out", "m"))


def as_json(*programs: Program) -> Any:
    """`program.json` of the programs, with the symbols of their launches signed."""
    return json.loads(json.dumps(programs_to_json(*signed(*programs)), allow_nan=False))


def test_round_trip() -> None:
    programs, _ = signed(everything())
    assert programs_from_json(as_json(everything())) == programs


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


def launch_args(program: Any) -> Any:
    """The arguments of the kernel of the CPU: 'x' and 'w' are read, 'a' is written, and a status word."""
    return program["steps"][0]["launches"][0]["args"]


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
        (lambda p: launch_args(p).clear(), "has 4 parameters, but gets 0 arguments"),
        (lambda p: launch_args(p).append([0, 0]), "has 4 parameters, but gets 5 arguments"),
        (lambda p: launch_args(p).__setitem__(0, [99, 0]), "argument 0, is value 99"),
        (lambda p: launch_args(p).__setitem__(0, [9, 0]), "is 'n' of type .* of no fixed size"),
        (lambda p: launch_args(p).__setitem__(0, [10, 0]), "the kernel needs float32"),
        (lambda p: launch_args(p).__setitem__(0, [0, 16]), "has 24 bytes; the kernel needs 24"),
        (lambda p: launch_args(p).__setitem__(0, [6, 0]), "of the kind status, and not tensor"),
        (lambda p: launch_args(p).__setitem__(3, [0, 0]), "of the kind tensor, and not status"),
        (lambda p: launch_args(p).__setitem__(2, [0, 0]), "no memory of its own"),
        (lambda p: launch_args(p).__setitem__(2, [2, 0]), "no memory of its own"),
        (lambda p: launch_args(p).__setitem__(0, [4, 0]), "share memory that it writes"),
        (lambda p: launch_args(p).__setitem__(0, [5, 0]), "read before anything computes it"),
        (lambda p: p["values"][2]["location"].update(offset_bytes=72), "at a multiple of 16 bytes"),
        (lambda p: p["steps"][0]["launches"][0].update(tasks=4), "but was compiled for .*'tasks': 3"),
        (lambda p: p["steps"][0]["launches"][0].update(scratch_bytes=64), "but was compiled for"),
        (lambda p: p["steps"][0]["launches"][0].update(symbol="ts_run"), "'ts_run' has no signature"),
        (lambda p: p["steps"][6]["launches"][0].update(shared_bytes=2048), "but was compiled for"),
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
        (lambda p: p["steps"][6]["launches"][0].update(cooperative=True), "one of the two"),
        (lambda p: tensor_map(p).update(dims=[7]), "another tensor map than"),
        (lambda p: tensor_map(p).update(box=[16]), "may have 32"),
        (lambda p: tensor_map(p).update(more=1), "unknown fields more"),
        (lambda p: first_mapped(p).__setitem__(1, 16), "from byte 16 on"),
        (lambda p: first_mapped(p).__setitem__(0, 6), "of the kind status"),
        (lambda p: first_mapped(p).append(0), "maybe tensor map"),
        (lambda p: launch_args(p).__setitem__(0, first_mapped(p)), "another tensor map than"),
        (lambda p: p["steps"][6]["edges"][0].__setitem__(2, "late"), "of the kind 'late'"),
        (lambda p: p["steps"][6]["edges"][0].__setitem__(1, 2), "leads nowhere"),
        (lambda p: p["steps"][6]["edges"][0].__setitem__(0, 1), "leads nowhere"),
        (lambda p: p["steps"][6]["edges"].append(p["steps"][6]["edges"][0]), "two edges lead from one launch"),
    ],
)
def test_inconsistencies_are_named(change: Any, message: str) -> None:
    with pytest.raises(ArtifactSchemaError, match=message):
        programs_from_json(changed(change))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["parameters"][0].update(nbytes=16),
        lambda s: s["parameters"].pop(),
        lambda s: s["parameters"][2].update(writes=False),
        lambda s: s["extent"].update(tasks=4),
    ],
)
def test_a_symbol_vouches_for_its_signature(change: Any) -> None:
    document = copy.deepcopy(DOCUMENT)
    change(next(signature for symbol, signature in document["kernels"].items() if symbol.startswith("k_")))
    with pytest.raises(ArtifactSchemaError, match="not what the kernel was compiled with"):
        programs_from_json(document)


def test_kernels_never_write_what_host_steps_made() -> None:
    """Its array may be another's, or read-only: `identity` gives its input back."""
    values = (ValueSpec("x", FLOAT, Input(0)), ValueSpec("y", FLOAT))
    steps = (HostStep("identity", (0,), (1,)), NativeStep((Launch("k", 1, (Arg(0), Arg(1))),)))
    with pytest.raises(ArtifactSchemaError, match="no memory of its own"):
        programs_from_json(as_json(Program("p", (0,), (1,), values, steps)))


def test_kernels_of_the_cpu_take_no_tensor_maps() -> None:
    values = (ValueSpec("x", FLOAT, Input(0)), ValueSpec("y", FLOAT))
    step = NativeStep((Launch("k", 1, (Arg(0, 0, MAP), Arg(1))),))
    with pytest.raises(ArtifactSchemaError, match="which only devices have"):
        programs_from_json(as_json(Program("p", (0,), (1,), values, (step,))))


def test_arguments_may_touch_and_what_is_only_read_may_overlap() -> None:
    half = TensorType("float32", (16,))
    values = (
        ValueSpec("x", half, Input(0)), ValueSpec("a", half, Arena(0, 64)), ValueSpec("b", half, Arena(64, 64)),
        ValueSpec("both", TensorType("float32", (32,)), Arena(0, 128)), ValueSpec("y", half),
    )  # fmt: skip

    def program(*args: int) -> Program:
        first = Launch("k", 1, (Arg(0), Arg(1)))
        return Program("p", (0,), (0,), values, (NativeStep((first, Launch("k", 1, tuple(map(Arg, args))))),), 128)

    for args in ((1, 2), (1, 1, 2), (0, 0, 4), (1, 3, 4)):
        programs_from_json(as_json(program(*args)))
    for args in ((3, 2), (1, 3), (4, 4), (2, 1, 3)):
        with pytest.raises(ArtifactSchemaError, match=r"share memory|before anything"):
            programs_from_json(as_json(program(*args)))


def test_specialisations_have_one_interface() -> None:
    other = Program("other", (0,), (0,), (ValueSpec("z", FLOAT, Input(0)),), ())
    with pytest.raises(ArtifactSchemaError, match="other inputs or outputs"):
        programs_from_json(as_json(everything(), other))
    with pytest.raises(ArtifactSchemaError, match="no specialisation"):
        programs_from_json({"kernels": {}, "specialisations": []})


def test_deeply_nested_programs_are_refused() -> None:
    program = Program("leaf", (), (), (), ())
    for _ in range(60):
        body = Body(program)
        step = IfStep(0, body, Body(Program("leaf", (), (), (), ())), ())
        program = Program("p", (), (), (ValueSpec("c", BOOL, Constant("c")),), (step,))
    with pytest.raises(ArtifactSchemaError, match="nested more than"):
        programs_from_json(programs_to_json([program], {}))
