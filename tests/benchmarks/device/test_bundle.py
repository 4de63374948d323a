"""The bundle for a machine with a GPU: what is in it, how it is kept and packed, and what it is judged by there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from benchmarks.device import b1_right, bundle, open_cases, package, s0_smoke, s1_open
from benchmarks.device.bundle import Entry, Lists, bundle_case
from benchmarks.device.bundle_cases import CASES, TARGET, VARIANTS
from benchmarks.device.bundle_sizes import onnx_of
from benchmarks.device.case import Setup, WrongResult
from benchmarks.device.limits import TOLERANCE
from benchmarks.device.sizes import SIZES
from tilestitch.compiler import compile_model
from tilestitch.runtime.artifact import read_artifact


@pytest.fixture
def with_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Artifacts keep the text of their kernels, so that the emulated device can stand for the GPU."""
    monkeypatch.setattr(bundle, "with_one_image", lambda contents, image: contents)


# --- what is in it ---------------------------------------------------------------------------------------------------


def test_every_variant_has_a_tolerance_and_smoke_is_among_the_variants() -> None:
    for name, family in CASES.items():
        assert set(family.smoke) <= set(family.variants), name
        assert set(family.variants) <= set(VARIANTS) & set(TOLERANCE), name


def test_names_are_unique() -> None:
    names = [(entry.listing, entry.name) for entry in bundle.entries()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "name", ["gemm_small.tf32", "gemm_small.float32", "decode_gemm.float16", "attention_small.float16"]
)
def test_families_are_those_that_their_names_say(name: str, tmp_path: Path) -> None:
    kinds = {"gemm_small.tf32": "gemm_mma", "gemm_small.float32": "gemm_simt", "decode_gemm.float16": "gemv",
             "attention_small.float16": "attention_mma"}  # fmt: skip
    case, _, variant = name.rpartition(".")
    assert kinds[name] in bundle_case(case, variant, tmp_path)["kinds"]


@pytest.mark.parametrize("size", SIZES[:1] + SIZES[-1:], ids=lambda size: size.name)
def test_operators_are_onnx_models_of_the_sizes_that_are_counted(size: Any) -> None:
    graph = onnx_of(size).graph
    shapes = {
        v.name: tuple(size.symbols[d.dim_param] if d.dim_param else d.dim_value for d in v.type.tensor_type.shape.dim)
        for v in (*graph.input, *graph.output)
    }
    assert {d.dim_param for v in graph.input for d in v.type.tensor_type.shape.dim} - {""} == set(size.symbols)
    assert shapes == {**size.inputs, "y": size.output}


def test_kernels_travel_as_machine_code_or_as_ptx(tmp_path: Path) -> None:
    for name, member in (("softmax_small", "kernels/sm_90a/0.cubin"), ("bert_from_ptx", "kernels/compute_80/0.ptx")):
        bundle_case(name, "float32", tmp_path)
        names = read_artifact(tmp_path / f"{name}.float32.tsm").member_names
        kernels = {each for each in names if each.startswith("kernels/")}
        assert member in kernels
        assert {Path(each).suffix for each in kernels} == {Path(member).suffix}


def test_one_plan_has_a_prediction_for_each_card() -> None:
    """The compiler's own for the card that it was made for; for the other by its bandwidth."""
    compiled = compile_model(onnx_of(SIZES[0]), TARGET)
    found = bundle.predictions(compiled)
    assert found["predicted_us"]["h200"] == compiled.explain()["prediction"]["total_us"]
    assert found["one_at_a_time_us"]["h200"] == compiled.explain()["schedule"]["one_at_a_time_us"]
    assert found["predicted_us"]["h100"] > 1.3 * found["predicted_us"]["h200"]


def test_weights_begin_again_but_no_rows_are_equal_and_positions_stay() -> None:
    rng = np.random.default_rng(0)
    whole = rng.integers(-100, 100, (300, 256)).astype(np.int8)
    arrays = {"w": rng.standard_normal((300, 256), np.float32), "q": whole, "at": np.arange(70_000),
              "b": rng.standard_normal(256, np.float32)}  # fmt: skip
    weights = [numpy_helper.from_array(data, name) for name, data in arrays.items()]
    model = bundle.repeating(helper.make_model(helper.make_graph([], "g", [], [], weights)))
    made = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name in ("at", "b"):
        np.testing.assert_array_equal(made[name], arrays[name])
    for name in ("w", "q"):
        flat = made[name].reshape(-1)
        np.testing.assert_array_equal(flat[: bundle.PERIOD], arrays[name].reshape(-1)[: bundle.PERIOD])
        np.testing.assert_array_equal(flat[bundle.PERIOD :], flat[: -bundle.PERIOD])
        assert len({row.tobytes() for row in made[name]}) == 300


def test_rates() -> None:
    size = next(size for size in SIZES if size.operator == "gemv" and size.dtype == "float16")
    moved = 2 * (4096 * 11008 + 4096 + 11008)
    assert size.rates(100.0) == pytest.approx({"GB_per_s": moved / 1e5, "TFLOP_per_s": 2 * 4096 * 11008 / 1e8})


# --- right or wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "softmax_small.bfloat16",
        "integers_small.int8",
        "largest.float32",
        "block_weights_few.float16",
        "small_floats_small.e4m3",
    ],
)
def test_a_case_is_right_against_its_record(name: str, tmp_path: Path, with_text: None) -> None:
    entry = made(name, tmp_path, smoke=True)
    row = s0_smoke.smoke(Setup(tmp_path), entry, "emulator")
    assert row["right"] and row["same_bytes"]


@pytest.mark.parametrize("name", ["softmax_small.float32", "gemm_small.tf32", "integers_small.uint8", "gated.bfloat16"])
def test_a_case_is_right_against_float64(name: str, tmp_path: Path, with_text: None) -> None:
    pytest.importorskip("torch")
    assert b1_right.check(Setup(tmp_path), made(name, tmp_path), "emulator", "cpu", 1)["right"]


@pytest.mark.parametrize("name", ["suppressed", "some_or_none", "cache"])
def test_open_kernels_are_right_at_all_sizes_of_their_record(name: str, tmp_path: Path, with_text: None) -> None:
    entry = {"name": name, **bundle.bundle_open(name, open_cases.CASES[name], tmp_path)}
    points = len(open_cases.CASES[name].feeds())
    assert s1_open.judge(Setup(tmp_path), entry, "emulator") == {"relative_error": 0.0, "right": True, "points": points}


@pytest.mark.parametrize(("output", "number"), [("y", 1), ("i", 2)])
def test_a_wrong_result_at_one_size_is_found(output: str, number: int, tmp_path: Path, with_text: None) -> None:
    entry = {"name": "best", **bundle.bundle_open("best", open_cases.CASES["best"], tmp_path)}
    path = tmp_path / "best.recorded.npz"
    with np.load(path) as recorded:
        arrays = dict(recorded)
    arrays[f"{number}.out.{output}"].reshape(-1)[0] += 1
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(WrongResult):
        s1_open.judge(Setup(tmp_path), entry, "emulator")


def test_a_wrong_result_is_found(tmp_path: Path, with_text: None) -> None:
    entry = made("softmax_small.float32", tmp_path, smoke=True)
    path = tmp_path / f"{entry['name']}.recorded.npz"
    with np.load(path) as recorded:
        arrays = dict(recorded)
    arrays["out.y"].view(np.float32)[5] += 1.0
    np.savez(path, **arrays)
    with pytest.raises(WrongResult, match="exceeds"):
        s0_smoke.smoke(Setup(tmp_path), entry, "emulator")


def test_nothing_is_judged_where_kernels_do_not_execute(tmp_path: Path) -> None:
    assert Setup(tmp_path, executes=False).judged(float("nan"), 0.1)["right"] is None
    with pytest.raises(WrongResult):
        Setup(tmp_path).judged(float("nan"), 0.1)


def made(name: str, folder: Path, smoke: bool = False) -> dict[str, Any]:
    case, _, variant = name.rpartition(".")
    assert (variant in CASES[case].smoke) == smoke or not smoke
    return {"name": name, **bundle_case(case, variant, folder)}


# --- how it is kept and packed ---------------------------------------------------------------------------------------


def test_what_this_compiler_has_made_is_not_made_again(tmp_path: Path) -> None:
    entry = Entry("cases", "a", lambda folder: {"digest": "1"})
    Lists(tmp_path, "old").add(entry, {"digest": "1"})
    again = Lists(tmp_path, "old")
    assert again.has(entry)
    assert again.rows["cases"] == {"a": {"name": "a", "digest": "1", "compiler": "old"}}
    assert not Lists(tmp_path, "new").has(entry)
    assert json.loads((tmp_path / "cases.json").read_text()) == []


def test_an_entry_that_cannot_be_made_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "bundle_kernels", lambda folder: None)
    chosen = [Entry("cases", "bad", lambda folder: 1 // 0), Entry("cases", "good", lambda folder: {})]  # type: ignore[arg-type, return-value]
    assert bundle.build(Lists(tmp_path, "c"), chosen) == 1
    assert [row["name"] for row in json.loads((tmp_path / "cases.json").read_text())] == ["good"]


def test_files_of_entries_that_are_no_more_are_left_out(tmp_path: Path) -> None:
    lists = Lists(tmp_path, "c")
    lists.add(Entry("cases", "a", lambda folder: {}), {"variant": "float32", "smoke": False})
    kept = {path.name for path in lists.files() if path.suffix != ".json"}
    assert kept == {"a.tsm", "a.graph", "a.npz"}


def test_a_bundle_is_packed_to_the_same_bytes_and_unpacked_once(tmp_path: Path) -> None:
    folder, archive, other = tmp_path / "bundle", tmp_path / "a.tar.xz", tmp_path / "b.tar.xz"
    (folder / "gemm").mkdir(parents=True)
    (folder / "gemm" / "k.cubin").write_bytes(b"code")
    for made in (archive, other):
        package.pack(folder, [folder / "gemm" / "k.cubin"], made)
    assert archive.read_bytes() == other.read_bytes()
    there = package.unpacked(archive)
    assert (there / "gemm" / "k.cubin").read_bytes() == b"code"
    (there / "mine").touch()
    assert (package.unpacked(archive) / "mine").exists()
    (folder / "new").touch()
    package.pack(folder, [folder / "new"], archive)
    assert not (package.unpacked(archive) / "mine").exists()


def test_a_bundle_that_is_not_there_is_said_to_be_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="make it with"):
        package.unpacked(tmp_path / "none.tar.xz")
