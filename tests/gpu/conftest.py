"""Tests that need a CUDA GPU; without one they are skipped, which is the only skip there is."""

from __future__ import annotations

import pytest

from gpu_reports import (  # noqa: F401
    pytest_collection_finish,
    pytest_configure,
    pytest_runtest_logreport,
    pytest_runtest_protocol,
)
from numbridge.kernels.cuda_backend import cuda_driver


def pytest_collection_modifyitems(items):
    missing = pytest.mark.skip(reason="no CUDA GPU that can be used")
    for item in items:
        if "tests/gpu/" in item.nodeid or item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.gpu)
            if not cuda_driver.driver_count():
                item.add_marker(missing)


@pytest.fixture(autouse=True)
def errors_of_the_device_are_this_test_s():
    """Wait for the device, which else would report what a kernel did wrong to whoever asks next."""
    yield
    if cuda_driver.driver_count():
        cuda_driver.driver().synchronize(0)
