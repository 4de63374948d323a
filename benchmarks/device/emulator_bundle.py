"""Records what kernels for Hopper's asynchronous units do on the emulated device, to be compared with a GPU.

    python -m benchmarks.device.emulator_bundle [--out benchmarks/device/bundle/emulator.npz]

The kernels are those of the tests of tensor copies, mbarrier and wgmma: every layout, swizzle and type. The file holds
`cases`, a JSON list, and the arrays before and after each; the queue's part C1 compares byte by byte.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.runtime.emulator import hopper, kernels
from tilestitch.runtime.emulator import TensorArgument

DEFAULT = Path(__file__).parent / "bundle" / "emulator.npz"
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT)
    out: Path = parser.parse_args().out
    recording = Recording()
    folder = Path(hopper.__file__).parent
    tests = [str(folder / f"{name}.py") for name in TESTS]
    with mock.patch.object(hopper, "run", recording.run):
        status = pytest.main(["-q", "-p", "no:cacheprovider", *tests], [recording])
    if status:
        return int(status)
    out.parent.mkdir(parents=True, exist_ok=True)
    cases = np.frombuffer(json.dumps(recording.cases).encode(), np.uint8)
    np.savez_compressed(out, cases=cases, **recording.arrays)  # type: ignore[arg-type]
    print(f"{len(recording.cases)} cases in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
