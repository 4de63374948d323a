"""Compiles all that a machine with a GPU shall run, packs it, and prints what to carry there and what to run.

    python -m benchmarks.device.bundle [--only smoke,cases] [--match softmax] [--limit-mib 45]

What the same compiler has made before is not made again. A machine without PyTorch leaves out the models.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.device import (
    bundle_pairs,
    emulator_bundle,
    gemm_bundle,
    open_cases,
    package,
    pair_models,
    share_models,
)
from benchmarks.device.bundle_cases import CASES, TARGET, VARIANTS
from benchmarks.device.bundle_kernels import bundle_kernels
from benchmarks.device.bundle_sizes import onnx_of
from benchmarks.device.cards import CARDS
from benchmarks.device.feeds import feeds_of, poisoned, sample
from benchmarks.device.interpreters import unsupported
from benchmarks.device.launch_orders import reordered
from benchmarks.device.sizes import SIZES, Size
from benchmarks.experts import Layer
from tilestitch.compiler import compile_model
from tilestitch.compiler.driver import CompiledModel
from tilestitch.compiler.ir.text import constants_of, digest, print_graph
from tilestitch.cost_model.devices import find_device
from tilestitch.passes.explain import explain_plan
from tilestitch.runtime import load
from tilestitch.runtime.artifact_writer import ArtifactContents, write_artifact
from tilestitch.runtime.program import DeviceStep

FOLDER = package.ARCHIVE.with_name("bundle")
LIMIT_MIB = 45.0
LISTINGS = ("cases", "open", "sizes", "gemm", "emulator", "pairs", "models", "shares")
PERIOD = 32_749
"""After so many elements, a prime, weights of cases begin again, so that they pack; no rows of a matrix are equal."""

PRECISIONS = ("fp32", "tf32", "bf16")
EXPERTS, TOKENS = Layer(32, 4, 2880, 2880), (1, 128)
"""A layer as of gpt-oss-20b, by weights of 4 bits: a decode step, and a short prompt."""
COMPILER = (
    "compiler", "passes", "codegen", "cost_model", "runtime", "tests/networks.py", "tests/models.py",
    "tests/open_models", "benchmarks/replay/catalogue.py",
    "benchmarks/experts.py",
    *(f"benchmarks/device/{name}.py" for name in ("bundle", "bundle_cases", "case_models", "case_blocks",
      "bundle_sizes", "bundle_pairs", "share_models",
      "gemm_bundle", "emulator_bundle", "open_cases", "launch_orders", "pair_models", "sizes", "feeds", "rules",
      "cards")),
)  # fmt: skip
"""What entries depend on."""

ON_GPU = """
On the machine with the GPU (Python 3.11 or newer, numpy, ml_dtypes, cuda-bindings 13; PyTorch and JAX for peers):

    carry   {archive}
    run     python3 -m benchmarks.device.run_queue --out RESULTS --budget 530

then copy the folder in RESULTS, which is called after the card, into benchmarks/results, and run the same again until
nothing is open.
"""


@dataclass(frozen=True)
class Entry:
    """Something to bundle: its list, its name there, and what makes it and says what is to be known of it."""

    listing: str
    name: str
    make: Callable[[Path], dict[str, Any]]


def entries() -> Iterator[Entry]:
    """All, in the order of their worth."""
    for name, family in CASES.items():
        for variant in family.variants:
            yield Entry("cases", f"{name}.{variant}", partial(bundle_case, name, variant))
    for name, case in open_cases.CASES.items():
        yield Entry("open", f"open.{name}", partial(bundle_open, f"open.{name}", case))
    for size in SIZES:
        yield Entry("sizes", size.name, partial(bundle_size, size))
    for shape in gemm_bundle.SHAPES:
        yield Entry("gemm", shape.name, partial(gemm_bundle.bundle, shape))
    yield Entry("emulator", "emulator", emulator_bundle.bundle)
    for mlp in pair_models.MLPS:
        for tokens in pair_models.TOKENS:
            name = f"{mlp.partition(' ')[0].rstrip(',')}.{tokens}"
            yield Entry("pairs", name, partial(bundle_pair, name, mlp, tokens))
    for precision in PRECISIONS:
        for model in _models():
            facts = {"model": model, "precision": precision}
            make = partial(_stripped, f"{model}.{precision}", partial(_exported, model), precision, facts)
            yield Entry("models", f"{model}.{precision}", make)
        for tokens in TOKENS:
            facts = {"model": f"qmoe_{tokens}", "precision": precision}
            name = f"qmoe_{tokens}.{precision}"
            yield Entry("models", name, partial(_stripped, name, partial(EXPERTS.model, tokens), precision, facts))
    pair = partial(bundle_pairs.onnx_of, share_models.MLP, share_models.TOKENS)
    yield Entry("shares", "share.mlp", partial(bundle_shares, "share.mlp", pair))
    for model in (one for one in _models() if one in share_models.EXPORTED):
        yield Entry("shares", f"share.{model}", partial(bundle_shares, f"share.{model}", partial(_exported, model)))


def _models() -> tuple[str, ...]:
    try:
        from benchmarks.models import BRANCHY, MODELS
    except ImportError as error:
        print(f"without the models: {error}", file=sys.stderr)
        return ()
    return (*MODELS, *BRANCHY)


def _exported(name: str) -> Path:
    from benchmarks.models import export

    return export(name)


def bundle_case(name: str, variant: str, folder: Path) -> dict[str, Any]:
    """The artifact; the graph; the constants that the artifact lacks; what the emulated device makes of one input."""
    kind, family = VARIANTS[variant], CASES[name]
    model = repeating(family.make(kind.dtype))
    compiled = compile_model(model, family.target, precision=kind.precision, passes=family.passes, sync=family.sync,
                             keep_source=True)  # fmt: skip
    entry = f"{name}.{variant}"
    graph = compiled.specialisations[0].graph
    (folder / f"{entry}.graph").write_text(print_graph(graph))
    stored = {digest(np.asarray(array)) for array in compiled.contents.weights.values()}
    rest: dict[str, Any] = {key: data for key, data in constants_of(graph).items() if key not in stored}
    np.savez(folder / f"{entry}.npz", **rest)
    if variant in family.smoke:
        _record(compiled, folder / f"{entry}.recorded.npz")
    has_reference = not unsupported(graph)
    return {
        "variant": variant,
        "smoke": variant in family.smoke,
        "reference": has_reference,
        **_saved(compiled, folder, entry, family.image),
    }


def bundle_open(name: str, case: open_cases.OpenCase | open_cases.OpenModel, folder: Path) -> dict[str, Any]:
    """The artifact, and what the emulated device makes of inputs of each size."""
    compiled = compile_model(case.model(), TARGET, dims=case.dims, keep_source=True, donate=case.donate)
    arrays: dict[str, Any] = {}
    points = case.feeds()
    with load(compiled.to_bytes(), device="emulator") as module:
        for number, feeds in enumerate(points):
            arrays |= {f"{number}.in.{key}": array for key, array in feeds.items()}
            arrays |= {f"{number}.out.{key}": array for key, array in module.run(feeds).items()}
    np.savez(folder / f"{name}.recorded.npz", **arrays)
    facts = {"variant": case.variant, "points": len(points), "donate": list(case.donate)}
    return {**facts, **_saved(compiled, folder, name)}


def repeating(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with weights that begin again after PERIOD elements; integers that may be positions stay."""
    for tensor in model.graph.initializer:
        data = numpy_helper.to_array(tensor)
        if data.size > PERIOD and (data.dtype.itemsize == 1 or data.dtype.kind not in "iu"):
            tensor.CopyFrom(numpy_helper.from_array(np.resize(data.reshape(-1)[:PERIOD], data.shape), tensor.name))
    return model


def _record(compiled: CompiledModel, path: Path) -> None:
    """Inputs, and samples of the outputs that the emulated device computes from them."""
    with load(compiled.to_bytes(), device="emulator") as module:
        feeds = feeds_of(module, np.random.default_rng(7))
        results = module.run(feeds, out=poisoned(module))
    arrays: dict[str, Any] = {f"in.{name}": array.reshape(-1) for name, array in feeds.items()}
    arrays |= {f"out.{name}": np.ascontiguousarray(sample(array)) for name, array in results.items()}
    np.savez(path, **{name: array.view(np.uint8) for name, array in arrays.items()})


def _stripped(
    entry: str, model: Callable[[], Path | onnx.ModelProto], precision: str, facts: dict[str, Any], folder: Path,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Artifact and graph without constants; which there are, by digest. If it branches, other orders, too. sizes: of
    open dimensions, for predictions.
    """
    compiled = compile_model(model(), TARGET, precision=precision, strip_weights=True)
    graph = compiled.specialisations[0].graph
    (folder / f"{entry}.graph").write_text(print_graph(graph))
    constants = {digest: [data.dtype.name, list(data.shape)] for digest, data in constants_of(graph).items()}
    known = {**facts, "constants": constants, "reference": not unsupported(graph),
             **_saved(compiled, folder, entry, sizes=sizes)}  # fmt: skip
    others = reordered(with_one_image(compiled.contents, "cubin"))
    for order, contents in others.items():
        write_artifact(folder / f"{entry}.{order}.tsm", contents, deflate=False)
    return {**known, "orders": {order: f"{entry}.{order}" for order in others}}


def bundle_size(size: Size, folder: Path) -> dict[str, Any]:
    return _stripped(size.name, partial(onnx_of, size), "fp32", {}, folder, size.symbols)


def bundle_pair(name: str, mlp: str, tokens: int, folder: Path) -> dict[str, Any]:
    """An artifact for every way in which the kernels are tied, where it differs from those before."""
    forms: dict[str, Any] = {}
    for form, sync in pair_models.FORMS.items():
        compiled = compile_model(bundle_pairs.onnx_of(mlp, tokens), TARGET, sync=sync)
        facts = _saved(compiled, folder, f"{name}.{form}")
        same = next((n for n, other in forms.items() if other["digest"] == facts["digest"]), None)
        forms[form] = {**facts, "artifact": forms[same]["artifact"] if same else f"{name}.{form}"}
    digest = hashlib.sha256("".join(one["digest"] for one in forms.values()).encode()).hexdigest()[:16]
    return {"mlp": mlp, "tokens": tokens, "forms": forms, "digest": digest}


def bundle_shares(name: str, model: Callable[[], Path | onnx.ModelProto], folder: Path) -> dict[str, Any]:
    """Artifacts planned for the whole GPU and for shares of it, and what each plan takes on the shares."""
    forms: dict[str, Any] = {}
    for form in (share_models.WHOLE, *map(str, share_models.SHARES)):
        is_whole = form == share_models.WHOLE
        target = TARGET if is_whole else f"{TARGET}/{form}"
        compiled = compile_model(model(), target, precision=share_models.PRECISION, strip_weights=True)
        shares = share_models.SHARES if is_whole else (int(form),)
        on_share = {str(share): predictions(compiled, share)["predicted_us"] for share in shares}
        facts = _saved(compiled, folder, f"{name}.{form}")
        forms[form] = {**facts, "artifact": f"{name}.{form}", "on_share_us": on_share}
    digest = hashlib.sha256("".join(one["digest"] for one in forms.values()).encode()).hexdigest()[:16]
    return {"model": name.partition(".")[2], "forms": forms, "digest": digest}


def _saved(
    compiled: CompiledModel, folder: Path, entry: str, image: str = "cubin", sizes: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The artifact, and what is to be known of it."""
    path = folder / f"{entry}.tsm"
    write_artifact(path, with_one_image(compiled.contents, image), deflate=False)  # the archive packs them all
    steps = [step for program in compiled.contents.programs for step in program.steps if isinstance(step, DeviceStep)]
    launches = [launch for step in steps for launch in step.launches]
    return {
        "digest": hashlib.sha256(path.read_bytes()).hexdigest()[:16],
        "kinds": sorted({launch.symbol.rpartition("_")[0] for launch in launches}),
        "features": sorted({f for launch in launches for f in _features(launch)}),
        **predictions(compiled, sizes=sizes),
    }


def predictions(
    compiled: CompiledModel, share: int | None = None, sizes: Mapping[str, int] | None = None
) -> dict[str, dict[str, float]]:
    """What one and the same plan takes on each card, or on a share of it, in the planned order and one launch at a
    time.
    """
    found: dict[str, dict[str, float]] = {"predicted_us": {}, "one_at_a_time_us": {}}
    planned = compiled.specialisations[0]
    for card in CARDS:
        target = replace(planned.plan.target, device=find_device(card).name)
        if share is not None:
            target = replace(target, multiprocessors=share, is_share=True)
        explained = explain_plan(planned.graph, planned.plan, target=target, given_sizes=sizes)
        found["predicted_us"][card] = explained["prediction"]["total_us"]
        found["one_at_a_time_us"][card] = explained["schedule"]["one_at_a_time_us"]
    return found


def with_one_image(contents: ArtifactContents, image: str) -> ArtifactContents:
    """Without the text of kernels, and with either their machine code or their PTX."""
    kernels = {name: data for name, data in contents.kernels.items() if name.endswith(f".{image}")}
    return replace(contents, kernels=kernels, extra={})


def _features(launch: Any) -> Iterator[str]:
    if launch.cluster != (1, 1, 1):
        yield "cluster"
    if launch.cooperative:
        yield "cooperative"
    if launch.faults:
        yield "faults"


class Lists:
    """The bundle's lists of entries, each a file that grows as entries are made. Those that another compiler has made
    are dropped.
    """

    def __init__(self, folder: Path, compiler: str) -> None:
        self.folder, self.compiler = folder, compiler
        self.rows: dict[str, dict[str, dict[str, Any]]] = {}
        for listing in LISTINGS:
            path = folder / f"{listing}.json"
            rows = json.loads(path.read_text()) if path.exists() else []
            self.rows[listing] = {row["name"]: row for row in rows if row["compiler"] == compiler}
            self._write(listing)

    def has(self, entry: Entry) -> bool:
        return entry.name in self.rows[entry.listing]

    def add(self, entry: Entry, facts: dict[str, Any]) -> None:
        self.rows[entry.listing][entry.name] = {"name": entry.name, **facts, "compiler": self.compiler}
        self._write(entry.listing)

    def _write(self, listing: str) -> None:
        unfinished = self.folder / f"{listing}.part"
        unfinished.write_text(json.dumps(list(self.rows[listing].values()), indent=1))
        os.replace(unfinished, self.folder / f"{listing}.json")

    def files(self) -> set[Path]:
        """What the entries need; the folder may have more."""
        found = {self.folder / f"{listing}.json" for listing in LISTINGS}
        found |= set((self.folder / "kernels").glob("*.cubin"))
        for row in (row for listing in ("cases", "sizes", "models") for row in self.rows[listing].values()):
            suffixes = [".tsm", ".graph"] + [".npz"] * ("variant" in row) + [".recorded.npz"] * row.get("smoke", False)
            found |= {self.folder / f"{row['name']}{suffix}" for suffix in suffixes}
            found |= {self.folder / f"{name}.tsm" for name in row.get("orders", {}).values()}
        for name in self.rows["open"]:
            found |= {self.folder / f"{name}{suffix}" for suffix in (".tsm", ".recorded.npz")}
        tied = (*self.rows["pairs"].values(), *self.rows["shares"].values())
        for form in (form for row in tied for form in row["forms"].values()):
            found |= {self.folder / f"{form['artifact']}.tsm"}
        for kernel in (kernel for row in self.rows["gemm"].values() for kernel in row["kernels"]):
            found |= {self.folder / "gemm" / f"{launch['symbol']}.cubin" for launch in kernel["launches"]}
        for row in self.rows["emulator"].values():
            found |= {self.folder / "emulator" / "arrays.npz"}
            found |= {self.folder / "emulator" / f"{case['image']}.cubin" for case in row["cases"]}
        return found


def build(lists: Lists, chosen: Sequence[Entry]) -> int:
    """Make what is not there yet. Returns how many could not be made."""
    bundle_kernels(lists.folder)
    failed = 0
    for entry in chosen:
        if lists.has(entry):
            continue
        start = time.monotonic()
        try:
            lists.add(entry, entry.make(lists.folder))
        except Exception as error:  # noqa: BLE001 - one entry that cannot be compiled must not cost the others
            print(f"{entry.listing} {entry.name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed += 1
            continue
        print(f"{entry.listing} {entry.name}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
    return failed


def compiler_digest() -> str:
    return package.digest_of(*(package.ROOT / name for name in COMPILER))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device.bundle", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where entries are kept between calls")
    parser.add_argument("--out", type=Path, default=package.ARCHIVE, metavar="FILE", help="what is packed")
    parser.add_argument("--only", default="", metavar="LIST,LIST", help=f"of {', '.join(LISTINGS)}")
    parser.add_argument("--match", default="", metavar="TEXT", help="entries whose name has this text")
    parser.add_argument(
        "--limit-mib", type=float, default=LIMIT_MIB, help=f"of all that travels (default {LIMIT_MIB:.0f})"
    )
    options = parser.parse_args(arguments)
    wanted = options.only.split(",") if options.only else None
    known = list(entries())
    chosen = [e for e in known if (not wanted or e.listing in wanted) and options.match in e.name]
    options.folder.mkdir(parents=True, exist_ok=True)
    lists = Lists(options.folder, compiler_digest())
    failed = build(lists, chosen)
    package.pack(options.folder, lists.files(), options.out)
    for listing in LISTINGS:
        print(f"{listing:8} {len(lists.rows[listing])} of {sum(entry.listing == listing for entry in known)}")
    archive, tracked = (size / 2**20 for size in package.travelling_bytes(options.out))
    print(f"{options.out}: {archive:.1f} MiB, beside {tracked:.1f} MiB in the repository; {failed} entries failed")
    if archive + tracked > options.limit_mib:
        print(f"that is more than {options.limit_mib:.0f} MiB; leave out some with --only or --match", file=sys.stderr)
        return 1
    print(ON_GPU.format(archive=options.out))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
