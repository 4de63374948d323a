"""Running a model on the arrays that people have, in the ways that they know: torch, lists, ONNX Runtime's `run`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime import signed
from tests.runtime.programs import increment_program, module
from tilestitch.runtime import Module
from tilestitch.runtime import feeds as feeds_
from tilestitch.runtime.errors import InputError
from tilestitch.runtime.program import Heap, HostStep, Input, Program, SequenceType, TensorType, ValueSpec

X = np.arange(4, dtype=np.float32)
W = np.array([10, 20, 30, 40], np.float32)


@pytest.fixture
def increment(tmp_path: Path) -> Iterator[Module]:
    """Outputs u = x + 2, and the constant w."""
    with module(tmp_path, increment_program(), weights={"w": W}) as loaded:
        yield loaded


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def echo(folder: Path, dtype: str, shape: tuple[int, ...] = (3,)) -> Module:
    """A model whose output y is its input x."""
    type_ = TensorType(dtype, shape)
    values = (ValueSpec("x", type_, Input(0)), ValueSpec("y", type_, Heap()))
    return module(folder, Program("echo", (0,), (1,), values, (HostStep("Identity", (0,), (1,)),), 0))


# --- inputs ---


def test_torch_tensors_of_every_make(increment: Module, torch: Any) -> None:
    plain = torch.arange(4, dtype=torch.float32)
    strided = torch.arange(8, dtype=torch.float32)[::2] / 2
    for tensor in (plain, plain.clone().requires_grad_(), torch.nn.Parameter(plain.clone()), strided):
        np.testing.assert_array_equal(increment.run({"x": tensor})["u"], X + 2)
    np.testing.assert_array_equal(increment(plain.clone().requires_grad_())["u"], X + 2)


def test_inputs_in_order(increment: Module) -> None:
    for feeds in ([X], (X,), [[0.0, 1.0, 2.0, 3.0]]):
        np.testing.assert_array_equal(increment.run(feeds)["u"], X + 2)
    symbols = [signed.plain(launch.symbol) for launch in increment.profile([X])]
    assert symbols == ["increment", "increment"]


@pytest.mark.parametrize("names", [None, [], ["u", "w"], ("u", "w")])
def test_the_way_of_onnx_runtime(names: Any, increment: Module) -> None:
    u, w = increment.run(names, {"x": X})
    np.testing.assert_array_equal(u, X + 2)
    np.testing.assert_array_equal(w, W)


def test_chosen_outputs_in_the_way_of_onnx_runtime(increment: Module) -> None:
    (w,) = increment.run(["w"], {"x": X})
    np.testing.assert_array_equal(w, W)
    with pytest.raises(InputError, match="no output 'v'; outputs are u, w"):
        increment.run(["v"], {"x": X})
    with pytest.raises(InputError, match="missing x; unexpected z"):
        increment.run(None, {"z": X})


def test_a_list_of_text_is_an_input_where_out_names_outputs(tmp_path: Path) -> None:
    text = echo(tmp_path, "string", ())
    out = np.empty((), object)
    assert text.run(["y"], {"y": out})["y"] is out
    assert out[()] == "y"


# --- results ---


@pytest.mark.parametrize("by", ["name", "tensor"])
def test_results_as_torch_tensors(by: str, increment: Module, torch: Any) -> None:
    results = increment.run({"x": X}, like="torch" if by == "name" else torch.zeros(1))
    assert all(isinstance(result, torch.Tensor) for result in results.values())
    torch.testing.assert_close(results["u"], torch.from_numpy(X + 2))
    results["u"] += 1  # they belong to the caller
    np.testing.assert_array_equal(increment.run({"x": X}, like="numpy")["u"], X + 2)


def test_a_list_of_results_as_torch_tensors(increment: Module, torch: Any) -> None:
    (u,) = increment.run(["u"], {"x": X}, like="torch")
    torch.testing.assert_close(u, torch.from_numpy(X + 2))


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "float8_e4m3fn", "float64", "complex64"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (3,)])
def test_results_of_every_type_as_torch_tensors(dtype: str, shape: tuple[int, ...], tmp_path: Path, torch: Any) -> None:
    tensor = torch.ones(shape).to(getattr(torch, dtype))
    with echo(tmp_path, dtype, shape) as loaded:
        given: Any = tensor if dtype != "float8_e4m3fn" else tensor.view(torch.uint8).numpy().view("float8_e4m3fn")
        result = loaded.run([given], like="torch")["y"]
    assert (result.dtype, result.shape) == (tensor.dtype, tensor.shape)
    assert bool((result.float() == tensor.float()).all() if not dtype.startswith("complex") else result.eq(1).all())


def test_results_that_a_library_cannot_hold(tmp_path: Path, torch: Any) -> None:
    import ml_dtypes

    for dtype in ("int4", "float4_e2m1fn"):
        given = np.zeros(3, getattr(ml_dtypes, dtype))
        refused = pytest.raises(InputError, match=f"'y' of {dtype} cannot become.*leave `like` out")
        with echo(tmp_path, dtype) as loaded, refused:
            loaded.run([given], like="torch")
    with echo(tmp_path, "string") as loaded:
        assert loaded.run([["a", "b", "c"]], like="torch")["y"].tolist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("like", "message"), [("no_such_library", "No module named"), ("json", "no from_dlpack"), (3, "no from_dlpack")]
)
def test_libraries_that_are_none(like: Any, message: str, increment: Module) -> None:
    with pytest.raises(InputError, match=message):
        increment.run({"x": X}, like=like)


# --- out ---


def test_out_may_be_torch_tensors(increment: Module, torch: Any) -> None:
    u, w = torch.empty(4), torch.empty(4)
    results = increment.run({"x": torch.arange(4.0)}, out={"u": u, "w": w})
    assert results["u"] is u
    assert results["w"] is w
    np.testing.assert_array_equal(u.numpy(), X + 2)
    np.testing.assert_array_equal(w.numpy(), W)
    mixed = increment.run({"x": X}, out={"u": u}, like="torch")
    assert mixed["u"] is u
    assert isinstance(mixed["w"], torch.Tensor)


@pytest.mark.parametrize("kind", [list, tuple])
def test_out_in_the_order_of_the_outputs(kind: Any, increment: Module, torch: Any) -> None:
    for u, w in [(np.empty(4, np.float32), np.empty(4, np.float32)), (torch.empty(4), torch.empty(4))]:
        results = increment.run([X], out=kind([u, w]), like="torch")
        assert (results["u"] is u, results["w"] is w) == (True, True)
        np.testing.assert_array_equal(np.asarray(u), X + 2)
        np.testing.assert_array_equal(np.asarray(w), W)


def test_out_that_is_not_an_array_for_each_output(increment: Module) -> None:
    array = np.empty(4, np.float32)
    for out, message in [
        ([], "0 arrays for 2 outputs; give .*: u, w"),
        ([array], "1 arrays for 2 outputs"),
        ([array] * 3, "3 arrays for 2 outputs"),
        (array, "a ndarray was given; give a dict of output to array, or a list"),
    ]:
        with pytest.raises(InputError, match=message):
            increment.run([X], out=out)


def test_out_of_bfloat16(tmp_path: Path, torch: Any) -> None:
    out = torch.zeros(3, dtype=torch.bfloat16)
    with echo(tmp_path, "bfloat16") as loaded:
        loaded.run([torch.tensor([1.0, -2.5, 3.0], dtype=torch.bfloat16)], out={"y": out})
    assert out.tolist() == [1.0, -2.5, 3.0]


def test_tensors_that_cannot_be_out(increment: Module, torch: Any) -> None:
    for tensor, message in [
        (torch.empty(4, requires_grad=True), r"requires a gradient.*\.detach\(\)"),
        (torch.empty(8)[::2], "C-contiguous array of float32"),
        (torch.empty(4, dtype=torch.float64), "C-contiguous array of float32"),
        (torch.empty(4, device="meta"), "cannot be written to"),
        ([0, 0, 0, 0], "C-contiguous array of float32"),
    ]:
        with pytest.raises(InputError, match=message):
            increment.run({"x": X}, out={"u": tensor})


# --- what a module says of itself ---


def test_a_module_is_one_line(increment: Module) -> None:
    assert repr(increment) == (
        "<Module model.tsm for cpu, 1 threads: (x: float32[4]) -> (u: float32[4], w: float32[4])>"
    )


def test_many_inputs_are_one_line(tmp_path: Path) -> None:
    program = increment_program()
    values = program.values + tuple(ValueSpec(f"more{i}", TensorType("float32", (4,)), Input(1 + i)) for i in range(9))
    many = replace(program, values=values, inputs=(0, *range(4, 13)))
    with module(tmp_path, many, weights={"w": W}) as loaded:
        assert "more2: float32[4], and 6 more) -> " in repr(loaded)


# --- outputs ---


def test_an_item_of_a_given_sequence_comes_out_as_an_array_of_its_own(tmp_path: Path) -> None:
    """So that changing one changes not the other, whether it comes out alone or in a sequence."""
    item, sequence = TensorType("float32", (4,)), SequenceType(TensorType("float32", (4,)))
    values = (ValueSpec("s", sequence, Input(0)), ValueSpec("i", TensorType("int64", ()), Input(1)))
    values += (ValueSpec("y", item), ValueSpec("t", sequence))
    steps = (HostStep("SequenceAt", (0, 1), (2,)), HostStep("SequenceInsert", (0, 2), (3,)))
    given = [X.copy(), W.copy()]
    with module(tmp_path, Program("p", (0, 1), (2, 3), values, steps)) as loaded:
        made = loaded.run({"s": given, "i": np.array(1)})
        made["y"][...] = 0
        made["t"][0][...] = made["t"][2][...] = 1
    np.testing.assert_array_equal(given, [X, W])
    np.testing.assert_array_equal(made["y"], np.zeros(4))
    np.testing.assert_array_equal(made["t"], [np.ones(4), W, np.ones(4)])


def test_texts_come_out_as_arrays_of_their_own(tmp_path: Path) -> None:
    """Of every make, in the first run and in later ones."""
    makes = (np.array(["a", "é", ""], object), np.array(["a", "é", ""]), ["a", "é", ""])
    with echo(tmp_path, "string") as loaded:
        for given in (*makes, *makes):
            made = loaded.run({"x": given})["y"]
            assert made.dtype == object and made.tolist() == ["a", "é", ""]
            made[0] = "changed"
            assert given[0] == "a"
        with pytest.raises(InputError):
            loaded.run({"x": np.array(["a", "b"], object)})


def test_texts_of_any_layout_keep_their_places(tmp_path: Path) -> None:
    """Of numpy's texts in the first run and in later ones, which read them in fewer steps."""
    texts = np.array([["a", "é"], ["", "longer"]])
    swapped = texts.astype(texts.dtype.newbyteorder())
    with echo(tmp_path, "string", (2, 2)) as loaded:
        for given in (texts, np.asfortranarray(texts), texts.T.copy().T, swapped, np.array([[*"x.ay"]] * 2)[:, ::2]):
            assert loaded.run({"x": given})["y"].tolist() == given.tolist()


def test_bytes_are_texts_in_utf_8(tmp_path: Path) -> None:
    """In the first run and in later ones, also where but one element is bytes."""
    makes = [np.array([text.encode() for text in ("a", "é", "")]), np.array(["a", "é".encode(), ""], object)]
    with echo(tmp_path, "string") as loaded:
        for given in (*makes, np.array(["a", "é", ""], object), *makes):
            assert loaded.run({"x": given})["y"].tolist() == ["a", "é", ""]


@pytest.mark.parametrize(("item", "why"), [
    (b"\xff", "no text in UTF-8"), (None, "a NoneType"), (1, "a int"), (np.nan, "a float"),
])  # fmt: skip
def test_what_is_no_text_is_refused(item: Any, why: str, tmp_path: Path) -> None:
    wrong = np.array(["a", item, ""], object)
    with echo(tmp_path, "string") as loaded:
        for given in (wrong, np.array(["a", "b", "c"], object), wrong):
            if given is not wrong:
                loaded.run({"x": given})
                continue
            with pytest.raises(InputError, match=rf"input 'x', at \[1\]: .*{why}"):
                loaded.run({"x": given})


@pytest.mark.parametrize("made", [lambda texts: np.array(texts), lambda texts: np.array(texts, object)])
def test_the_specialisation_for_texts_of_known_shapes_is_looked_for_once(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    select = feeds_.select
    monkeypatch.setattr(feeds_, "select", lambda *args: (calls.append(args), select(*args))[1])
    with echo(tmp_path, "string") as loaded:
        for texts in (["a", "b", "c"], ["é", "", "a"], ["", "x", "y"]):
            assert loaded.run({"x": made(texts)})["y"].tolist() == texts
        assert len(calls) == 1
        with pytest.raises(InputError, match="no specialisation fits"):
            loaded.run({"x": made(["a", "b"])})
