"""Compiles models with the tilestitch that is found on the path, and writes down what came of each.

    python dump.py MODELS OUT TARGET [TARGET ...]

MODELS is a folder of `.onnx` files. OUT gets `MODEL.TARGET.json`: the plan, the launches with their edges, and the text
of every kernel. Only the public functions of the package are used, so that this file runs over trees of any age.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from tilestitch.compiler import compile_model


def dump(model: Path, target: str) -> dict[str, Any]:
    """What a model becomes for a target; `error` alone if it cannot be compiled."""
    try:
        compiled = compile_model(str(model), target, keep_source=True, num_threads=2)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is a difference to be shown, not an end
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    contents = compiled.contents
    texts = {
        Path(name).name: bytes(data).decode("utf-8", "replace")
        for name, data in contents.extra.items()
        if name.endswith((".cu", ".tir.py"))
    }
    programs = [_plain(program) for program in contents.programs]
    return {"plan": contents.plan, "programs": programs, "kernels": dict(sorted(texts.items()))}


def _plain(data: Any) -> Any:
    """Dataclasses as dicts, with the name of the class."""
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        fields = {f.name: _plain(getattr(data, f.name)) for f in dataclasses.fields(data)}
        return {"is": type(data).__name__, **fields}
    if isinstance(data, (list, tuple)):
        return [_plain(item) for item in data]
    if isinstance(data, dict):
        return {str(key): _plain(item) for key, item in data.items()}
    return data if isinstance(data, (str, int, float, bool)) or data is None else repr(data)


def main(models: str, out: str, *targets: str) -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for model in sorted(Path(models).glob("*.onnx")):
        for target in targets:
            name = f"{model.stem}.{target.replace(':', '-')}.json"
            (folder / name).write_text(json.dumps(dump(model, target), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
