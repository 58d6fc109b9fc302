"""The house rules hold here, each rule finds what breaks it, and importing numbridge imports no framework."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from house import (
    FRAMEWORKS,
    PEERS,
    RULES,
    House,
    Rule,
    command_line_is_left_alone,
    constants_are_said_once,
    every_test_is_run,
    folders_look_down,
    frameworks_are_lazy,
    imports_are_absolute,
    interop_looks_down,
    interop_uses_public_names,
    kernels_look_down,
    layouts_are_numbers,
    layouts_live_alone,
    modules_have_docstrings,
    names_say_something,
    names_shadow_nothing,
    packages_are_listed,
    rooms_keep_apart,
)

ROOT = Path(__file__).parents[1]
# Read once for all rules.
HERE = House(ROOT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_house_follows(rule: Rule) -> None:
    assert list(rule(HERE)) == []


def test_house_is_read_whole() -> None:
    modules = {module.path.as_posix() for module in HERE.modules}
    assert {"interop/__init__.py", "kernels/__init__.py", "tests/test_house.py"} <= modules


GOOD = {
    "pyproject.toml": """
        [tool.setuptools]
        packages = ["numbridge", "numbridge.bridges", "numbridge.command_line", "numbridge.kernels", "numbridge.storage"]
        """,
    "kernels/__init__.py": '"""The core."""',
    "kernels/x_layout.py": '''
        """Numbers."""
        from __future__ import annotations
        import ctypes

        DATA, SIZE = 0, 1 << 3
        END = DATA - SIZE

        class Pair(ctypes.Structure):
            _fields_ = [("first", ctypes.c_int64), ("second", ctypes.c_int64)]
        ''',
    "kernels/launch.py": '''
        """Launch."""
        import numba.cuda
        from numbridge.kernels import x_layout
        from numbridge.kernels.x_layout import SIZE

        _private = x_layout.DATA + SIZE
        ''',
    "interop/__init__.py": '''
        """The face."""
        from numbridge.bridges import torch_bridge
        from numbridge.kernels import launch
        ''',
    "interop/bridges/__init__.py": '"""The rooms."""',
    "interop/bridges/bridge.py": '"""The interface."""',
    "interop/bridges/torch_bridge.py": '''
        """PyTorch."""
        from typing import TYPE_CHECKING
        from numbridge.bridges import bridge
        from numbridge.kernels import launch

        if TYPE_CHECKING:
            import torch

        name = launch.__name__

        def to_torch() -> torch.Tensor:
            import torch
            return torch.empty(0)
        ''',
    "interop/storage/__init__.py": '"""Memory."""',
    "interop/storage/memory.py": '''
        """Memory, which asks the interface."""
        from typing import TYPE_CHECKING
        from numbridge.bridges import bridge

        if TYPE_CHECKING:
            from numbridge.bridges.torch_bridge import to_torch

        def share(tensor: object) -> to_torch:
            return bridge.share(tensor)
        ''',
    "interop/command_line/__init__.py": '"""The room."""',
    "interop/command_line/app.py": '''
        """The command line."""
        import rich

        def compare() -> None:
            import torch
            import warp
        ''',
    "tests/test_ok.py": '''
        """Tests may import anything, and use a name once in each scope."""
        import torch
        from numbridge.kernels.launch import _private

        def test_one(): ...

        class TestTwo:
            def test_one(self): ...
        ''',
}

DOC = '"""Something."""\n'
# Rule, file, its text, and what the rule must say of it.
BAD: tuple[tuple[Rule, str, str, str], ...] = (
    (imports_are_absolute, "interop/a.py", f"{DOC}from . import bridge\n", "interop/a.py:2: a relative import"),
    (imports_are_absolute, "tests/a.py", f"{DOC}def f():\n    from .b import c\n", "tests/a.py:3: a relative import"),
    (kernels_look_down, "kernels/a.py", f"{DOC}def f():\n    import torch\n", "a.py:3: kernels may not import torch"),
    (kernels_look_down, "kernels/a.py", f"{DOC}import scipy.special\n", "kernels may not import scipy.special"),
    (kernels_look_down, "kernels/a.py", f"{DOC}import numbridge\n", "look up to numbridge"),
    (
        kernels_look_down,
        "kernels/a.py",
        f"{DOC}from numbridge.bridges import bridge\n",
        "look up to numbridge.bridges.bridge",
    ),
    (
        kernels_look_down,
        "kernels/a.py",
        f"{DOC}from numbridge.arrays.array import Array\n",
        "to numbridge.arrays.array.Array",
    ),
    (kernels_look_down, "kernels/a.py", f"{DOC}m = importlib.import_module('jax')\n", "kernels may not import jax"),
    (kernels_look_down, "kernels/sub/a.py", f"{DOC}m = __import__('paddle')\n", "kernels may not import paddle"),
    (interop_looks_down, "interop/a.py", f"{DOC}from tests import frameworks\n", "may not import tests.frameworks"),
    (interop_looks_down, "interop/a.py", f"{DOC}def f():\n    import warp\n", "a.py:3: interop may not import warp"),
    (interop_looks_down, "interop/a.py", f"{DOC}import rich\n", "a.py:2: interop may not import rich"),
    (
        folders_look_down,
        "interop/storage/a.py",
        f"{DOC}def f():\n    from numbridge.bridges import torch_bridge\n",
        "interop/storage/a.py:3: storage may not look up to numbridge.bridges.torch_bridge",
    ),
    (
        folders_look_down,
        "interop/bridges/a.py",
        f"{DOC}from numbridge.tape.tape import Tape\n",
        "interop/bridges/a.py:2: bridges may not look up to numbridge.tape.tape.Tape",
    ),
    (folders_look_down, "interop/attic/a.py", DOC, "does not say what interop/attic/ may import"),
    (
        command_line_is_left_alone,
        "interop/a.py",
        f"{DOC}def f():\n    from numbridge.command_line import app\n",
        "a.py:3: only __main__ imports the command line",
    ),
    (
        interop_uses_public_names,
        "interop/a.py",
        f"{DOC}from numbridge.kernels.launch import _private\n",
        "numbridge.kernels.launch._private is private to kernels",
    ),
    (
        interop_uses_public_names,
        "interop/a.py",
        f"{DOC}from numbridge.kernels import launch as go\n\ndef f():\n    return go._private\n",
        "a.py:5: go._private is private to kernels",
    ),
    (
        interop_uses_public_names,
        "interop/a.py",
        f"{DOC}import numbridge.kernels.launch\nx = numbridge.kernels.launch._private\n",
        "a.py:3: numbridge.kernels.launch._private is private",
    ),
    (
        frameworks_are_lazy,
        "interop/bridges/torch_bridge.py",
        f"{DOC}import torch\n",
        "torch is imported with the module",
    ),
    (
        frameworks_are_lazy,
        "interop/bridges/jax_bridge.py",
        f"{DOC}from jaxlib import xla\n",
        "jaxlib.xla is imported with",
    ),
    (frameworks_are_lazy, "interop/a.py", f"{DOC}class A:\n    import cupy\n", "a.py:3: cupy is imported with"),
    (
        frameworks_are_lazy,
        "kernels/a.py",
        f"{DOC}try:\n    import paddle.base\nexcept ImportError: ...\n",
        "a.py:3: paddle",
    ),
    (frameworks_are_lazy, "interop/a.py", f"{DOC}if TYPE_CHECKING: ...\nelse:\n    import jax\n", "a.py:4: jax is imp"),
    (
        rooms_keep_apart,
        "interop/bridges/torch_bridge.py",
        f"{DOC}def f():\n    import jax\n",
        "jax belongs to the room of jax",
    ),
    (
        rooms_keep_apart,
        "interop/arrays/array.py",
        f"{DOC}def f():\n    import torch\n",
        "torch belongs to the room of torch",
    ),
    (
        rooms_keep_apart,
        "interop/operators/torch_op.py",
        f"{DOC}from numbridge.bridges.numpy_bridge import from_numpy\n",
        "the room of torch may not import numbridge.bridges.numpy_bridge.from_numpy",
    ),
    (
        rooms_keep_apart,
        "interop/jax/handler.py",
        f"{DOC}def f():\n    from numbridge.bridges import torch_bridge\n",
        "handler.py:3: the room of jax may not import numbridge.bridges.torch_bridge",
    ),
    (names_shadow_nothing, "interop/torch.py", DOC, "interop/torch.py:1: shadows torch"),
    (names_shadow_nothing, "examples/jax.py", DOC, "examples/jax.py:1: shadows jax"),
    (names_say_something, "kernels/utils.py", DOC, "kernels/utils.py:1: a grab-bag"),
    (modules_have_docstrings, "interop/bridges/bridge.py", "", "interop/bridges/bridge.py:1: no docstring"),
    (modules_have_docstrings, "tests/a.py", "import sys\n'late'\n", "tests/a.py:1: no docstring"),
    (
        every_test_is_run,
        "tests/test_ok.py",
        "def test_a(): ...\ndef test_b(): ...\ndef test_a(): ...\n",
        "test_a is defined 2 times",
    ),
    (
        every_test_is_run,
        "tests/test_ok.py",
        "class TestA:\n    def test_a(self): ...\n    async def test_a(self): ...\n",
        "test_a is defined 2 times",
    ),
    (layouts_are_numbers, "kernels/x_layout.py", f"{DOC}import struct\n", "x_layout.py:2: a layout holds numbers"),
    (
        layouts_are_numbers,
        "kernels/x_layout.py",
        f"{DOC}A = 1\nB = len('x')\n",
        "x_layout.py:3: a layout",
    ),
    (layouts_are_numbers, "interop/x_layout.py", f"{DOC}def f(): ...\n", "x_layout.py:2: a layout holds numbers"),
    (
        layouts_are_numbers,
        "interop/x_layout.py",
        f"{DOC}class A(ctypes.Structure):\n    def f(self): ...\n",
        "x_layout.py:2: a layout",
    ),
    (
        constants_are_said_once,
        "kernels/a_layout.py",
        f"{DOC}A, SIZE = 0, 8\nB, SIZE = 0, 16\n",
        "a_layout.py:3: SIZE is something",
    ),
    (layouts_live_alone, "interop/a.py", f"{DOC}class A(ctypes.Structure): ...\n", "a.py:2: A is a binary layout"),
    (layouts_live_alone, "kernels/a.py", f"{DOC}DATA, B = 8, 16\n", "DATA is said already in kernels/x_layout.py"),
    (packages_are_listed, "kernels/adjoint/__init__.py", DOC, "numbridge.kernels.adjoint is not among the packages"),
    (packages_are_listed, "interop/jax/primitive.py", DOC, "interop/jax: has no __init__.py"),
    (
        packages_are_listed,
        "pyproject.toml",
        '[tool.setuptools]\npackages = ["numbridge", "numbridge.kernels", "numbridge.gone"]\n',
        "numbridge.gone is among the packages and does not exist",
    ),
)


def build_house(root: Path, files: dict[str, str]) -> House:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(textwrap.dedent(text).lstrip())
    return House(root)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_accepts_a_good_house(rule: Rule, tmp_path: Path) -> None:
    assert list(rule(build_house(tmp_path, GOOD))) == []


@pytest.mark.parametrize(
    ("rule", "file", "text", "complaint"), BAD, ids=[f"{rule.__name__}-{file}" for rule, file, *_ in BAD]
)
def test_rule_finds_what_is_wrong(rule: Rule, file: str, text: str, complaint: str, tmp_path: Path) -> None:
    found = list(rule(build_house(tmp_path, GOOD | {file: text})))
    assert any(complaint in line for line in found), found


def test_every_rule_has_a_bad_sample() -> None:
    assert {rule.__name__ for rule, *_ in BAD} == {rule.__name__ for rule in RULES}


def frameworks_imported_by(statement: str, folder: Path) -> set[str]:
    """Return the frameworks and peers that a new interpreter, started in `folder`, has imported after `statement`."""
    watched = {*FRAMEWORKS, *PEERS}
    code = f"import sys\n{statement}\nprint(*{watched!r}.intersection(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_numbridge_imports_no_framework(tmp_path: Path) -> None:
    assert frameworks_imported_by("import numbridge, numbridge.kernels", tmp_path) == set()


def test_an_imported_framework_is_seen(tmp_path: Path) -> None:
    (tmp_path / "paddle.py").touch()
    (tmp_path / "face.py").write_text("def load():\n    import paddle\n\nload()\n")
    assert frameworks_imported_by("import face", tmp_path) == {"paddle"}
