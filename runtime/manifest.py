"""`manifest.json`, the first member of an artifact: format version, target, plug-ins, and size and SHA-256 of every
other member.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .archive import is_member_name
from .dtypes import ITEM_BYTES
from .errors import ArtifactSchemaError, ArtifactVersionError
from .jsonfields import Fields
from .types import check_sizes

FORMAT_NAME = "tilestitch"
FORMAT_VERSION = 8
"""Incremented whenever an older runtime would misread a newer artifact."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TargetInfo:
    """Target for which the kernels were compiled.

    Kind `cpu`: `triple` and `cpu` are LLVM's names, `features` the CPU features that are needed, without `+`. Kind
    `cuda`: `architectures` are those with machine code, like `sm_90a`; the others are empty. multiprocessors: how many
    of a GPU's the kernels were planned for; None for all, and then omitted.
    """

    kind: str
    triple: str = ""
    cpu: str = ""
    features: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    multiprocessors: int | None = None

    def to_json(self) -> dict[str, Any]:
        share = {} if self.multiprocessors is None else {"multiprocessors": self.multiprocessors}
        return {
            "kind": self.kind, "triple": self.triple, "cpu": self.cpu, "features": list(self.features),
            "architectures": list(self.architectures), **share,
        }  # fmt: skip

    @staticmethod
    def from_json(data: Any, where: str = "target") -> TargetInfo:
        fields = Fields(data, where)
        target = TargetInfo(
            fields.string("kind"),
            fields.string("triple"),
            fields.string("cpu"),
            fields.strings("features"),
            fields.strings("architectures"),
            fields.integer("multiprocessors", 1) if "multiprocessors" in data else None,
        )
        fields.done()
        return target


@dataclass(frozen=True)
class PluginInfo:
    """A plug-in that was used: its name, version, the SHA-256 of its files, and its arguments (`{field=value}`)."""

    name: str
    version: str
    sha256: str
    arguments: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, "sha256": self.sha256, "arguments": self.arguments}

    @staticmethod
    def from_json(data: Any, where: str = "plugin") -> PluginInfo:
        fields = Fields(data, where)
        plugin = PluginInfo(*(fields.string(name) for name in ("name", "version", "sha256", "arguments")))
        fields.done()
        return plugin


@dataclass(frozen=True)
class MemberInfo:
    """Size in bytes and SHA-256 of a member as it is in the file: of a deflated one, before it is inflated."""

    size: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return {"size": self.size, "sha256": self.sha256}

    @staticmethod
    def from_json(data: Any, where: str = "member") -> MemberInfo:
        fields = Fields(data, where)
        member = MemberInfo(fields.integer("size"), _sha256(fields))
        fields.done()
        return member


@dataclass(frozen=True)
class WeightInfo:
    """A tensor of the weights. `sha256` of its bytes is recorded when the weights are stripped, else empty."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": list(self.shape), "sha256": self.sha256}

    @staticmethod
    def from_json(data: Any, where: str = "weight") -> WeightInfo:
        fields = Fields(data, where)
        weight = WeightInfo(
            fields.one_of("dtype", frozenset(ITEM_BYTES)), fields.integers("shape"),
            _sha256(fields, optional=True),
        )  # fmt: skip
        fields.done()
        check_sizes(weight.shape, f"{where}.shape")
        return weight


@dataclass(frozen=True)
class Manifest:
    """Description of an artifact. `members` has every member but `manifest.json`, `weights` every tensor.

    `precision`: of contractions with float32 operands: fp32, tf32, fp16 or bf16.
    """

    compiler_version: str
    target: TargetInfo
    members: Mapping[str, MemberInfo]
    weights: Mapping[str, WeightInfo]
    weights_stripped: bool = False
    plugins: tuple[PluginInfo, ...] = ()
    precision: str = "fp32"

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT_NAME,
            "format_version": FORMAT_VERSION,
            "compiler_version": self.compiler_version,
            "target": self.target.to_json(),
            "members": {name: member.to_json() for name, member in self.members.items()},
            "weights": {name: weight.to_json() for name, weight in self.weights.items()},
            "weights_stripped": self.weights_stripped,
            "plugins": [plugin.to_json() for plugin in self.plugins],
            "precision": self.precision,
        }

    @staticmethod
    def from_json(data: Any, where: str = "manifest") -> Manifest:
        """Read a manifest. Raises `ArtifactVersionError` for another format version, `ArtifactSchemaError` for
        malformed data.
        """
        fields = Fields(data, where)
        if fields.string("format") != FORMAT_NAME:
            raise ArtifactSchemaError(f"{where}.format is not {FORMAT_NAME!r}")
        version = fields.integer("format_version")
        if version != FORMAT_VERSION:
            newer = version > FORMAT_VERSION
            raise ArtifactVersionError(
                f"the artifact has format version {version}, this runtime knows version {FORMAT_VERSION}",
                remedy="upgrade tilestitch here"
                if newer
                else "compile the model again with the tilestitch that is here",
            )
        stripped = fields.boolean("weights_stripped")
        members = fields.mapping("members")
        for name in members:
            if not is_member_name(name):
                raise ArtifactSchemaError(f"{where}.members names {name!r}, which is no fit name")
        manifest = Manifest(
            compiler_version=fields.string("compiler_version"),
            target=TargetInfo.from_json(fields.take("target"), f"{where}.target"),
            members={
                name: MemberInfo.from_json(entry, f"{where}.members[{name!r}]") for name, entry in members.items()
            },
            weights={
                name: WeightInfo.from_json(entry, f"{where}.weights[{name!r}]")
                for name, entry in fields.mapping("weights").items()
            },
            weights_stripped=stripped,
            plugins=fields.sequence("plugins", PluginInfo.from_json),
            precision=fields.string("precision"),
        )
        fields.done()
        return manifest


def _sha256(fields: Fields, optional: bool = False) -> str:
    value = fields.string("sha256")
    if not _SHA256.fullmatch(value) and not (optional and not value):
        raise ArtifactSchemaError(f"{fields.where}.sha256 is no SHA-256 in hexadecimal digits")
    return value
