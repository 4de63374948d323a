"""GPUs newer than what an artifact was compiled for load its PTX, which the driver's own assembler compiles there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay.catalogue import MODELS
from tests.cost_models import Preferring
from tests.runtime.cuda.standin.build import build, missing, takes_ptx
from tests.runtime.cuda.standin.child import StandIn, run
from tests.runtime.cuda.standin.models import exercise
from tilestitch.compiler import compile_model
from tilestitch.runtime import load
from tilestitch.runtime.errors import DeviceError

if missing() is not None or not takes_ptx():
    pytest.skip("needs the stand-in for the driver, and nvidia-nvjitlink", allow_module_level=True)

MEMBER = "kernels/compute_80/0.ptx"


def on_gpu(name: str, work: Callable[[], Any]) -> None:
    run(build(name), lambda _: work())


@pytest.mark.parametrize(
    ("name", "gpu"), [("bert_half", "B200"), ("long_rows", "B200"), ("sorting", "H200"), ("decoder", "B200")]
)
def test_an_artifact_for_older_gpus_runs(name: str, gpu: str) -> None:
    """Grid barriers, tensor cores, attention and shared memory beyond 48 KiB among its kernels."""
    compiled = compile_model(MODELS[name](), "cuda:sm_80")
    assert MEMBER in compiled.contents.kernels
    on_gpu(gpu, lambda: exercise(compiled.to_bytes()))


def test_kernels_of_hopper_alone_run_on_no_other_gpu(tmp_path: Path) -> None:
    """`wgmma` has no PTX that newer GPUs take."""
    preferred = [Preferring("wgmma")]
    path = compile_model(MODELS["bert_half"](), "cuda:sm_90a", passes=preferred).save(tmp_path / "m.tsm")

    def work() -> None:
        with pytest.raises(DeviceError, match=r"compiled for sm_90a, but .* has compute capability 10\.0"):
            load(path, device="cuda")

    on_gpu("H200", lambda: exercise(path.read_bytes()))
    on_gpu("B200", work)


def test_ptx_that_the_driver_cannot_compile_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PTX of an ISA that is newer than the driver."""
    compiled = compile_model(MODELS["gated_mlp_decode"](), "cuda:sm_80")
    text = compiled.contents.kernels[MEMBER]
    newer = text.replace(b".version 9.0", b".version 9.9")
    assert newer != text
    monkeypatch.setitem(compiled.contents.kernels, MEMBER, newer)
    path = compiled.save(tmp_path / "m.tsm")

    def work(stand_in: StandIn) -> None:
        with pytest.raises(DeviceError, match=rf"cannot load member '{MEMBER}' \(CUDA_ERROR_INVALID_PTX\)"):
            load(path, device="cuda")
        assert "9.9" in stand_in.last_reason()

    run(build("B200"), work)
