"""PTX of copies, barriers, clusters and warpgroups as calls of the functions in `include/emulator`.

These instructions have so many spellings that they are parsed word by word; those of `ptx.h` are functions by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .errors import EmulatorUnsupportedError

Operands = Sequence[str]
"""The operands of an instruction as C++; those in braces are a list in braces, addresses are in `emu_pointer(…)`."""

_SHARED = {"shared", "shared::cta", "shared::cluster", "b64", "cta", "cluster"}
_ORDERS = {"release", "acquire", "relaxed"}
_COPY_HINTS = {"L2::cache_hint", "tile", "cta_group::1", "weak"}
_MATRIX_TYPES = {
    "f16": "emu_f16", "bf16": "emu_bf16", "tf32": "emu_tf32", "s8": "emu_s8", "u8": "emu_u8", "e4m3": "emu_e4m3",
    "e5m2": "emu_e5m2",
}  # fmt: skip
_ITEM_TYPES = {
    "b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t", "b16": "uint16_t", "u16": "uint16_t", "s16": "int16_t",
    "u32": "uint32_t", "s32": "int32_t", "u64": "uint64_t", "s64": "int64_t", "b32": "uint32_t", "b64": "uint64_t",
    "f16": "half", "bf16": "nv_bfloat16", "f32": "float", "f64": "double",
}  # fmt: skip
_SHAPE = re.compile(r"m64n(\d+)k(\d+)$")


def family_call(name: str, operands: Operands) -> str | None:
    """Return the C++ statement for an instruction; None if it is not of the families that this module knows.

    Raises EmulatorUnsupportedError for a spelling that the emulator does not support.
    """
    for prefix, translate in _FAMILIES.items():  # the longer of two prefixes comes first
        if name == prefix or name.startswith(prefix + "."):
            return translate(name, name[len(prefix) + 1 :].split("."), operands)
    return None


def _unsupported(name: str) -> EmulatorUnsupportedError:
    return EmulatorUnsupportedError(f"the emulator does not stand in for the PTX instruction {name!r}")


def _allow(name: str, words: Sequence[str], *allowed: set[str]) -> set[str]:
    """Return the words as a set. Raises EmulatorUnsupportedError if one is not allowed."""
    if not set(words) - {""} <= set().union(*allowed):
        raise _unsupported(name)
    return set(words)


def _items(operand: str) -> list[str]:
    """Return the parts of an operand in braces."""
    parts, depth, current = [], 0, ""
    for char in operand.strip()[1:-1]:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    return [*parts, current.strip()]


# --- mbarrier --------------------------------------------------------------------------------------------------------


def _mbarrier(name: str, words: Sequence[str], operands: Operands) -> str:
    operation, qualifiers = words[0], words[1:]
    if operation in ("init", "inval"):
        _allow(name, qualifiers, _SHARED, {"layout::v0"})
        return f"emu_mbarrier_{operation}({', '.join(operands)}, __LINE__);"
    if operation in ("arrive", "arrive_drop"):
        return _arrive(name, operation, qualifiers, operands)
    if operation in ("test_wait", "try_wait"):
        found = _allow(name, qualifiers, _SHARED, _ORDERS - {"release"}, {"parity", "phase_type::primary"})
        parity, acquires = int("parity" in found), int("relaxed" not in found)
        test = (
            f'emu_mbarrier_test({operands[1]}, {operands[2]}, {parity}, {acquires}, "mbarrier.{operation}", __LINE__)'
        )
        return f"{operands[0]} = {test};"
    if operation in ("expect_tx", "complete_tx"):
        _allow(name, qualifiers, _SHARED, {"relaxed"})
        return f"emu_mbarrier_{operation[:-3]}({', '.join(operands)}, __LINE__);"
    if operation == "pending_count":
        return f"{operands[0]} = uint32_t({operands[1]});"
    raise _unsupported(name)


def _arrive(name: str, operation: str, qualifiers: Sequence[str], operands: Operands) -> str:
    found = _allow(name, qualifiers, _SHARED, _ORDERS - {"acquire"}, {"expect_tx", "noComplete"})
    state, *rest = operands if not operands[0].startswith("emu_pointer(") else ("_", *operands)
    flags = int("relaxed" not in found) + 2 * (operation == "arrive_drop") + 4 * ("noComplete" in found)
    if len(rest) == 1:
        rest = [*rest, "1"]
    function = "emu_arrive_and_expect" if "expect_tx" in found else "emu_mbarrier_arrive"
    call = f"{function}({', '.join(rest)}, {flags}, __LINE__);"
    return call if state == "_" else f"{state} = {call}"


def _copies_arrive(name: str, words: Sequence[str], operands: Operands) -> str:
    found = _allow(name, words, _SHARED, {"noinc"})
    flags = 1 if "noinc" in found else 1 + 8  # the phase waits for one more arrival
    return f"emu_arrive_after_copies({operands[0]}, {flags}, __LINE__);"


# --- copies ----------------------------------------------------------------------------------------------------------


def _plain(name: str, words: Sequence[str], operands: Operands) -> str | None:
    """Return plain `ld` and `st`, which do not synchronise, as C++; None for the others, which are functions of
    `ptx.h`.
    """
    if {"relaxed", "acquire", "release", "volatile"} & set(words):
        return None
    rest = [word for word in words if not word.startswith(("L1::", "L2::"))]
    _allow(name, rest[:-1], {"weak", "global", "shared", "shared::cta", "shared::cluster", "nc", "v2", "v4"})
    address, values = operands[::-1] if name.startswith("ld") else operands
    if rest[-1] not in _ITEM_TYPES or not address.startswith("emu_pointer("):
        raise _unsupported(name)
    function = f"emu_plain_{name[:2]}<{_ITEM_TYPES[rest[-1]]}>"
    items = _items(values) if values.startswith("{") else [values]
    return f"{function}({address}, __LINE__, {', '.join(items)});"


def _copy(name: str, words: Sequence[str], operands: Operands) -> str:
    hints = {"L2::cache_hint", "L2::64B", "L2::128B", "L2::256B"}
    found = _allow(name, words, {"ca", "cg", "shared", "shared::cta", "global"}, hints)
    target, *rest = operands[:-1] if "L2::cache_hint" in found else operands
    size = rest[1:] if len(rest) == 3 else [rest[1], rest[1]]
    return f"emu_cp_async({target.removeprefix('emu_pointer')}, {', '.join([rest[0], *size])});"


def _bulk(name: str, words: Sequence[str], operands: Operands) -> str:
    if words[0] == "commit_group":
        return "emu_bulk_commit();"
    if words[0] == "wait_group":
        return f"emu_bulk_wait({operands[0]}, {int('read' in words)});"
    if words[0] == "prefetch":
        return f"emu_tensor_prefetch({_box(operands[0])}, __LINE__);" if words[1] == "tensor" else ";"
    rank = words[1] if words[0] == "tensor" else None
    words = words[2:] if rank else words
    if "mbarrier::complete_tx::bytes" in words:
        return _load(name, words, operands, rank is not None)
    found = _allow(name, words, {"global", "shared::cta", "bulk_group"}, _COPY_HINTS)
    if "bulk_group" not in found:
        raise _unsupported(name)
    return _store(operands, rank is not None, "nullptr")


def _load(name: str, words: Sequence[str], operands: Operands, is_tensor: bool) -> str:
    known = {
        "shared::cluster",
        "shared::cta",
        "global",
        "mbarrier::complete_tx::bytes",
        "multicast::cluster",
        "multicast::cluster::16b",
    }
    found = _allow(name, words, known, _COPY_HINTS)
    barrier = 2 if is_tensor else 3
    mask = operands[barrier + 1] if any(word.startswith("multicast") for word in found) else "0"
    if not is_tensor:
        return f"emu_bulk_load({', '.join(operands[:4])}, {mask}, __LINE__);"
    tensor_map, start = _map_and_start(operands[1])
    return f"emu_load_box({operands[0]}, {tensor_map}, {operands[barrier]}, {mask}, __LINE__, {', '.join(start)});"


def _store(operands: Operands, is_tensor: bool, reduce: str) -> str:
    if not is_tensor:
        return f"emu_bulk_store({', '.join(operands[:3])}, {reduce}, __LINE__);"
    tensor_map, start = _map_and_start(operands[0])
    return f"emu_store_box({tensor_map}, {operands[1]}, {reduce}, __LINE__, {', '.join(start)});"


def _reduce(name: str, words: Sequence[str], operands: Operands) -> str:
    operations = {"add", "min", "max", "inc", "dec", "and", "or", "xor"}
    rank = words[1] if words[0] == "tensor" else None
    words = words[2:] if rank else words
    found = _allow(
        name, words, {"global", "shared::cta", "bulk_group", "noftz"}, operations, set(_ITEM_TYPES), _COPY_HINTS
    )
    (operation,) = found & operations
    if rank:
        tensor_map, _ = _map_and_start(operands[0])
        return _store(operands, True, f"emu_reduction_of<emu_reduce_{operation}>({tensor_map})")
    (item,) = found & set(_ITEM_TYPES)
    return _store(operands, False, f"emu_reduce_items<{_ITEM_TYPES[item]}, emu_reduce_{operation}>")


def _map_and_start(operand: str) -> tuple[str, list[str]]:
    """Return the tensor map and the coordinates of an operand `emu_box(address, {c0, c1})`."""
    address, coordinates = _items(operand[len("emu_box") :])
    return f"emu_tensor_map({address})", _items(coordinates)


def _box(operand: str) -> str:
    tensor_map, start = _map_and_start(operand)
    return f"{tensor_map}, {len(start)}"


def _prefetch(name: str, words: Sequence[str], operands: Operands) -> str:
    return f"(void)({operands[0]});"


# --- barriers of threads, fences, clusters, warps --------------------------------------------------------------------


def _proxy_fence(name: str, words: Sequence[str], operands: Operands) -> str:
    spaces = {"": 7, "shared::cta": 5, "shared::cluster": 5, "global": 2}
    where = words[1] if len(words) > 1 else ""
    if words[0] != "async" or where not in spaces:
        raise _unsupported(name)
    return f"emu_fence_async({spaces[where]});"


def _fence(name: str, words: Sequence[str], operands: Operands) -> str:
    _allow(name, words, {"acq_rel", "sc", "acquire", "release", "cta", "cluster", "gpu", "sys"})
    return "emu_fence();"


def _barrier(name: str, words: Sequence[str], operands: Operands) -> str:
    if "red" in words:
        _allow(name, words, {"red", "popc", "u32", "cta", "aligned"})
        result, number, count, predicate = operands
        return f'{result} = emu_barrier_count(int({number}), uint32_t({count}), {predicate}, "{name}", __LINE__);'
    found = _allow(name, words, {"sync", "arrive", "cta", "aligned"})
    number, count = [*operands, "0"][:2]
    if "arrive" in found:
        return f"emu_barrier_arrive(int({number}), uint32_t({count}), __LINE__);"
    return f'emu_barrier(int({number}), uint32_t({count}), "{name}", __LINE__);'


def _mbarrier_fence(name: str, words: Sequence[str], operands: Operands) -> str:
    return "emu_fence_async(4); emu_fence();"


def _cluster(name: str, words: Sequence[str], operands: Operands) -> str:
    found = _allow(name, words, {"arrive", "wait", "release", "acquire", "relaxed", "aligned"})
    return (
        f"emu_cluster_arrive({int('relaxed' not in found)}, __LINE__);"
        if "arrive" in found
        else "emu_cluster_wait(__LINE__);"
    )


def _map_address(name: str, words: Sequence[str], operands: Operands) -> str:
    wide = words[-1] == "u64"
    if wide and "shared::cluster" not in words:  # between generic addresses
        address = f"emu_to_shared(emu_address({operands[1]}))"
        return f"{operands[0]} = uint64_t(emu_from_shared(emu_map_shared({address}, {operands[2]})));"
    return f"{operands[0]} = emu_map_shared(uint32_t(uint64_t({operands[1]})), {operands[2]});"


def _rank_of_address(name: str, words: Sequence[str], operands: Operands) -> str:
    if "shared::cluster" not in words:
        return f"{operands[0]} = emu_rank_of(emu_address({operands[1]}));"
    return f"{operands[0]} = emu_rank_of(emu_from_shared(uint32_t(uint64_t({operands[1]}))));"


def _elect(name: str, words: Sequence[str], operands: Operands) -> str:
    leader, _, predicate = operands[0].partition("|")
    declared = "uint32_t emu_leader; " if leader.strip() == "_" else ""
    chosen = "emu_leader" if declared else leader
    return f"{{ {declared}emu_elect({chosen}, {predicate}, {operands[1]}, __LINE__); }}"


def _store_matrices(name: str, words: Sequence[str], operands: Operands) -> str:
    found = _allow(name, words, {"sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "b16"}, _SHARED)
    transposed = "true" if "trans" in found else "false"
    return f"emu_store_matrices<{transposed}>({operands[0]}, __LINE__, {', '.join(_items(operands[1]))});"


# --- wgmma -----------------------------------------------------------------------------------------------------------


def _wgmma(name: str, words: Sequence[str], operands: Operands) -> str:
    operation = words[0]
    if operation in ("fence", "commit_group"):
        return f"emu_wgmma_{operation.removesuffix('_group')}();"
    if operation == "wait_group":
        return f"emu_wgmma_wait({operands[0]}, __LINE__);"
    shape, *types = [word for word in words[1:] if word not in ("sync", "aligned", "satfinite")]
    match = _SHAPE.match(shape)
    if operation != "mma_async" or match is None or len(types) != 3 or not set(types[1:]) <= set(_MATRIX_TYPES):
        raise _unsupported(name)
    return _multiply(int(match[1]), types, "satfinite" in words, operands)


def _multiply(columns: int, types: Sequence[str], saturates: bool, operands: Operands) -> str:
    sums, a, b, accumulates, *rest = operands
    in_registers = a.startswith("{")
    scales, transposes = rest[:2], [*rest[2:], "0", "0"]
    negative = [f"(int({scale}) < 0 ? {flag} : 0)" for scale, flag in zip(scales, (2, 4))]
    flags = " | ".join([f"({accumulates} ? 1 : 0)", *negative, "8" if saturates else "0"])
    template = f"<{_MATRIX_TYPES[types[1]]}, {_MATRIX_TYPES[types[2]]}, emu_sum_{types[0]}>"
    tail = f"__LINE__, {', '.join(_items(sums))});"
    if in_registers:
        registers = ", ".join(f"uint32_t({item})" for item in _items(a))
        return (
            f"emu_wgmma_registers{template}({columns}, emu_a_registers{{{{{registers}}}}}, {b}, {flags}, "
            f"{transposes[0]}, {tail}"
        )
    return f"emu_wgmma{template}({columns}, {a}, nullptr, {b}, {flags}, {transposes[0]}, {transposes[1]}, {tail}"


_FAMILIES: dict[str, Callable[[str, Sequence[str], Operands], str | None]] = {
    "ld": _plain,
    "st": _plain,
    "mbarrier": _mbarrier,
    "cp.async.mbarrier.arrive": _copies_arrive,
    "cp.async.bulk": _bulk,
    "cp.reduce.async.bulk": _reduce,
    "cp.async.ca": _copy,
    "cp.async.cg": _copy,
    "cp.async.commit_group": lambda name, words, operands: "emu_copy_commit();",
    "cp.async.wait_group": lambda name, words, operands: f"emu_copy_wait(uint32_t({operands[0]}));",
    "cp.async.wait_all": lambda name, words, operands: "emu_copy_wait_all();",
    "prefetch": _prefetch,
    "prefetchu": _prefetch,
    "fence.proxy": _proxy_fence,
    "fence.mbarrier_init": _mbarrier_fence,
    "fence": _fence,
    "barrier.cluster": _cluster,
    "bar.warp.sync": lambda name, words, operands: f"__syncwarp({operands[0]}, __LINE__);",
    "bar": _barrier,
    "barrier": _barrier,
    "mapa": _map_address,
    "getctarank": _rank_of_address,
    "elect.sync": _elect,
    "stmatrix": _store_matrices,
    "wgmma": _wgmma,
}
