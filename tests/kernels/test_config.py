"""The settings of the process: defaults of kernels, and the folder of compiled code."""

from __future__ import annotations

import stat

import numpy as np
import pytest

import numbridge as nb
from numbridge.kernels import object_cache
from numbridge.kernels.config import Config


def triple(x):
    i = nb.tid()
    x[i] = 3.0 * x[i]


@pytest.fixture(autouse=True)
def as_before():
    yield
    nb.config.kernel_cache_dir = None
    nb.config.fastmath, nb.config.enable_backward = False, True
    nb.config.check_bounds = False


def test_defaults_count_for_kernels_declared_afterwards():
    before = nb.kernel(triple)
    nb.config.enable_backward, nb.config.fastmath = False, True
    after, said = nb.kernel(triple), nb.kernel(enable_backward=True, fastmath=False)(triple)
    assert [k.options["fastmath"] for k in (before, after, said)] == [False, True, False]
    before.adjoint(["x"])
    said.adjoint(["x"])
    with pytest.raises(nb.KernelError, match="enable_backward=False"):
        after.adjoint(["x"])


def test_compiled_code_goes_to_the_folder_that_is_set(tmp_path):
    usual = object_cache.cache_folder()
    folder = tmp_path / "codes"
    nb.config.kernel_cache_dir = folder
    assert nb.config.kernel_cache_dir == str(folder) and stat.S_IMODE(folder.stat().st_mode) == 0o700
    x = np.ones(3)
    nb.launch(nb.kernel(triple), 3, [x])
    assert (x == 3).all()
    assert {path.suffix for path in folder.iterdir()} >= {".o", ".py"}
    nb.config.kernel_cache_dir = None
    assert object_cache.cache_folder() == usual


def test_wrong_settings_are_refused_and_change_nothing(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    before = repr(nb.config)
    with pytest.raises(nb.NumbridgeError, match=r"writable by nobody else.*config\.kernel_cache_dir"):
        nb.config.kernel_cache_dir = shared
    with pytest.raises(nb.NumbridgeTypeError, match="kernel_cache_dir: wanted a path"):
        nb.config.kernel_cache_dir = 3
    with pytest.raises(nb.NumbridgeTypeError, match="fastmath: wanted True or False, got 1"):
        nb.config.fastmath = 1
    with pytest.raises(nb.NumbridgeTypeError, match="kernel_cache_dir: wanted a path or None, got ''"):
        nb.config.kernel_cache_dir = ""
    with pytest.raises(nb.NumbridgeTypeError, match="simd: a setting cannot be deleted; set it to another value"):
        del nb.config.simd
    with pytest.raises(AttributeError, match="fast_math"):
        nb.config.fast_math = True
    assert repr(nb.config) == before
    assert "enable_backward=True" in before


@pytest.mark.parametrize(("text", "wanted"), [("", False), ("0", False), ("False", False), ("1", True), ("on", True)])
def test_variables_of_the_environment(monkeypatch, text, wanted):
    monkeypatch.setenv("NUMBRIDGE_CHECK_RACES", text)
    assert Config().check_races is wanted


def test_variables_that_say_neither_are_refused(monkeypatch):
    monkeypatch.setenv("NUMBRIDGE_CHECK_BOUNDS", "maybe")
    with pytest.raises(nb.NumbridgeValueError, match="NUMBRIDGE_CHECK_BOUNDS: wanted 1 or 0, got 'maybe'"):
        Config()
