"""Compares what two trees of this repository make of the same models: plans, launches, and the text of every kernel.

    python -m benchmarks.replay BASE [--only bert_small,lstm] [--targets cpu,emulator:sm_90a] [--parts kernels]

BASE is a commit. It is checked out into build/replay and compiled from there; what is compared with it is this working
tree. Exit code 1 if anything differs. A change that only moves code shows no difference.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

from .catalogue import MODELS, OPEN

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "replay"
PARTS = ("plan", "programs", "kernels")
TARGETS = ("cpu", "emulator:sm_80", "emulator:sm_90a")
"""Kernels for the emulated device have the text that a GPU's are compiled from."""
SHARES = 2
"""Processes for a tree."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__.split("\n\n")[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--only", help="names of models, with commas between them")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--parts", default=",".join(PARTS), help="what to compare: plan, programs (launches), kernels")
    parser.add_argument("--lines", type=int, default=40, help="lines of each difference to print")
    options = parser.parse_args(arguments)
    commit = _git("rev-parse", "--verify", f"{options.base}^{{commit}}")
    names = options.only.split(",") if options.only else [*MODELS, *OPEN]
    models = _write_models(names)
    targets = options.targets.split(",")
    before, after = WORK / "out" / commit[:12], WORK / "out" / "tree"
    for tree, out in ((_checkout(commit), before), (ROOT, after)):
        shutil.rmtree(out, ignore_errors=True)
        _dump(_links(tree), models, out, targets)
    different, parts = 0, frozenset(options.parts.split(","))
    for name in sorted(p.name for p in after.glob("*.json")):
        old, new = (json.loads((folder / name).read_text()) for folder in (before, after))
        found = list(differences(old, new, parts))
        different += bool(found)
        for line in found[: options.lines]:
            print(f"{name.removesuffix('.json')}: {line}")
        if len(found) > options.lines:
            print(f"{name.removesuffix('.json')}: and {len(found) - options.lines} more lines")
    print(f"{different} of {len(names) * len(targets)} differ from {commit[:12]}")
    return 1 if different else 0


def differences(
    before: dict[str, Any], after: dict[str, Any], parts: frozenset[str] = frozenset(PARTS)
) -> Iterator[str]:
    """What differs between two dumps, line by line as `diff -u` has it; kernels by name, the rest as JSON."""
    for part in ("error", *sorted(parts - {"kernels"})):
        yield from _diff(part, _text(before.get(part)), _text(after.get(part)))
    if "kernels" not in parts:
        return
    old, new = before.get("kernels", {}), after.get("kernels", {})
    gone, come = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    for name in sorted(set(old) & set(new)):
        yield from _diff(f"kernel {name}", old[name].splitlines(), new[name].splitlines())
    # Names end in a digest of the text: a kernel that changed has another name.
    for name, other in _pairs(gone, come):
        yield from _diff(f"kernel {name} -> {other}", old.get(name, "").splitlines(), new.get(other, "").splitlines())


def _pairs(gone: list[str], come: list[str]) -> Iterator[tuple[str, str]]:
    """Kernels that were there and kernels that are, by their kind; "" where there is no other."""
    left = list(come)
    for name in gone:
        kind = name.rpartition("_")[0]
        other = next((n for n in left if n.rpartition("_")[0] == kind), "")
        if other:
            left.remove(other)
        yield name, other
    yield from (("", name) for name in left)


def _text(data: Any) -> list[str]:
    return json.dumps(data, indent=1, sort_keys=True).splitlines()


def _diff(title: str, old: list[str], new: list[str]) -> Iterator[str]:
    if old != new:
        yield title
        yield from difflib.unified_diff(old, new, lineterm="", n=1)


def _write_models(names: list[str]) -> Path:
    folder = WORK / "models"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in names:
        onnx.save({**MODELS, **OPEN}[name](), folder / f"{name}.onnx")
    return folder


def _checkout(commit: str) -> Path:
    """The tree of a commit, as files without a repository."""
    folder = WORK / "trees" / commit[:12]
    if not folder.exists():
        folder.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def _links(tree: Path) -> Path:
    """A folder in which a tree's packages lie as they are installed, for PYTHONPATH."""
    folder = WORK / "links" / tree.name
    shutil.rmtree(folder, ignore_errors=True)
    package = folder / "tilestitch"
    package.mkdir(parents=True)
    for name in ("runtime", "compiler", "cost_model", "passes", "codegen"):
        (package / name).symlink_to(tree / name)
    for file in sorted(tree.glob("package/*")) or sorted(tree.glob("tilestitch/*")):
        if file.is_file():
            (package / file.name).symlink_to(file)
    return folder


def _dump(links: Path, models: Path, out: Path, targets: list[str]) -> None:
    """Compile all models for all targets with the package in `links`; processes take targets in turns."""
    script = Path(__file__).with_name("dump.py")
    environment = {**os.environ, "PYTHONPATH": str(links), "PYTHONHASHSEED": "0"}
    shares = [targets[i::SHARES] for i in range(SHARES) if targets[i::SHARES]]
    running = [
        subprocess.Popen([sys.executable, str(script), str(models), str(out), *share], env=environment, cwd=WORK)
        for share in shares
    ]
    for process in running:
        if process.wait():
            raise SystemExit(f"{script.name} ended with {process.returncode} over {links}")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
