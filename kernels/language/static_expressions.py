"""`static`: Python expressions in a kernel that are evaluated before it is compiled, and become constants.

Each stands in the kernel's syntax tree as a name, which is its own text, so that whoever resolves names finds its value. What
an expression read is tracked as a kernel's globals are, as far as compiled code can compare it: variables, attributes of
modules, classes and plain objects, items of dictionaries, and arithmetic on what is immutable. An expression that does more,
such as call a function of the user's, is evaluated again before each launch. Nothing is compiled here.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
from collections.abc import Callable, Collection, Iterator
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, TypeGuard, TypeVar

import numpy as np

from numbridge.kernels.element_types.elements import Element
from numbridge.kernels.errors import KernelError
from numbridge.kernels.language.dependencies import (
    MISSING,
    PLAIN_TYPES,
    Dependency,
    is_module,
    is_same,
    is_settled,
    member_dependency,
)

__all__ = ["Scope", "StaticExpression", "replace_static_calls", "static"]

_T = TypeVar("_T")
_Refuse = Callable[[ast.AST, str], KernelError]


def static(expr: _T) -> _T:
    """Evaluate an expression before the kernel is compiled; in the compiled code its value is a constant.

    The expression may be anything that Python can evaluate where the kernel is declared, also what a kernel cannot hold, such as
    a comprehension or an attribute of an object. It may name everything but the kernel's own parameters and variables.

    Parameters
    ----------
    expr : number, str, tuple, vector, matrix, numpy.ndarray, device function or type
        What it evaluates to. A Python float takes the kernel's floating type, as a literal does. An array is a copy. A call of
        ``range`` is one of constants, to be looped over.

    Returns
    -------
    object
        The value; where Python runs the function that it stands in, too.

    Raises
    ------
    KernelError
        At the launch: if the expression raises, names a variable of the kernel, or is no constant.

    Notes
    -----
    It is evaluated with the variables of the time of the launch. If its value is another one then, the kernel is compiled anew,
    or found in the cache. Finding that out costs nothing for variables, attributes, dictionary items and arithmetic on
    them. An expression that calls a function of yours, or reads a list or an array, is evaluated before each launch, which then
    goes over Python and takes some hundred microseconds; assign what it gives to a variable, and name that. Inside JAX the
    values are those of the time when JAX traces.

    Examples
    --------
    >>> import numbridge as nb
    >>> coefficients = {"decay": 0.5}
    >>> @nb.kernel
    ... def decay(x):
    ...     i = nb.tid()
    ...     x[i] *= nb.static(coefficients["decay"] ** 2)
    >>> x = nb.ones(2)
    >>> nb.launch(decay, 2, [x])
    >>> coefficients["decay"] = 2.0
    >>> nb.launch(decay, 2, [x])
    >>> x.list()
    [1.0, 1.0]
    """
    return expr


# --------------------------------------------------------------------------------------------------------------------
# Finding the expressions


def replace_static_calls(
    tree: ast.FunctionDef, function: FunctionType, local: frozenset[str], refuse: _Refuse
) -> dict[str, StaticExpression]:
    """Replace each call of `static` by a name, and return what the names stand for.

    Parameters
    ----------
    tree : ast.FunctionDef
        The function; changed in place.
    function : function
        The same, as Python made it.
    local : frozenset of str
        Its parameters and variables.
    refuse : callable
        Makes an error of a node and a message.
    """
    replacer = _Replacer(function, local, refuse)
    tree.body = [replacer.visit(statement) for statement in tree.body]
    tree.args.defaults = [replacer.visit(default) for default in tree.args.defaults]
    return replacer.found


class _Replacer(ast.NodeTransformer):
    def __init__(self, function: FunctionType, local: frozenset[str], refuse: _Refuse) -> None:
        self._scope, self._local, self._refuse = Scope(function), local, refuse
        self.found: dict[str, StaticExpression] = {}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace a call of `static`."""
        if self._scope.reached(node.func, self._local) is not static:
            return self.generic_visit(node)
        if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
            raise self._refuse(node, "nb.static(expr) takes one expression")
        expression = node.args[0]
        if self._is_range(expression):
            # As loops are written elsewhere that are to be unrolled: short ones of constant bounds are.
            bounds = expression.args
            expression.args = [b if isinstance(b, ast.Constant) else self._constant(b) for b in bounds]
            return expression
        return self._constant(expression)

    def _is_range(self, node: ast.expr) -> TypeGuard[ast.Call]:
        if not isinstance(node, ast.Call) or node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            return False
        return self._scope.reached(node.func, self._local) is range

    def _constant(self, expression: ast.expr) -> ast.expr:
        """Return the name that stands for an expression."""
        for part in _free_names(expression):
            if part.id in self._local:
                raise self._refuse(
                    part,
                    f"{part.id!r} is a variable of the kernel, which has no value before it runs; leave nb.static out, or name "
                    "a variable of the enclosing function or module",
                )
        # No user can write this name; in messages it reads as the source does.
        made = StaticExpression(expression, self._scope, self._refuse)
        self.found.setdefault(made.text, made)
        return ast.copy_location(ast.Name(made.text, ast.Load()), expression)


def _free_names(expression: ast.expr) -> Iterator[ast.Name]:
    """Yield the names that an expression takes from around it."""
    nodes = list(ast.walk(expression))
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    return (n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id not in bound)


class Scope:
    """The variables around a function."""

    def __init__(self, function: FunctionType) -> None:
        self._globals = function.__globals__
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def find(self, name: str) -> tuple[Any, tuple[Dependency, ...]]:
        """Return a variable's value, or `MISSING`, and what that depends on."""
        if name in self._cells:
            try:
                value = self._cells[name].cell_contents
            except ValueError:
                return MISSING, ()
            return value, () if is_settled(name, value) else (Dependency(self._cells[name], None, value),)
        if name in self._globals:
            value = self._globals[name]
            return value, () if is_settled(name, value) else (Dependency(self._globals, name, value),)
        return getattr(builtins, name, MISSING), ()

    def reached(self, node: ast.expr, local: Collection[str]) -> Any:
        """Return what a name, or a chain of attributes of modules, stands for; `MISSING` if it begins with a local one."""
        path: list[str] = []
        while isinstance(node, ast.Attribute):
            path.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in local:
            return MISSING
        value, _ = self.find(node.id)
        for attribute in reversed(path):
            value = getattr(value, attribute, MISSING) if is_module(value) else MISSING
        return value

    def variables(self) -> dict[str, Any]:
        """Return all variables, as the globals of an evaluation."""
        cells = ((name, self.find(name)[0]) for name in self._cells)
        return {**self._globals, **{name: value for name, value in cells if value is not MISSING}}


# --------------------------------------------------------------------------------------------------------------------
# Evaluating them


class _Untracked(Exception):  # noqa: N818 - no error: it leads to another way
    """The value may change without a change that compiled code could see."""


class StaticExpression:
    """An expression, and what it was when it was last evaluated."""

    def __init__(self, expression: ast.expr, scope: Scope, refuse: _Refuse) -> None:
        self._expression, self._scope, self._refuse = expression, scope, refuse
        self._code = _compiled(expression)
        self.text = f"nb.static({ast.unparse(expression)})"
        self._found: tuple[Any, tuple[Dependency, ...]] | None = None

    def current(self) -> tuple[Any, tuple[Dependency, ...]]:
        """Return the value and what it depends on; evaluated anew if that has changed in a way that is tracked."""
        found = self._found
        if found is None or not all(part.container is None or part.holds() for part in found[1]):
            found = self._found = self._evaluated()
        return found

    def holds(self, value: Any) -> bool:
        """Evaluate anew, and return whether the value is still the same."""
        found = self._evaluated()
        if is_same(found[0], value):
            return True
        self._found = found
        return False

    def _evaluated(self) -> tuple[Any, tuple[Dependency, ...]]:
        reached: list[Dependency] = []
        try:
            value = _Tracked(self._scope, reached).value(self._expression)
            if not _is_immutable(value):
                raise _Untracked
        except _Untracked:
            value = self._copied(_evaluate(self._code, self._scope.variables(), self._failed))
            reached.append(_Evaluated(value, self))
        except Exception as error:
            raise self._failed(error) from error
        if not is_constant(value):
            raise self._refuse(
                self._expression,
                f"nb.static gave {_described(value)}; wanted a number, a string, a vector or matrix, a NumPy array, a function "
                "or type, or a tuple of such",
            )
        return value, tuple(reached)

    def _copied(self, value: Any) -> Any:
        """Return an array as a copy, which does not change unnoticed."""
        if not isinstance(value, np.ndarray):
            return value
        made = np.array(value)
        made.flags.writeable = False
        return made

    def _failed(self, error: Exception) -> KernelError:
        return self._refuse(self._expression, f"nb.static: this expression raised {type(error).__name__}: {error}")


class _Evaluated(Dependency):
    """A value that only evaluating the expression again tells to hold."""

    def __init__(self, value: Any, expression: StaticExpression) -> None:
        super().__init__(None, None, value)
        object.__setattr__(self, "_expression", expression)

    def holds(self) -> bool:
        """Evaluate the expression, and return whether it gives the same."""
        expression: StaticExpression = object.__getattribute__(self, "_expression")
        return expression.holds(self.value)

    def __str__(self) -> str:
        """Return the expression, as it is written."""
        expression: StaticExpression = object.__getattribute__(self, "_expression")
        return expression.text


def _compiled(expression: ast.expr) -> Any:
    return compile(ast.fix_missing_locations(ast.Expression(expression)), "<nb.static>", "eval")


def _evaluate(code: Any, variables: dict[str, Any], failed: Callable[[Exception], KernelError]) -> Any:
    try:
        return eval(code, variables)
    except Exception as error:  # a user's expression raises what it likes
        raise failed(error) from error


_OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.Compare)
_PURE = {abs, bool, complex, divmod, float, int, len, max, min, pow, round, str, sum, tuple}
_PURE |= {value for value in vars(math).values() if callable(value)}


class _Tracked:
    """Evaluates what can be tracked: collects the dependencies, and raises `_Untracked` for anything else."""

    def __init__(self, scope: Scope, reached: list[Dependency]) -> None:
        self._scope, self._reached = scope, reached

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._variable(node)
            case ast.Attribute():
                return self._attribute(self.value(node.value), node.attr)
            case ast.Subscript():
                return self._item(self.value(node.value), self.value(node.slice))
            case ast.Tuple():
                return tuple(self._immutable(element) for element in node.elts)
            case ast.Call(keywords=[]):
                return self._call(node)
            # What Python does not evaluate, such as a quotient whose divisor is 0 there, is not evaluated here either.
            case ast.IfExp():
                return self._immutable(node.body if self._immutable(node.test) else node.orelse)
            case ast.BoolOp():
                *others, last = node.values
                for part in others:
                    found = self._immutable(part)
                    if bool(found) is isinstance(node.op, ast.Or):
                        return found
                return self._immutable(last)
        if isinstance(node, _OPERATIONS):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self._immutable(child)
            return eval(_compiled(node), self._scope.variables())
        raise _Untracked

    def _immutable(self, node: ast.expr) -> Any:
        value = self.value(node)
        if not _is_immutable(value):
            raise _Untracked
        return value

    def _variable(self, node: ast.Name) -> Any:
        value, reached = self._scope.find(node.id)
        if value is MISSING:
            raise NameError(f"the name {node.id!r} is not defined")
        self._reached += reached
        return value

    def _attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, ModuleType | type):
            value = getattr(owner, name)
            self._reached += member_dependency(owner, name)
            return value
        if isinstance(owner, tuple) and name in getattr(owner, "_fields", ()):
            return getattr(owner, name)
        if isinstance(owner, np.generic | Element):
            return getattr(owner, name)
        values = _attributes(owner)
        # A property or the like comes before what the object holds, and may compute anything.
        if name not in values or hasattr(inspect.getattr_static(type(owner), name, None), "__set__"):
            raise _Untracked
        self._reached.append(Dependency(values, name, values[name]))
        return values[name]

    def _item(self, owner: Any, key: Any) -> Any:
        if type(owner) is tuple or isinstance(owner, str | Element):
            return owner[key]
        if type(owner) is not dict or type(key) not in (str, int):
            raise _Untracked
        value = owner[key]
        self._reached.append(Dependency(owner, key, value))
        return value

    def _call(self, node: ast.Call) -> Any:
        function, arguments = self.value(node.func), [self._immutable(argument) for argument in node.args]
        scalar = isinstance(function, type) and issubclass(function, np.generic | Element)
        if not (scalar or (callable(function) and _is_hashable(function) and function in _PURE)):
            raise _Untracked
        return function(*arguments)


def _attributes(owner: Any) -> dict[str, Any]:
    """Return the dictionary in which an object keeps its attributes; an empty one if it finds them in another way."""
    found: Any = type(owner).__getattribute__
    if found not in (object.__getattribute__, SimpleNamespace.__getattribute__):
        return {}
    try:
        values: dict[str, Any] = vars(owner)
    except TypeError:
        return {}
    return values


def _is_hashable(value: Any) -> bool:
    return type(value).__hash__ is not None


def _is_immutable(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_immutable(part) for part in value)
    return type(value) in PLAIN_TYPES or isinstance(value, np.generic | np.dtype | Element) or _is_named(value)


def _is_named(value: Any) -> bool:
    """Return whether a value is a function, a class or a module."""
    return isinstance(value, ModuleType | type) or (callable(value) and hasattr(value, "__name__"))


def is_constant(value: Any) -> bool:
    """Return whether a value may stand in compiled code."""
    if isinstance(value, tuple):
        return all(is_constant(part) for part in value)
    return _is_immutable(value) or isinstance(value, np.ndarray)


def _described(value: Any) -> str:
    if isinstance(value, range):
        return "a range; write range(...) itself, of numbers that are constants"
    if isinstance(value, list | set):
        return f"a {type(value).__name__}, which may change; make it a tuple"
    return f"an object of type {type(value).__name__}"
