"""What Numba finds once while code is compiled is what it finds each time."""

from __future__ import annotations

import operator

import pytest
from numba import njit, types
from numba.core import targetconfig
from numba.core.compiler import Flags
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.extending import overload

from numbridge.kernels.compilation.resolved_calls import resolved_once

CONTEXT = cpu_target.typing_context


def resolve(function, *kinds):
    return CONTEXT.resolve_function_type(function, kinds, {})


def test_an_operation_is_looked_for_once(monkeypatch):
    asked = []
    original = types.Function.get_call_type

    def watched(self, context, arguments, named):
        asked.append(arguments)
        return original(self, context, arguments, named)

    CONTEXT.refresh()
    monkeypatch.setattr(types.Function, "get_call_type", watched)
    with resolved_once(CONTEXT), resolved_once(CONTEXT):
        found = [resolve(operator.add, types.int32, types.float32) for _ in range(3)]
        assert resolve(operator.add, types.int32, types.int64).return_type == types.int64
        for _ in range(2):
            with pytest.raises(TypingError):
                resolve(operator.add, types.int32, types.none)
    assert found == [resolve(operator.add, types.int32, types.float32)] * 3
    assert asked.count((types.int32, types.float32)) == 2  # within, and behind
    assert "resolve_function_type" not in vars(CONTEXT)


def of_options(x):
    raise NotImplementedError


@overload(of_options)
def _of_options(x):
    return lambda x: x + 1


def test_what_an_operation_does_is_compiled_with_the_options_of_who_asks():
    CONTEXT.refresh()
    options = [Flags(), Flags()]
    options[1].error_model = "numpy"
    found = []
    with resolved_once(CONTEXT):
        for chosen in (*options, *options):
            with targetconfig.ConfigStack().enter(chosen):
                signature = resolve(of_options, types.int64)
                found.append(CONTEXT.resolve_value_type(of_options).get_impl_key(signature))
    assert found[:2] == found[2:] and found[0] is not found[1]


def test_functions_of_others_compile_as_ever():
    @njit
    def power(x, n):
        return 1 if n == 0 else x * power(x, n - 1)

    with resolved_once(CONTEXT):
        assert power(3, 4) == 81
