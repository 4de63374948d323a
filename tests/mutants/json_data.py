"""Random changes of JSON documents."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

NUMBERS = (0, 1, -1, 2, 3, 7, 15, 16, 17, 64, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64, 10**400)
OTHERS = (
    None, True, False, "", "?", 0.5, 1e300, [], {}, [[]], [-1], "\0", "\ud800", "ü" * 300, "float32", "string", "int64",
    "bool", {"$float": "nan"}, {"$constant": "w"}, {"$constant": []}, {"kind": "heap"}, {"kind": "status"},
    {"kind": "sizes"}, {"$size": "seq"}, "batch", "4*batch*seq", "-seq", "seq//0", "seq*seq*seq*seq*seq*seq", "(" * 400,
)  # fmt: skip


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a document with every key in it."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        yield data, key
        yield from places(item)


def changed(data: Any, chooser: random.Random) -> bytes:
    """The text of a document after one to three changes."""
    document = copy.deepcopy(data)
    for _ in range(chooser.choice((1, 1, 1, 2, 3))):
        found = list(places(document))
        if not found:
            break
        chooser.choice(_CHANGES)(*chooser.choice(found), found, chooser)
    text = json.dumps(document)
    return (_twice(text, chooser) if chooser.random() < 0.03 else text).encode("utf-8", "surrogatepass")


def rearranged(data: Any, chooser: random.Random) -> bytes:
    """The text of a document after one to three changes by which every field keeps its type."""
    document = copy.deepcopy(data)
    for _ in range(chooser.choice((1, 1, 2, 3))):
        found = list(places(document))
        if not found:
            break
        chooser.choice(_REARRANGEMENTS)(*chooser.choice(found), found, chooser)
    return json.dumps(document).encode()


def _nearby(parent: Any, key: Any, found: list[Any], chooser: random.Random) -> None:
    """A number of the document becomes another; what was chosen only says where to begin to look."""
    numbers = [(p, k) for p, k in found if isinstance(p[k], int)]
    if numbers:
        where, name = chooser.choice(numbers)
        old = where[name]
        if isinstance(old, bool):
            where[name] = not old
        else:
            near = (old + 1, old - 1, old * 2, old // 2, old + 16, old - 16, old + 64, 0, 1, chooser.randrange(40))
            where[name] = max(0, chooser.choice(near))


def _alike(parent: Any, key: Any, found: list[Any], chooser: random.Random) -> None:
    """It becomes what stands in another field of the same name."""
    others = [(p, k) for p, k in found if type(p[k]) is type(parent[key]) and (k == key or isinstance(p, list))]
    other, where = chooser.choice(others)
    parent[key] = copy.deepcopy(other[where])


def _fewer(parent: Any, key: Any, found: list[Any], chooser: random.Random) -> None:
    if isinstance(parent, list):
        del parent[key]


def _more(parent: Any, key: Any, found: list[Any], chooser: random.Random) -> None:
    if isinstance(parent, list):
        _repeat(parent, key, found, chooser)


def _tweak(parent: Any, key: Any, found: list[Any], chooser: random.Random) -> None:
    """A number becomes another; what is none becomes anything."""
    old = parent[key]
    if isinstance(old, bool):
        parent[key] = not old
    elif isinstance(old, int):
        near = (old + 1, old - 1, old * 2, old // 2, -old, old + 16, old + 64)
        parent[key] = chooser.choice(near if chooser.random() < 0.6 else NUMBERS)
    else:
        parent[key] = chooser.choice(OTHERS)


def _like_another(parent: Any, key: Any, found: list[Any], chooser: random.Random) -> None:
    """It becomes what stands elsewhere, best in a field of the same name."""
    alike = [(p, k) for p, k in found if k == key and type(p[k]) is type(parent[key])]
    other, where = chooser.choice(alike if alike and chooser.random() < 0.7 else found)
    parent[key] = copy.deepcopy(other[where])


def _anything(parent: Any, key: Any, found: list[Any], chooser: random.Random) -> None:
    parent[key] = chooser.choice((*NUMBERS, *OTHERS))


def _remove(parent: Any, key: Any, found: list[Any], chooser: random.Random) -> None:
    del parent[key]


def _repeat(parent: Any, key: Any, found: list[Any], chooser: random.Random) -> None:
    if isinstance(parent, list):
        parent.insert(chooser.randrange(len(parent) + 1), copy.deepcopy(parent[key]))
    else:
        parent[str(key) + "_"] = copy.deepcopy(parent[key])


def _disorder(parent: Any, key: Any, found: list[Any], chooser: random.Random) -> None:
    if isinstance(parent[key], list):
        chooser.shuffle(parent[key])


def _empty(parent: Any, key: Any, found: list[Any], chooser: random.Random) -> None:
    if isinstance(parent[key], list | dict):
        parent[key].clear()


def _nest(parent: Any, key: Any, found: list[Any], chooser: random.Random) -> None:
    depth, field = chooser.choice((1, 5, 200)), chooser.choice(("sequence", "optional", "attrs", "program"))
    for _ in range(depth):
        parent[key] = {field: parent[key]}


_CHANGES: tuple[Callable[[Any, Any, list[Any], random.Random], None], ...] = (
    _tweak, _tweak, _tweak, _like_another, _like_another, _like_another, _anything, _remove, _repeat, _disorder, _empty,
    _nest,
)  # fmt: skip


_REARRANGEMENTS = (_nearby, _nearby, _nearby, _alike, _alike, _alike, _fewer, _more, _disorder)


def _twice(text: str, chooser: random.Random) -> str:
    """The text with a name twice in one object."""
    starts = [number for number, letter in enumerate(text) if letter == "{" and text[number + 1] == '"']
    if not starts:
        return text
    start = chooser.choice(starts) + 1
    return f"{text[:start]}{text[start : text.index(':', start)]}:0,{text[start:]}"
