"""The rules of the house: directions of imports, names, docstrings, binary layouts.

A rule takes a house, which is a tree of folders like this repository's, and yields complaints. It reads the source and
imports nothing of it. `test_house` runs the rules on this repository, and on samples that break them.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

FOLDERS = ("interop", "kernels", "tests", "examples", "docs")
PACKAGES = {"interop": "numbridge", "kernels": "numbridge.kernels"}

# What the core builds on; the layer above may use it too.
BELOW = {*sys.stdlib_module_names, "cuda", "llvmlite", "ml_dtypes", "numba", "numpy"}
# Module → the room that may import it, inside its functions.
FRAMEWORKS = {
    "cupy": "cupy",
    "cupy_backends": "cupy",
    "jax": "jax",
    "jaxlib": "jax",
    "paddle": "paddle",
    "torch": "torch",
}
ROOMS = {"numpy", *FRAMEWORKS.values()}
PEERS = {"triton", "tvm_ffi", "warp"}
# What only the command line may import. It speaks of all frameworks, and nothing of interop imports it.
COMMAND_LINE = "interop/command_line/"
# Folder of interop → what of the others it may import when it runs; types may come from anywhere. Storage and arrays look up in
# one place: what a framework says of its tensors is asked through the interface that its bridge fills in.
LAYERS = {
    "storage": {"bridges.bridge"},
    "streams": {"storage"},
    "arrays": {"bridges.bridge", "storage", "streams"},
    "bridges": {"arrays", "storage", "streams"},
    "tape": {"arrays", "bridges", "storage"},
    "operators": {"bridges"},
    "jax_ffi": {"arrays", "bridges.installed", "operators", "storage"},
}
FOR_THE_COMMAND_LINE = {"rich", "typer", *PEERS}
# A module of one of these names would be imported in its stead by whatever runs inside the folder.
TAKEN = {"llvmlite", "ml_dtypes", "numba", "numpy", "tbb", *FRAMEWORKS, *PEERS}


@dataclass(frozen=True)
class Import:
    """One imported name, dotted: ``from a import b`` is ``a.b``."""

    line: int
    name: str
    bound: str
    lazy: bool
    for_types: bool = False

    @property
    def root(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Module:
    """A parsed file; `path` is relative to the root of its house."""

    path: Path
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.path.parts[0]

    @property
    def room(self) -> str | None:
        """The framework whose room this is: ``interop/bridges/torch_bridge.py``, ``interop/jax_ffi/primitive.py``."""
        return room_of(".".join(self.path.with_suffix("").parts[1:])) if self.folder == "interop" else None

    @property
    def is_command_line(self) -> bool:
        return self.path.as_posix().startswith(COMMAND_LINE)

    @cached_property
    def imports(self) -> list[Import]:
        return list(imports_in(self.tree, lazy=False))

    def at(self, line: int, complaint: str) -> str:
        return f"{self.path.as_posix()}:{line}: {complaint}"


@dataclass(frozen=True)
class House:
    """A tree of folders like this repository's."""

    root: Path

    @cached_property
    def modules(self) -> list[Module]:
        files = sorted(file for folder in FOLDERS for file in (self.root / folder).rglob("*.py"))
        return [Module(file.relative_to(self.root), ast.parse(file.read_text(), str(file))) for file in files]

    def within(self, *folders: str) -> list[Module]:
        return [module for module in self.modules if module.folder in folders]


def room_of(dotted: str) -> str | None:
    """Return the framework to whose room a module of interop belongs, by its name below the package."""
    folder, *within = dotted.split(".")[:2]
    names = [folder] if folder == "kernels" else [folder, *within]
    return next((room for room in sorted(ROOMS) for name in names if name == room or name.startswith(f"{room}_")), None)


def imports_in(node: ast.AST, *, lazy: bool) -> Iterator[Import]:
    """Yield every import below `node`, also those written as calls; lazy ones do not run with the module."""
    yield from _imports_of(node, lazy)
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for child in node.body:
            yield from (replace(found, for_types=True) for found in imports_in(child, lazy=True))
        yield from (found for child in node.orelse for found in imports_in(child, lazy=lazy))
        return
    within = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from imports_in(child, lazy=within)


def _imports_of(node: ast.AST, lazy: bool) -> Iterator[Import]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield Import(node.lineno, alias.name, alias.asname or alias.name, lazy)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            for alias in names:
                yield Import(node.lineno, f"{module}.{alias.name}", alias.asname or alias.name, lazy)
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if _imports_by_name(function):
            yield Import(node.lineno, name, "", lazy)


def _imports_by_name(function: ast.expr) -> bool:
    return ast.unparse(function).rpartition(".")[2] in {"__import__", "import_module", "importorskip"}


def is_under(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def imports_are_absolute(house: House) -> Iterator[str]:
    for module in house.modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                yield module.at(node.lineno, "a relative import; write it from numbridge on")


def kernels_look_down(house: House) -> Iterator[str]:
    for module in house.within("kernels"):
        for found in module.imports:
            if found.root not in {*BELOW, "numbridge"}:
                yield module.at(found.line, f"kernels may not import {found.name}")
            elif found.root == "numbridge" and not is_under(found.name, "numbridge.kernels"):
                yield module.at(found.line, f"kernels may not look up to {found.name}")


def interop_looks_down(house: House) -> Iterator[str]:
    for module in house.within("interop"):
        for found in module.imports:
            more = FOR_THE_COMMAND_LINE if module.is_command_line else set()
            if found.root not in {*BELOW, *FRAMEWORKS, *more, "numbridge"}:
                yield module.at(found.line, f"interop may not import {found.name}")


def folders_look_down(house: House) -> Iterator[str]:
    for module in house.within("interop"):
        folder = module.path.parts[1]
        if len(module.path.parts) < 3 or module.is_command_line:
            continue
        if folder not in LAYERS:
            yield module.at(1, f"LAYERS in tests/house.py does not say what interop/{folder}/ may import")
            continue
        for found in module.imports:
            _, _, name = found.name.partition("numbridge.")
            other = name.partition(".")[0]
            if found.for_types or found.root != "numbridge" or other not in LAYERS or other == folder:
                continue
            if not any(is_under(name, allowed) for allowed in LAYERS[folder]):
                yield module.at(found.line, f"{folder} may not look up to {found.name}")


def command_line_is_left_alone(house: House) -> Iterator[str]:
    for module in house.within("interop"):
        if not module.is_command_line and module.path.as_posix() != "interop/__main__.py":
            for found in module.imports:
                if is_under(found.name, "numbridge.command_line"):
                    yield module.at(found.line, "only __main__ imports the command line, which is slow to import")


def interop_uses_public_names(house: House) -> Iterator[str]:
    for module in house.within("interop"):
        core = [found for found in module.imports if is_under(found.name, "numbridge.kernels")]
        for found in core:
            if any(map(is_private, found.name.split("."))):
                yield module.at(found.line, f"{found.name} is private to kernels")
        bound = {found.bound for found in core}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr) and ast.unparse(node.value) in bound:
                yield module.at(node.lineno, f"{ast.unparse(node)} is private to kernels")


def frameworks_are_lazy(house: House) -> Iterator[str]:
    for module in house.within("interop", "kernels"):
        for found in module.imports:
            if found.root in FRAMEWORKS and not found.lazy:
                yield module.at(found.line, f"{found.name} is imported with the module; import it in a function")


def rooms_keep_apart(house: House) -> Iterator[str]:
    for module in house.within("interop"):
        for found in module.imports:
            framework = FRAMEWORKS.get(found.root)
            if framework not in {None, module.room} and not module.is_command_line:
                yield module.at(found.line, f"{found.name} belongs to the room of {framework}")
            other = room_of(found.name.removeprefix("numbridge.")) if found.root == "numbridge" else None
            if module.room and other not in {None, module.room}:
                yield module.at(found.line, f"the room of {module.room} may not import {found.name}")


def names_shadow_nothing(house: House) -> Iterator[str]:
    for module in house.modules:
        if module.path.stem in TAKEN:
            yield module.at(1, f"shadows {module.path.stem} for whatever runs inside this folder")


def names_say_something(house: House) -> Iterator[str]:
    for module in house.modules:
        if module.path.stem in {"util", "utils", "helper", "helpers", "misc"}:
            yield module.at(1, "a grab-bag; name the thing and give it a file")


def modules_have_docstrings(house: House) -> Iterator[str]:
    for module in house.modules:
        if not ast.get_docstring(module.tree):
            yield module.at(1, "no docstring: what is the module for, and what may it not do?")


def every_test_is_run(house: House) -> Iterator[str]:
    for module in house.within("tests", "examples", "docs"):
        for scope in (node for node in ast.walk(module.tree) if isinstance(node, ast.Module | ast.ClassDef)):
            tests = [node for node in scope.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
            for name, count in Counter(test.name for test in tests).items():
                if name.startswith("test") and count > 1:
                    yield module.at(1, f"{name} is defined {count} times: only the last one runs")


def constants_are_said_once(house: House) -> Iterator[str]:
    for module in house.modules:
        known: dict[str, int] = {}
        for statement in module.tree.body:
            for name in _assigned(statement) if isinstance(statement, ast.Assign) else ():
                if name in known:
                    yield module.at(statement.lineno, f"{name} is something else in line {known[name]}")
                known[name] = statement.lineno


def layouts_are_numbers(house: House) -> Iterator[str]:
    for module in house.within("interop", "kernels"):
        if module.path.stem.endswith("_layout"):
            for statement in module.tree.body[1:]:
                if not is_layout(statement):
                    yield module.at(statement.lineno, "a layout holds numbers and ctypes structures, nothing that runs")


def is_layout(statement: ast.stmt) -> bool:
    """Whether a layout may hold this statement: numbers that can be worked out by hand, or a structure's fields."""
    match statement:
        case ast.ImportFrom(module="__future__") | ast.Import(names=[ast.alias(name="ctypes")]):
            return True
        case ast.ClassDef(body=body):
            return is_structure(statement) and not any(isinstance(node, ast.FunctionDef) for node in body)
    return is_constant(statement)


def is_structure(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith(("Structure", "Union")) for base in node.bases)


def is_constant(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            plain = ast.Constant | ast.Name | ast.Tuple | ast.BinOp | ast.UnaryOp
            syntax = ast.expr_context | ast.operator | ast.unaryop
            return all(isinstance(node, plain | syntax) for node in ast.walk(value))
    return False


def layouts_live_alone(house: House) -> Iterator[str]:
    owners = dict(_layout_names(house))
    for module in house.within("interop", "kernels"):
        if module.path.stem.endswith("_layout"):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and is_structure(node):
                yield module.at(node.lineno, f"{node.name} is a binary layout; it belongs into a *_layout.py")
            elif isinstance(node, ast.Assign) and is_constant(node) and not isinstance(node.value, ast.Name):
                for name in filter(owners.__contains__, _assigned(node)):
                    yield module.at(node.lineno, f"{name} is said already in {owners[name]}")


def _layout_names(house: House) -> Iterator[tuple[str, str]]:
    for module in house.within("interop", "kernels"):
        if module.path.stem.endswith("_layout"):
            for statement in module.tree.body:
                if isinstance(statement, ast.Assign):
                    yield from ((name, module.path.as_posix()) for name in _assigned(statement))


def _assigned(statement: ast.Assign) -> list[str]:
    names = (node for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name))
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


def packages_are_listed(house: House) -> Iterator[str]:
    tools = tomllib.loads((house.root / "pyproject.toml").read_text())["tool"]["setuptools"]
    there = {_package(module.path.parent) for module in house.within(*PACKAGES)}
    for name in sorted(there - set(tools["packages"])):
        yield f"pyproject.toml: {name} is not among the packages, so no wheel would have it"
    for name in sorted(set(tools["packages"]) - there):
        yield f"pyproject.toml: {name} is among the packages and does not exist"
    files = {module.path for module in house.within(*PACKAGES)}
    for folder in sorted({file.parent for file in files if file.parent / "__init__.py" not in files}):
        yield f"{folder.as_posix()}: has no __init__.py"


def _package(folder: Path) -> str:
    return ".".join((PACKAGES[folder.parts[0]], *folder.parts[1:]))


Rule = Callable[[House], Iterator[str]]
RULES: tuple[Rule, ...] = (
    imports_are_absolute,
    kernels_look_down,
    interop_looks_down,
    folders_look_down,
    command_line_is_left_alone,
    interop_uses_public_names,
    frameworks_are_lazy,
    rooms_keep_apart,
    names_shadow_nothing,
    names_say_something,
    modules_have_docstrings,
    every_test_is_run,
    constants_are_said_once,
    layouts_are_numbers,
    layouts_live_alone,
    packages_are_listed,
)
