"""Runs what `record.py` wrote, where there are numpy, ml_dtypes and tilestitch's runtime: `python replay.py FOLDER`.

A line of JSON for each case and feed: whether the result is as expected, and whether each bit is that of `unit.c`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tilestitch.runtime import load


def replayed(folder: Path, case: dict[str, Any], threads: int = 1) -> Iterator[dict[str, Any]]:
    """What came out for each feed of a case."""
    with load(str(folder / f"{case['case']}.tsm"), num_threads=threads) as module:
        for number in range(case["feeds"]):
            with np.load(folder / f"{case['case']}.{number}.npz") as arrays:
                feeds = {name[3:]: arrays[name] for name in arrays.files if name.startswith("in_")}
                results = [np.asarray(value) for value in module.run(feeds).values()]
                yield {"case": case["case"], "feed": number, "threads": threads, **judged(results, arrays, case)}


def judged(results: list[np.ndarray], arrays: Any, case: dict[str, Any]) -> dict[str, Any]:
    differences, as_the_unit = [], []
    for number, result in enumerate(results):
        expected = arrays[f"expected_{number}"].astype(np.float64)
        largest = max(float(np.abs(expected).max()), np.finfo(np.float32).tiny)
        differences.append(float(np.abs(result.astype(np.float64) - expected).max()) / largest)
        if f"unit_{number}" in arrays.files:
            as_the_unit.append(result.tobytes() == arrays[f"unit_{number}"].tobytes())
    agrees = all(difference <= case["tolerance"] for difference in differences)  # NaN is not
    return {"agrees": agrees, "differences": differences, "as_the_unit": as_the_unit}


def main(folder: Path) -> None:
    for case in json.loads((folder / "cases.json").read_text()):
        for threads in (1, 2):
            try:
                for found in replayed(folder, case, threads):
                    print(json.dumps(found | {"features": case["features"]}), flush=True)
            except Exception as error:  # noqa: BLE001 - it is told, and the next case goes on
                told = {"case": case["case"], "agrees": False, "error": f"{type(error).__name__}: {error}"}
                print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
