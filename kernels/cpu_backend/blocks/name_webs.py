"""Names of a text by what reaches what: a name that serves several purposes, one after another, becomes several names.

Generated text assigns the same name on the way forth and on the way back. What is true of one of its values then seems true of
none. This module reads and changes text in which control flow is a handful of statements; it compiles nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

__all__ = ["split_names"]

_Reaching = dict[str, frozenset[int]]


def split_names(tree: ast.FunctionDef) -> None:
    """Give assignments of a name that no use sees together names of their own; parameters keep theirs."""
    webs = _Webs(tree)
    webs.rename()


class _Webs:
    def __init__(self, tree: ast.FunctionDef) -> None:
        self._parents: list[int] = []
        self._names: list[str] = []
        self._places: list[tuple[ast.Name, int]] = []
        self._made: dict[int, int] = {}  # the number of an assignment, by its node
        given = {argument.arg: frozenset([self._new(argument.arg)]) for argument in tree.args.args}
        self._count = len(given)
        self._mentioned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        self._exits: list[list[_Reaching]] = []
        self._block(tree.body, given)

    def _new(self, name: str) -> int:
        self._parents.append(len(self._parents))
        self._names.append(name)
        return len(self._parents) - 1

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            number = self._parents[number]
        return number

    def _join(self, numbers: Sequence[int]) -> None:
        for number in numbers[1:]:
            one, other = sorted((self._root(numbers[0]), self._root(number)))
            self._parents[other] = one

    def _use(self, node: ast.AST, reaching: _Reaching) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and reaching.get(part.id):
                numbers = sorted(reaching[part.id])
                self._join(numbers)
                self._places.append((part, numbers[0]))

    def _define(self, node: ast.Name, reaching: _Reaching) -> None:
        number = self._made.get(id(node))
        if number is None:
            number = self._made[id(node)] = self._new(node.id)
            self._places.append((node, number))
        reaching[node.id] = frozenset([number])

    def _block(self, body: Sequence[ast.stmt], reaching: _Reaching) -> _Reaching:
        for node in body:
            match node:
                case ast.Assign([ast.Name() as target], value):
                    self._use(value, reaching)
                    self._define(target, reaching)
                case ast.AugAssign(ast.Name() as target, _, value):
                    self._use(value, reaching)
                    before = reaching.get(target.id, frozenset())
                    self._define(target, reaching)
                    self._join([*sorted(before), self._made[id(target)]])
                case ast.If(test, then, orelse):
                    self._use(test, reaching)
                    sides = [self._block(side, dict(reaching)) for side in (then, orelse)]
                    if isinstance(then[0], ast.Break):
                        self._exits[-1].append(dict(reaching))
                        sides = sides[1:]
                    reaching = _merged(sides)
                case ast.For() | ast.While():
                    reaching = self._loop(node, reaching)
                case _:
                    self._use(node, reaching)
        return reaching

    def _loop(self, node: ast.For | ast.While, reaching: _Reaching) -> _Reaching:
        if isinstance(node, ast.For):
            self._use(node.iter, reaching)
        head, before = reaching, None
        self._exits.append([])
        while head != before:
            before = head
            inside = dict(head)
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                self._define(node.target, inside)
            elif isinstance(node, ast.While):
                self._use(node.test, inside)
            head = _merged([reaching, head, self._block(node.body, inside)])
        return _merged([head, *self._exits.pop()])

    def rename(self) -> None:
        """Change the text."""
        taken = {*self._names, *self._mentioned}
        kept: dict[str, int] = {name: self._root(number) for number, name in enumerate(self._names[: self._count])}
        fresh: dict[int, str] = {}
        for node, number in self._places:
            root, name = self._root(number), node.id
            if kept.setdefault(name, root) != root:
                if root not in fresh:
                    fresh[root] = next(made for k in range(2, len(taken) + 3) if (made := f"{name}_v{k}") not in taken)
                    taken.add(fresh[root])
                node.id = fresh[root]


def _merged(found: Sequence[_Reaching]) -> _Reaching:
    merged: dict[str, set[int]] = {}
    for reaching in found:
        for name, numbers in reaching.items():
            merged.setdefault(name, set()).update(numbers)
    return {name: frozenset(numbers) for name, numbers in merged.items()}
