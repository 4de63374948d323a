"""Records what kernels for Hopper's asynchronous units do on the emulated device, to be compared with a GPU.

The kernels are those of the tests of tensor copies, mbarrier and wgmma: every layout, swizzle and type. A case's file
holds its arrays before and after; its machine code lies beside it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from benchmarks.device.bundle_kernels import compile_cubin
from tests.runtime.emulator import hopper, kernels
from tilestitch.runtime.emulator import TensorArgument

TESTS = ("test_tensor_copies", "test_wgmma", "test_mbarrier", "test_async_faults")


class Recording:
    """A pytest plug-in that keeps each kernel's text, launch and arguments, once if tests run it in several orders."""

    def __init__(self) -> None:
        self.cases: list[dict[str, Any]] = []
        self.arrays: dict[str, np.ndarray] = {}
        self._seen: set[tuple[Any, ...]] = set()
        self._test = ""

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self._test = item.name

    def run(self, text: str, arguments: list[Any], *, block: int, options: Any = None, **more: Any) -> None:
        memories = [_array(argument) for argument in arguments]
        before = [array.copy() for array in memories]
        kernels.run(text, arguments, block=block, options=options, **more)
        maps = [a.tensor_map.to_json() if isinstance(a, TensorArgument) else None for a in arguments]
        key = (text, json.dumps(maps), *(array.tobytes() for array in before))
        if key in self._seen:
            return
        self._seen.add(key)
        # Arguments that are the same memory are the same array.
        places = [next(i for i, other in enumerate(memories) if _start(other) == _start(array)) for array in memories]
        number = len(self.cases)
        for place in sorted(set(places)):
            self.arrays[f"{number}.{place}.before"] = before[place].reshape(-1).view(np.uint8)
            self.arrays[f"{number}.{place}.after"] = memories[place].reshape(-1).view(np.uint8)
        launch = {"grid": more.get("grid", 1), "block": block, "shared_bytes": more.get("shared_bytes", 0)}
        launch["cluster"] = list(more.get("cluster", (1, 1, 1)))
        self.cases.append({"test": self._test, "text": text, "arguments": places, "maps": maps, **launch})


def _array(argument: Any) -> np.ndarray:
    """The memory of an argument as an array that changes with it."""
    if not isinstance(argument, TensorArgument):
        return np.asarray(argument)
    memory = argument.memory
    interface = {"data": (memory.address, False), "shape": (memory.nbytes,), "typestr": "|u1", "version": 3}
    return np.asarray(type("Memory", (), {"__array_interface__": interface})())


def _start(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def record(folder: Path) -> None:
    """Run the tests, and write the cases to `folder`. Raises `RuntimeError` when a test fails."""
    recording = Recording()
    tests = [str(Path(hopper.__file__).with_name(f"{name}.py")) for name in TESTS]
    with mock.patch.object(hopper, "run", recording.run):
        status = pytest.main(["-q", "-p", "no:cacheprovider", "-n0", *tests], [recording])
    if status:
        raise RuntimeError(f"the tests of the emulated device ended with {status!r}")
    np.savez(folder / "arrays.npz", **recording.arrays)  # type: ignore[arg-type]
    for case in recording.cases:
        text = case.pop("text")
        case["image"] = hashlib.sha256(text.encode()).hexdigest()[:16]
        (folder / f"{case['image']}.cubin").write_bytes(compile_cubin(text))
    (folder / "cases.json").write_text(json.dumps(recording.cases))


def bundle(folder: Path) -> dict[str, Any]:
    """Record to `emulator/`, in a process of its own: many compilations have ended one."""
    inside = folder / "emulator"
    inside.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.device.emulator_bundle", str(inside)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"recording ended with {done.returncode}: {(done.stdout + done.stderr)[-400:]}")
    return {"cases": json.loads((inside / "cases.json").read_text())}


if __name__ == "__main__":
    record(Path(sys.argv[1]))
