"""Tests that need a CUDA GPU; without one they are skipped, which is the only skip there is."""

from __future__ import annotations

import pytest

from numbridge.kernels import cuda_driver


def pytest_collection_modifyitems(items):
    missing = pytest.mark.skip(reason="no CUDA GPU that can be used")
    for item in items:
        if "tests/gpu/" in item.nodeid or item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.gpu)
            if not cuda_driver.driver_count():
                item.add_marker(missing)
