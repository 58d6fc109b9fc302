"""What may be written in a kernel: syntax that no target can run is refused, with its place, before anything else."""

from __future__ import annotations

import ast
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

from numbridge.kernels.errors import KernelUnsupportedError

if TYPE_CHECKING:
    from numbridge.kernels.language.source import FunctionSource

__all__ = ["check_assignments", "check_returns", "check_syntax", "ends_threads", "leaves_by", "may_raise"]

RESERVED = "_nb_"
_WHAT = {"kernel": "a kernel", "func": "a device function"}
_REFUSED: dict[str, tuple[str, str]] = {
    "Yield": ("yield", "store results in an array"),
    "YieldFrom": ("yield", "store results in an array"),
    "AsyncFunctionDef": ("async", "write an ordinary function"),
    "AsyncFor": ("async", "write an ordinary loop"),
    "AsyncWith": ("async", "write an ordinary function"),
    "Await": ("await", "write an ordinary function"),
    "Try": ("try", "test the condition with if"),
    "TryStar": ("try", "test the condition with if"),
    "With": ("with", "call what it does directly"),
    "ClassDef": ("a class", "define it outside"),
    "Global": ("global", "pass an array and store into it"),
    "Nonlocal": ("nonlocal", "pass an array and store into it"),
    "Delete": ("del", "leave it out: local variables end with the thread"),
    "Starred": ("a starred expression outside of the arguments of a call", "write the elements out"),
    "JoinedStr": ("an f-string", "use a plain string"),
    "TemplateStr": ("a template string", "use a plain string"),
    "Import": ("import", "import at the top of the module"),
    "ImportFrom": ("import", "import at the top of the module"),
    "ListComp": (
        "a comprehension",
        "write a for loop, or a generator in sum(...), any(...) or all(...)",
    ),
    "SetComp": ("a comprehension", "write a for loop"),
    "DictComp": ("a comprehension", "write a for loop"),
    "GeneratorExp": (
        "a generator expression, except in sum(...), any(...) and all(...),",
        "write a for loop",
    ),
    "List": ("a list", "use a tuple, or cuda.local.array for something to write into"),
    "Set": ("a set", "use a tuple"),
    "Dict": ("a dict", "use a tuple"),
}
_ALLOWED = (
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Expr, ast.Return, ast.Pass),
    *(ast.Break, ast.Continue, ast.Raise, ast.Assert, ast.BoolOp, ast.NamedExpr, ast.BinOp, ast.UnaryOp, ast.IfExp),
    *(ast.Compare, ast.Call, ast.keyword, ast.Constant, ast.Attribute, ast.Subscript, ast.Name, ast.Tuple, ast.Slice),
)


def check_syntax(source: FunctionSource) -> None:
    """Refuse, at the first place where it stands, what no target can run."""
    _fence_parameters(source)
    calls = (node for node in source.nodes if isinstance(node, ast.Call))
    passed_on = {id(argument) for call in calls for argument in call.args if isinstance(argument, ast.Starred)}
    for node in source.nodes:
        if not isinstance(node, _ALLOWED) and id(node) not in passed_on:
            _refuse_syntax(source, node)
        elif isinstance(node, ast.Name) and node.id.startswith(RESERVED):
            raise source.error(
                node, f"the name {node.id!r} is reserved: generated names start with {RESERVED}; rename it"
            )
        elif isinstance(node, ast.keyword) and node.arg is None:
            raise source.error(node, "a double-starred argument cannot be used in a kernel; write the arguments out")
        elif isinstance(node, ast.Return) and source.role == "kernel" and not _returns_nothing(node):
            raise source.error(node, "a kernel returns nothing; store the result in an array")


def check_assignments(source: FunctionSource) -> None:
    """Refuse what Numba loses the type of: what `:=` both keeps and gives, unless it has a name already."""
    statements = {id(node.value) for node in source.nodes if isinstance(node, ast.Expr)}
    for node in source.nodes:
        if isinstance(node, ast.NamedExpr) and not isinstance(node.value, ast.Name) and id(node) not in statements:
            raise source.error(
                node,
                f"{node.target.id} := of more than a variable cannot be used in {_WHAT[source.role]}; assign it in a "
                "statement before",
                KernelUnsupportedError,
            )


def check_returns(source: FunctionSource) -> None:
    """Refuse a function that does not return a value on every path."""
    for node in source.nodes:
        if isinstance(node, ast.Return) and _returns_nothing(node):
            raise source.error(node, f"{source.name} returns nothing here; return a value")
    if not _always_returns(source.tree.body):
        raise source.error(
            source.tree.body[-1], f"{source.name} may end here without a value; return one on every path"
        )


def may_raise(node: ast.AST) -> bool:
    """Tell whether a piece of a kernel may end its launch: `raise`, `assert`, and a slice whose step may be zero."""
    if not isinstance(node, ast.Slice) or node.step is None:
        return isinstance(node, ast.Raise | ast.Assert)
    step = node.step.operand if isinstance(node.step, ast.UnaryOp) else node.step
    return not isinstance(step, ast.Constant) or not step.value


def _always_returns(body: list[ast.stmt]) -> bool:
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return _always_returns(last.body) and _always_returns(last.orelse)
    if isinstance(last, ast.While):
        forever = isinstance(last.test, ast.Constant) and bool(last.test.value)
        return forever and not any(isinstance(node, ast.Break) for node in ast.walk(last))
    return isinstance(last, ast.Return)


def _refuse_syntax(source: FunctionSource, node: ast.AST) -> None:
    kind = type(node).__name__
    what, instead = _REFUSED.get(kind, (f"this syntax ({kind})", "write it with simpler statements"))
    message = f"{what} cannot be used in {_WHAT[source.role]}; {instead}"
    raise source.error(node, message, KernelUnsupportedError)


def _returns_nothing(node: ast.Return) -> bool:
    return node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)


def _fence_parameters(source: FunctionSource) -> None:
    arguments, what = source.tree.args, _WHAT[source.role]
    for starred, spelling in ((arguments.vararg, "*"), (arguments.kwarg, "**")):
        if starred is not None and not (source.role == "func" and spelling == "*"):
            raise source.error(
                starred, f"{spelling}{starred.arg}: {what} takes a fixed number of parameters; name them"
            )
    for argument in arguments.kwonlyargs:
        raise source.error(argument, f"{argument.arg!r} is keyword-only: {what} takes its parameters by position")
    for argument in (*arguments.posonlyargs, *arguments.args):
        if argument.arg.startswith(RESERVED):
            raise source.error(
                argument, f"the parameter {argument.arg!r} is reserved: generated names start with {RESERVED}"
            )


def ends_threads(node: ast.AST) -> bool:
    """Tell whether a thread may end in a statement."""
    return any(isinstance(part, ast.Return) or may_raise(part) for part in ast.walk(node))


def leaves_by(body: Sequence[ast.stmt], kinds: type[ast.stmt] | types.UnionType) -> bool:
    """Tell whether a thread may leave statements, by ending or by those of some kinds that are not about a loop within."""
    for node in body:
        if ends_threads(node) or isinstance(node, kinds):
            return True
        inner = (
            [] if isinstance(node, ast.For | ast.While) else [*getattr(node, "body", []), *getattr(node, "orelse", [])]
        )
        if leaves_by(inner, kinds):
            return True
    return False
