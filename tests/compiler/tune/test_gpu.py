"""Tuning on a GPU, which the strict stand-in for the driver plays: its kernels take longer the oftener they fill it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.runtime.cuda.standin import build
from tests.runtime.cuda.standin.child import StandIn, run
from tilestitch.compiler import compile_model
from tilestitch.compiler.cli.main import main
from tilestitch.compiler.ir import Node
from tilestitch.compiler.tune import confirm, gpu, tasks
from tilestitch.compiler.tune.gpu import QUEUED_RUNS, Gpu, Loads, apart
from tilestitch.compiler.tune.machine import Builds, Turn
from tilestitch.compiler.tune.tune import tune_model
from tilestitch.passes.plan import Group
from tilestitch.passes.plan.schedules import ElementwiseSchedule
from tilestitch.passes.schedule.cuda.alternatives import alternatives
from tilestitch.runtime import load
from tilestitch.runtime.cuda.backend import open_device
from tilestitch.runtime.cuda.driver import Device, Driver
from tilestitch.runtime.errors import DeviceError, ExecutionError

pytest.importorskip("cuda.bindings", exc_type=ImportError)
OnStandIn = Callable[[Callable[[StandIn], Any]], None]


@pytest.fixture(scope="module")
def on_standin() -> OnStandIn:
    reason = build.missing()
    if reason is not None:
        pytest.skip(reason)
    return lambda function: run(build.build(), function)


def sums(rows: int) -> onnx.ModelProto:
    """An element-wise kernel, in which a thread may compute more elements, so that there are fewer blocks."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (rows, 4096)) for name in "xyz"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "y"], ["z"])], "sums", values[:2], values[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def vectors_only(nodes: Mapping[str, Node], group: Group, machine: Any) -> list[Group]:
    """Schedules that differ in how many vectors a thread has, 16 at most: few enough to try them all."""
    found = []
    for other in alternatives(nodes, group, machine):
        one, own = other.schedule, group.schedule
        assert isinstance(one, ElementwiseSchedule) and isinstance(own, ElementwiseSchedule)
        if replace(one, vectors=1) == replace(own, vectors=1) and one.vectors in (1, 2, 4, 8, 16):
            found.append(other)
    return found


def test_a_faster_schedule_is_found_and_kept(on_standin: OnStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "alternatives", vectors_only)
    monkeypatch.setattr(confirm, "ROUNDS", 2)  # simulated times are the same each time
    monkeypatch.setattr(gpu, "FILLED_BYTES", 1 << 20)

    def tuned(_: StandIn) -> None:
        model = sums(2048)
        found = tune_model(model, "cuda:h200", seconds=300, shares=2, plan=compile_model(model, "cuda:h200").plan)
        (plan,) = found.plans
        (task,) = plan.tasks
        assert task.tried == 4 and task.kept and task.alone < 1 and plan.after_us < plan.before_us
        assert compile_model(model, "cuda:h200", plan=found.model.plan).plan == found.model.plan
        with load(found.model.to_bytes(), device="cuda:0") as module:
            module.run([np.ones((2048, 4096), np.float32)] * 2)

    on_standin(tuned)


def test_kernels_for_a_share_are_measured_on_a_partition(on_standin: OnStandIn) -> None:
    def used(stand_in: StandIn) -> None:
        artifact = compile_model(sums(1), "cuda:h200/32").to_bytes()

        def widths(part: int) -> list[int]:
            loads = Loads("cuda:0", 32)
            loads.part = part
            with loads(artifact) as module:
                module.profile({name: np.ones((1, 4096), np.float32) for name in "xy"})
            return stand_in.widths()

        assert [apart(lambda part=part: widths(part)) for part in (0, 3)] == [[32], [32]]  # type: ignore[misc]

    on_standin(used)


def test_the_gpu_has_other_work_while_runs_are_queued(on_standin: OnStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(_: StandIn) -> None:
        artifact, did = compile_model(sums(1), "cuda:h200").to_bytes(), list[str]()
        with Loads("cuda:0", None)(artifact) as module:
            known = Driver.__call__

            def call(driver: Driver, name: str, *arguments: Any) -> Any:
                did.append(name)
                return known(driver, name, *arguments)

            monkeypatch.setattr(Driver, "__call__", call)
            module.run_us({name: np.ones((1, 4096), np.float32) for name in "xy"})
        queued = [name for name in did if name in ("cuMemsetD8Async", "cuGraphLaunch")]
        assert queued[0] == "cuMemsetD8Async" and queued.count("cuGraphLaunch") == 1 + QUEUED_RUNS

    on_standin(timed)


def test_only_with_mps_do_tuners_measure_side_by_side(on_standin: OnStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(multiprocessors: int | None) -> int:
        return Gpu.of(Builds("cuda:h200"), "cuda", multiprocessors).parts

    def tuners() -> int:
        return len(Gpu.of(Builds("cuda:h200"), "cuda", 32).shares(None))

    def counted(_: StandIn) -> None:
        assert (parts(None), parts(32), tuners()) == (1, 1, min(8, len(os.sched_getaffinity(0))))
        attribute = Device.attribute
        exclusive = {"COMPUTE_MODE": 3}
        monkeypatch.setattr(Device, "attribute", lambda self, name: exclusive.get(name) or attribute(self, name))
        assert tuners() == 1
        monkeypatch.setattr(Device, "attribute", lambda self, name: name == "MPS_ENABLED" or attribute(self, name))
        assert (parts(None), parts(32), parts(40), parts(128)) == (1, 4, 3, 1)

    on_standin(counted)


def test_a_process_that_has_used_the_gpu_is_told_so(on_standin: OnStandIn) -> None:
    def used(_: StandIn) -> None:
        device = open_device(0)
        with pytest.raises(DeviceError, match=r"this process has used the GPU.*tilestitch tune"):
            tune_model(sums(1), "cuda:h200")
        del device

    on_standin(used)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"target": "cuda:h200", "device": "cuda:7"}, r"no GPU number 7; there are cuda:0"),
        ({"target": "cuda:h200", "device": "cpu"}, r"not measured on the device 'cpu'; give cuda:N"),
        ({"target": "cuda:b200/140"}, r"140 multiprocessors were asked for, and GPU 0 .*up to 128"),
    ],
)
def test_what_cannot_be_measured_on_is_refused_before_compiling(
    on_standin: OnStandIn, options: dict[str, Any], error: str
) -> None:
    def refused(_: StandIn) -> None:
        with pytest.raises(DeviceError, match=error):
            tune_model("no such model.onnx", **options)

    on_standin(refused)


def test_without_a_gpu_the_command_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(sums(1), tmp_path / "m.onnx")
    given = [str(tmp_path / "m.onnx"), "--target", "cuda:h200", "-o", str(tmp_path / "m.tsm"), "--device", "cuda:99"]
    assert main(["tune", *given]) == 4
    said = capsys.readouterr().err
    assert "no NVIDIA driver" in said or "no GPU number 99" in said
    assert not (tmp_path / "m.tsm").exists()


def test_records_are_of_cpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(sums(1), tmp_path / "m.onnx")
    given = ["--target", "cuda:h200", "-o", str(tmp_path / "m.tsm"), "--save-records", str(tmp_path / "r.db")]
    assert main(["tune", str(tmp_path / "m.onnx"), *given]) == 1
    assert "leave --save-records out" in capsys.readouterr().err


# -- processes and turns -----------------------------------------------------------------------------------------------


def fails(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize("error", [DeviceError("no GPU"), ExecutionError("index out of range")])
def test_errors_for_users_pass_between_processes(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        apart(lambda: fails(error))


def test_faults_and_ends_of_a_process_are_errors() -> None:
    with pytest.raises(Exception, match="ZeroDivisionError: division by zero; report this as a bug"):
        apart(lambda: 1 / 0)
    with pytest.raises(Exception, match="ended with code 3"):
        apart(lambda: __import__("os")._exit(3))


def test_turns_come_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilestitch.compiler.tune.machine.WAIT_S", 0.01)
    path = tmp_path / "turn"
    path.touch()
    with Turn(path).wanted() as mine:
        assert mine()
        with Turn(path).wanted() as other:
            assert not other()
    with Turn(path).wanted() as other:
        assert other()
    with Turn().wanted() as alone:
        assert alone()
