"""Ordered nodes as a linked list, with lookup, insertion and removal in constant time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .values import Node


class NodeList:
    """Distinct nodes in an order. None stands for both ends."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._next: dict[Node | None, Node | None] = {None: None}
        self._previous: dict[Node | None, Node | None] = {None: None}
        self._by_name: dict[str, Node] = {}
        for node in nodes:
            self.insert(node)

    def __len__(self) -> int:
        return len(self._next) - 1

    def __contains__(self, node: Node) -> bool:
        return node in self._next

    def __iter__(self) -> Iterator[Node]:
        node = self._next[None]
        while node is not None:
            yield node
            node = self._next[node]

    def insert(self, node: Node, before: Node | None = None) -> None:
        """Insert `node`, which is not in the list yet, before `before`, or at the end."""
        previous = self._previous[before]
        self._next[previous], self._next[node] = node, before
        self._previous[before], self._previous[node] = node, previous
        self._by_name[node.name] = node

    def remove(self, node: Node) -> None:
        following, previous = self._next.pop(node), self._previous.pop(node)
        self._next[previous], self._previous[following] = following, previous
        del self._by_name[node.name]

    def find(self, name: str) -> Node | None:
        return self._by_name.get(name)
