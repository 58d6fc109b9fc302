"""Text is parsed in several threads at once, whatever CPython makes of that."""

from __future__ import annotations

import ast
import inspect
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from numbridge import kernels
from numbridge.kernels.language.parsing import parsed, parsed_expression

DISTURBED = "AST constructor recursion depth mismatch (before=18, after=8)"


class Hands:
    """Garbage that runs Python's code when it is collected, where another thread may go on."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        for _ in range(100):
            pass


def test_threads_that_parse_while_garbage_is_collected():
    text = inspect.getsource(ast)

    def parse(_):
        garbage = [Hands() for _ in range(50)]
        del garbage
        return len(parsed(text).body)

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(parse, range(120))) == {len(ast.parse(text).body)}


def test_what_was_disturbed_is_parsed_again(monkeypatch):
    errors, parse = [SystemError(DISTURBED)] * 3, ast.parse

    def disturbed(text, **options):
        if errors:
            raise errors.pop()
        return parse(text, **options)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert ast.unparse(parsed_expression("a + b")) == "a + b" and not errors
    errors.append(SystemError("something else"))
    with pytest.raises(SystemError, match="something else"):
        parsed("a = b")


def test_nothing_else_parses():
    files = Path(kernels.__file__).parent.rglob("*.py")
    assert [file.name for file in files if "ast.parse(" in file.read_text()] == ["parsing.py"]
