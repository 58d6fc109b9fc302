"""Assignments in a kernel: to variables, elements of arrays, and parts of vectors and matrices."""

from __future__ import annotations

import ast
from collections.abc import Callable

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.bindings import Binding, View, kind_name
from numbridge.kernels.adjoint.calls import Calls
from numbridge.kernels.adjoint.element_program import replaced, with_named_part
from numbridge.kernels.adjoint.ir import Store, Value
from numbridge.kernels.adjoint.record_program import MOST_COPIED, Records, copied_parts, inner_places, same_record
from numbridge.kernels.element_stores import PARTS

__all__ = ["Assignments"]


class Assignments(Calls):
    """Reads assignments."""

    # Whether what is stored replaces a part of an element
    _in_part = False

    def _assign(self, target: ast.expr, value: Binding) -> None:
        match target:
            case ast.Name():
                self._env[target.id] = value
                if isinstance(value, View) and value.array in self.locals and not value.array.label:
                    value.array.label = target.id  # what messages call it
            case ast.Tuple():
                if not isinstance(value, tuple) or len(value) != len(target.elts):
                    raise self._refused(
                        target, "only a tuple of as many values can be unpacked here; assign them one by one"
                    )
                for element, part in zip(target.elts, value, strict=True):
                    self._assign(element, part)
            case ast.Subscript() | ast.Attribute():
                self._place(target)[1](value)
            case _:
                raise self._refused(target, "gradients do not follow this assignment; assign to a name or an element")

    def _place(self, target: ast.expr) -> tuple[Callable[[], Binding], Callable[[Binding], None]]:
        """Return what reads and what writes a variable, an element of an array, or a part of a vector or matrix."""
        if isinstance(target, ast.Name):
            name = ast.copy_location(ast.Name(target.id, ast.Load()), target)
            return lambda: self._name(name), lambda value: self._env.update({target.id: value})
        if not isinstance(target, ast.Subscript | ast.Attribute):
            raise self._refused(target, "gradients do not follow this assignment; assign to a name or an element")
        read, write = self._place(target.value) if self._is_place(target.value) else (None, None)
        owner = self._expression(target.value) if read is None else read()
        if isinstance(owner, Value) and inference.element_of(owner.type) is not None and write is not None:
            return self._part_place(target, owner, write)
        if isinstance(owner, Records):
            return self._memory_place(target, self._within_records(target, owner))
        if isinstance(target, ast.Attribute):
            raise self._refused(target, "gradients do not follow this assignment; assign to a name or an element")
        return self._memory_place(target, self._indexed(target, owner))

    def _memory_place(
        self, target: ast.expr, found: View | Records
    ) -> tuple[Callable[[], Binding], Callable[[Binding], None]]:
        if len(found.index) != (found.array.ndim if isinstance(found, View) else found.ndim):
            return lambda: found, lambda value: self._whole_row(target)
        if isinstance(found, Records):
            return lambda: found, lambda value: self._copy_record(target, found, value)
        return lambda: self._load(found), lambda value: self._store(target, found, value)

    def _is_place(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr in PARTS
        return isinstance(node, ast.Subscript) or (isinstance(node, ast.Name) and node.id in self._env)

    def _whole_row(self, target: ast.expr) -> None:
        raise self._refused(
            target, "a whole row cannot be assigned to in a kernel that is differentiated; write a loop"
        )

    def _part_place(
        self, target: ast.Subscript | ast.Attribute, owner: Value, write: Callable[[Binding], None]
    ) -> tuple[Callable[[], Binding], Callable[[Binding], None]]:
        """Return what reads and writes a part of an element: to write one is to replace the whole."""
        index = [] if isinstance(target, ast.Attribute) else self._integers(target)

        def put(value: Binding) -> None:
            made = None
            if isinstance(value, Value):
                if isinstance(target, ast.Attribute):
                    made = with_named_part(self, owner, target.attr, value)
                else:
                    made = replaced(self, owner, index, value)
            if made is None:
                raise self._refused(target, f"this does not fit into a part of {kind_name(owner)}")
            before, self._in_part = self._in_part, True
            write(made)
            self._in_part = before

        if isinstance(target, ast.Attribute):
            return lambda: self._part_named(target, owner), put
        return lambda: self._part_at(target, owner, index), put

    def _store(self, target: ast.expr, view: View, value: Binding) -> None:
        if not isinstance(value, Value):
            raise self._refused(target, "only a number can be stored into an element of an array")
        if (inference.element_of(value.type) or inference.element_of(view.array.dtype)) and (
            value.type != view.array.dtype
        ):
            raise self._refused(
                target, f"{kind_name(value)} cannot be stored into an array of {kind_name(view.array)}; make one"
            )
        if view.array.kind == "shared" and self._in_part:
            raise self._refused(
                target,
                f"a part of {kind_name(view.array)} in shared memory, of which other threads may store other parts, cannot be "
                "stored by itself in a kernel that is differentiated; store the whole",
            )
        if view.array.kind == "constant":
            raise self._refused(target, f"{view.array.name} is a constant array of the program; pass it as an argument")
        self.add(Store(view.array, list(view.index), self.cast(value, view.array.dtype)))

    def _copy_record(self, target: ast.expr, to: Records, value: Binding) -> None:
        if not isinstance(value, Records) or len(value.index) != value.ndim or not same_record(to.type, value.type):
            raise self._refused(
                target, f"only a record of the same dtype can be stored into {to.name}; store its fields"
            )
        pairs = [
            (self._leaf(target, a), self._leaf(target, b), inner)
            for a, b in zip(copied_parts(to), copied_parts(value), strict=True)
            for inner in inner_places(a.extents[len(to.extents) :])
        ]
        if len(pairs) > MOST_COPIED:
            raise self._refused(
                target, f"a record of {len(pairs)} numbers is copied at once; copy its fields in a loop"
            )
        made = []
        for goal, source, inner in pairs:  # everything is read before anything is written
            index = tuple(self.constant(k) for k in inner)
            made.append(
                (View(goal.array, (*goal.index, *index)), self._load(View(source.array, (*source.index, *index))))
            )
        for view, loaded in made:
            self._store(target, view, loaded)

    def _augment(self, node: ast.AugAssign) -> None:
        read, write = self._place(node.target)
        held = read()
        if isinstance(held, View | Records) and not isinstance(node.target, ast.Name):
            self._whole_row(node.target)
        if not isinstance(held, Value):
            raise self._refused(node, "an augmented assignment needs a number here; assign to the elements one by one")
        write(self._binary(node, node.op, held, self._value(node.value)))
