"""Models on partitions of a GPU: where their kernels run, what they compute, and what is refused."""

from __future__ import annotations

import copy
import gc
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.runtime.cuda.artifacts import launch, sum_program
from tests.runtime.cuda.kernels_cu import artifact, one_step
from tests.runtime.cuda.standin import build
from tests.runtime.cuda.standin.child import StandIn, run
from tests.runtime.cuda.standin.execution import emulated, executor
from tests.runtime.cuda.test_standin_execution import branches, close
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.main import main
from tilestitch.runtime import load
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.cuda.backend import open_device
from tilestitch.runtime.cuda.divide import divide
from tilestitch.runtime.cuda.partition import Partition
from tilestitch.runtime.errors import ArtifactSchemaError, DeviceError, PartitionWarning
from tilestitch.runtime.manifest import TargetInfo
from tilestitch.runtime.program import DeviceStep

if shutil.which("g++") is None:
    pytest.skip("the emulated device needs g++", allow_module_level=True)

OnStandIn = Callable[[Callable[[StandIn], Any]], None]
X = np.arange(4, dtype=np.float32)


def compiled(proto: onnx.ModelProto, target: str, folder: Path) -> Path:
    return compile_model(proto, target=target, keep_source=True).save(folder / f"{target.replace('/', '_')}.tsm")


def softmax(length: int) -> onnx.ModelProto:
    """One long row: blocks that wait for each other, as many as there are multiprocessors."""
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"], axis=-1)],
        "row",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, length))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, length))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def mlp(rows: int) -> onnx.ModelProto:
    weights = np.random.default_rng(3).standard_normal((24, 31)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, 24))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (rows, 31))],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@contextmanager
def without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_results_on_a_share_of_the_multiprocessors(on_standin: OnStandIn, tmp_path: Path) -> None:
    """In a graph, one by one, and with arrays that stay on the GPU; every kernel on the share."""
    proto = branches()
    path = compiled(proto, "cuda:h200/32", tmp_path)
    kernels = emulated(read_artifact(path))
    x = np.random.default_rng(0).standard_normal((40, 48)).astype(np.float32)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})

    def work(stand_in: StandIn) -> None:
        stand_in.execute(executor(kernels))
        for seed in (1, 2, 3):
            stand_in.seed(seed)
            with without_warnings(), load(path, device="cuda:0", multiprocessors=32) as loaded:
                close(loaded.run({"x": x}).values(), expected, 1e-5)
                there = loaded.run({"x": 2 * x}, on_device=True)
                close(loaded.run({"x": x}).values(), expected, 1e-5)
                assert stand_in.widths() == [32]
                assert len(loaded.profile({"x": x})) > 1
                assert stand_in.widths() == [32]
                loaded.run({"x": x}, there)
                close([array.numpy() for array in there.values()], expected, 1e-5)
                there.clear()
        assert stand_in.widths() == [32]
        with load(path, device="cuda:0") as whole:
            close(whole.run({"x": x}).values(), expected, 1e-5)
            assert stand_in.widths() == [132]

    on_standin(work)


def test_two_models_side_by_side(on_standin: OnStandIn, tmp_path: Path) -> None:
    """Each has its own multiprocessors (the stand-in refuses others), and results pass from one to the other."""
    first, second = mlp(40), mlp(40)
    path = compiled(first, "cuda:h200/64", tmp_path)
    kernels = emulated(read_artifact(path))
    x = np.random.default_rng(1).standard_normal((40, 24)).astype(np.float32)
    expected = ReferenceEvaluator(second).run(None, {"x": x})

    def work(stand_in: StandIn) -> None:
        stand_in.execute(executor(kernels))
        with (
            without_warnings(),
            load(path, device="cuda:0", multiprocessors=64) as one,
            load(path, device="cuda:0", multiprocessors=64) as other,
        ):
            with pytest.raises(DeviceError, match=r"which take 8 of GPU 0 .*, and 0 of 128 are free; close"):
                load(path, device="cuda:0", multiprocessors=1)
            there = one.run({"x": x}, on_device=True)
            again = other.run({"x": x}, there)
            close([array.numpy() for array in again.values()], expected, 1e-5)
            assert stand_in.widths() == [64]
            there.clear(), again.clear()
        with load(path, device="cuda:0", multiprocessors=128) as large:
            large.run({"x": x})
            assert stand_in.widths() == [128]

    on_standin(work)


def test_blocks_that_wait_for_each_other_are_those_of_the_share(on_standin: OnStandIn, tmp_path: Path) -> None:
    """A plan for all multiprocessors is refused where its blocks would wait for ever; one for the share is right."""
    proto = softmax(1 << 18)
    whole, mine = (compiled(proto, target, tmp_path) for target in ("cuda:h200", "cuda:h200/8"))
    blocks = [[one.grid[0] for one in _launches(path) if one.cooperative] for path in (whole, mine)]
    assert blocks == [[128], [8]]
    kernels = emulated(read_artifact(mine))
    x = np.random.default_rng(0).standard_normal((1, 1 << 18)).astype(np.float32)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})

    def work(stand_in: StandIn) -> None:
        stand_in.execute(executor(kernels))
        with load(mine, device="cuda:0", multiprocessors=8) as loaded:
            close(loaded.run({"x": x}).values(), expected, 1e-5)
            assert stand_in.widths() == [8]
        held = r"needs 128 blocks at a time, the partition of 8 multiprocessors of GPU 0 .* holds \d+ of them"
        with (
            pytest.warns(PartitionWarning, match="runs on 8"),
            pytest.raises(DeviceError, match=held + r".* cuda:NAME/8"),
        ):
            load(whole, device="cuda:0", multiprocessors=8)

    on_standin(work)


def _launches(path: Path) -> list[Any]:
    steps = [step for program in read_artifact(path).programs for step in program.steps if isinstance(step, DeviceStep)]
    return [launch for step in steps for launch in step.launches]


@pytest.mark.parametrize(("asked", "given"), [(1, 8), (8, 8), (33, 40), (127, 128)])
def test_what_is_asked_for_is_rounded_up(on_standin: OnStandIn, tmp_path: Path, asked: int, given: int) -> None:
    path = artifact(tmp_path, one_step([launch("increment", 0, 1)]))

    def work(stand_in: StandIn) -> None:
        with pytest.warns(
            UserWarning, match=f"for all multiprocessors of the GPU, runs on {given} .*cuda:NAME/{given}"
        ):
            loaded = load(path, device="cuda", multiprocessors=asked)
        with loaded:
            loaded.run({"x": X})
            assert loaded.multiprocessors == given
        assert stand_in.widths() == [given]

    on_standin(work)


@pytest.mark.parametrize(
    ("planned", "asked", "warns"),
    [(30, 30, False), (32, 30, False), (32, 32, False), (32, 40, True), (32, 24, True)],
)
def test_a_plan_for_another_number_is_said(
    on_standin: OnStandIn, tmp_path: Path, planned: int, asked: int, warns: bool
) -> None:
    path = compiled(mlp(3), f"cuda:h200/{planned}", tmp_path)

    def work(stand_in: StandIn) -> None:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            load(path, device="cuda", multiprocessors=asked).close()
        told = f"planned for {planned} multiprocessors of the GPU, runs on {asked} of them"
        assert [told in str(one.message) and one.filename == __file__ for one in said] == [True] * warns

    on_standin(work)


def test_a_gpu_in_equal_parts(on_standin: OnStandIn, tmp_path: Path) -> None:
    """Of 16 times 8 multiprocessors, none of which two parts have."""
    path = artifact(tmp_path, one_step([launch("increment", 0, 1)]))

    def work(stand_in: StandIn) -> None:
        warnings.simplefilter("ignore")
        for parts, each in ((1, 128), (2, 64), (3, 40), (5, 24), (16, 8)):
            with divide(parts) as made:
                assert [one.multiprocessors for one in made] == [each] * parts
                with load(path, device="cuda", multiprocessors=made[-1]) as loaded:
                    loaded.run({"x": X})
                assert stand_in.widths() == [each]
        with pytest.raises(DeviceError, match="can be divided into 16 partitions of 8 multiprocessors at most, and 17"):
            divide(17)
        with Partition(open_device(0), 72), pytest.raises(DeviceError, match="56 of 128 are free"):
            divide(2)
        with divide(16, "cuda:0"):
            pass

    on_standin(work)


@pytest.mark.parametrize("parts", [0, -1, True, 2.0, "2"])
def test_no_number_of_parts(parts: Any) -> None:
    with pytest.raises(DeviceError, match=r"parts is .*; give a whole number of at least 1"):
        divide(parts)


def test_other_devices_are_not_divided() -> None:
    with pytest.raises(DeviceError, match="only GPUs are divided, not the device 'cpu'"):
        divide(2, "cpu")


def test_models_share_a_partition(on_standin: OnStandIn, tmp_path: Path) -> None:
    path = artifact(tmp_path, one_step([launch("increment", 0, 1)]))

    def work(stand_in: StandIn) -> None:
        warnings.simplefilter("ignore")
        with Partition(open_device(0), 16) as partition, ExitStack() as loaded:
            for _ in range(2):
                loaded.enter_context(load(path, device="cuda", multiprocessors=partition)).run({"x": X})
            assert stand_in.widths() == [16]
            with pytest.raises(DeviceError, match=r"16 multiprocessors of GPU 0 .* is in use \(2 loaded models\)"):
                partition.close()
            loaded.close()
            partition.close()
            with pytest.raises(DeviceError, match="is closed; load on another"):
                load(path, device="cuda", multiprocessors=partition)

    on_standin(work)


def test_everything_is_given_back_when_models_are_dropped(on_standin: OnStandIn, tmp_path: Path) -> None:
    """Graphs before kernels before the green context, whatever the order in which Python takes them apart."""
    path = artifact(tmp_path, one_step([launch("increment", 0, 1)]))

    def work(stand_in: StandIn) -> None:
        warnings.simplefilter("ignore")
        loaded = load(path, device="cuda", multiprocessors=Partition(open_device(0), 8))
        there = loaded.run({"x": X}, on_device=True)
        twin = copy.copy(loaded)  # has as many multiprocessors of its own
        twin.run({"x": there["y"]})
        del loaded, twin
        gc.collect()
        there.clear()
        with load(path, device="cuda", multiprocessors=128):
            pass

    on_standin(work)


def test_in_a_stream_of_another_library(on_standin: OnStandIn, tmp_path: Path) -> None:
    """It is of the primary context, but the graph's kernels stay on the partition. The model has weights."""
    path = artifact(tmp_path, sum_program())

    def work(stand_in: StandIn) -> None:
        warnings.simplefilter("ignore")
        with load(path, device="cuda", multiprocessors=8) as loaded:
            device = loaded._backend._device
            with device.current():
                stream = int(device.call("cuStreamCreate", 0))
            there = loaded.run({"x": X}, on_device=True, stream=stream)["u"]
            assert there.numpy().shape == (4,)
            del there
            loaded.run({"x": X})
            with device.current():
                device.call("cuStreamDestroy", stream)
        assert stand_in.widths() == [8]

    on_standin(work)


REFUSED: list[tuple[Any, str]] = [
    (0, "multiprocessors is 0; give a whole number of at least 1"),
    (-8, "multiprocessors is -8"),
    (True, "multiprocessors is True"),
    ("32", "multiprocessors is '32'"),
    (129, "129 multiprocessors were asked for, and GPU 0 .* gives partitions of 8 and its multiples up to 128, of 132"),
]


@pytest.mark.parametrize(("wanted", "said"), REFUSED)
def test_numbers_that_cannot_be(on_standin: OnStandIn, tmp_path: Path, wanted: Any, said: str) -> None:
    path = artifact(tmp_path, one_step([launch("increment", 0, 1)]))

    def work(stand_in: StandIn) -> None:
        with pytest.raises(DeviceError, match=said):
            load(path, device="cuda", multiprocessors=wanted)

    on_standin(work)


def test_a_driver_without_green_contexts(on_standin: OnStandIn, tmp_path: Path) -> None:
    path = artifact(tmp_path, one_step([launch("increment", 0, 1)]))

    def work(stand_in: StandIn) -> None:
        stand_in.driver_version(12030)
        with pytest.raises(DeviceError, match=r"need a driver of CUDA 12.4, this one is of CUDA 12.3; upgrade"):
            load(path, device="cuda", multiprocessors=32)
        load(path, device="cuda").close()

    on_standin(work)


def test_other_devices_have_no_multiprocessors(tmp_path: Path) -> None:
    path = artifact(tmp_path, one_step([launch("increment", 0, 1)]))
    for device in ("cpu", "emulator"):
        with pytest.raises(DeviceError, match=f"multiprocessors are of GPUs, not of the device '{device}'"):
            load(path, device=device, multiprocessors=8)


def test_on_the_command_line(on_standin: OnStandIn, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = compiled(mlp(3), "cuda:h200/30", tmp_path)

    def work(stand_in: StandIn) -> None:
        for wanted, given in (("30", 32), ("64", 64)):
            options = ["--device", "cuda", "--multiprocessors", wanted]
            assert main(["run", str(path), *options]) == 0
            assert main(["bench", str(path), *options, "--rounds", "1"]) == 0
            assert stand_in.widths() == [given]

    on_standin(work)
    said = capfd.readouterr()
    assert [line for line in said.out.splitlines() if line.startswith("on ")] == [
        f"on {given} multiprocessors of the GPU" for given in (32, 64)
    ]
    warned = "warning: .*planned for 30 multiprocessors of the GPU, runs on 64 of them; .*--target cuda:NAME/64"
    assert re.search(warned, said.err)
    assert "runs on 32" not in said.err


def test_the_manifest_has_the_number(tmp_path: Path) -> None:
    targets = [read_artifact(compiled(mlp(3), f"cuda:h200{share}", tmp_path)).manifest.target for share in ("", "/30")]
    assert [target.multiprocessors for target in targets] == [None, 30]
    assert "multiprocessors" not in targets[0].to_json()
    assert TargetInfo.from_json(targets[1].to_json()) == targets[1]
    with pytest.raises(ArtifactSchemaError, match=r"target\.multiprocessors"):
        TargetInfo.from_json({**targets[1].to_json(), "multiprocessors": 0})


@pytest.fixture(scope="module")
def two_gpus() -> Path:
    reason = build.missing()
    if reason is not None:
        pytest.skip(reason)
    return build.build("A100,H200")


def test_gpus_are_divided_each_by_its_own_rules(two_gpus: Path, tmp_path: Path) -> None:
    path = artifact(tmp_path, one_step([launch("increment", 0, 1)]))

    def work(stand_in: StandIn) -> None:
        warnings.simplefilter("ignore")
        with Partition(open_device(0), 6) as small, Partition(open_device(1), 6) as large:
            assert (small.multiprocessors, large.multiprocessors) == (8, 8)
            with Partition(open_device(0), 100) as rest:
                assert rest.multiprocessors == 100
            with pytest.raises(
                DeviceError, match=r"of 8 multiprocessors of GPU 0 .*, and the model is loaded on GPU 1"
            ):
                load(path, device="cuda:1", multiprocessors=small)
            load(path, device="cuda:1", multiprocessors=large).run({"x": X})

    run(two_gpus, work)
