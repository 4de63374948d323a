"""Runs artifacts for another process: `remote.py` starts it where only the runtime of tilestitch is installed.

Lines of JSON come in (`{"load": PATH, "threads": N}`, `{"run": VALUES}`), and for each one goes out (`{}`, `{"values":
VALUES}` or `{"error": CLASS, "message": TEXT}`).
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import numpy as np


def encode(value: Any) -> Any:
    """Return a tensor, a list of tensors, or None, as JSON data."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return {"sequence": [encode(each) for each in value]}
    array = np.asarray(value)
    if array.dtype.kind in "OUST":
        return {"shape": array.shape, "strings": [str(each) for each in array.reshape(-1)]}
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"shape": array.shape, "dtype": array.dtype.name, "data": data}


def decode(value: Any) -> Any:
    """Return the inverse of `encode`; strings as objects."""
    if value is None:
        return None
    if "sequence" in value:
        return [decode(each) for each in value["sequence"]]
    shape = tuple(value["shape"])
    if "strings" in value:
        return np.array(value["strings"], dtype=object).reshape(shape)
    array = np.frombuffer(base64.b64decode(value["data"]), _dtype(value["dtype"])).reshape(shape)
    return array.copy()


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def answers(lines: Any) -> Any:
    """Yield one answer for each line."""
    from tilestitch.runtime import load

    run: Any = None
    for line in lines:
        asked = json.loads(line)
        try:
            if "load" in asked:
                model = load(asked["load"], num_threads=asked["threads"])
                names = [spec.name for spec in model.inputs]
                results = [spec.name for spec in model.outputs]
                run = model.run
                yield {}
            else:
                found = run(dict(zip(names, map(decode, asked["run"]))))
                yield {"values": [encode(found[name]) for name in results]}
        except Exception as error:  # noqa: BLE001 - the other process judges it
            yield {"error": type(error).__name__, "message": str(error)}


if __name__ == "__main__":
    for answer in answers(sys.stdin):
        print(json.dumps(answer), flush=True)
