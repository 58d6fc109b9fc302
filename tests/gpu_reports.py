"""What tests came to on a GPU, written down at once, also where one hangs or breaks the GPU's context; a plugin of pytest.

A test that hangs, or after which the GPU's context answers nothing but errors, ends its process: of pytest-xdist's workers
another one takes its place (see gpu/run.sh), so that it costs its own result and no other's. What each test came to is written
as lines of JSON to the file that NUMBRIDGE_GPU_RESULTS names.
"""

from __future__ import annotations

import collections
import faulthandler
import json
import os

import pytest

from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.errors import DeviceError

SECONDS = float(os.environ.get("NUMBRIDGE_GPU_TEST_SECONDS", "60"))
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
BROKEN = 70
# Where messages go that must not be captured with a test's output
STDERR = pytest.StashKey[int]()


def pytest_configure(config):
    config.stash[STDERR] = os.dup(2)


def is_broken() -> bool:
    """Tell whether the device answers nothing but errors in this process from now on."""
    try:
        cuda_driver.driver().synchronize(0)
    except DeviceError:
        return True
    return False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """End a worker whose test hangs, or breaks the context; what the test came to has been said by then."""
    if not (WORKER and cuda_driver.driver_count()):
        return (yield)
    failed = item.session.testsfailed
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=item.config.stash[STDERR])
    try:
        done = yield
    finally:
        faulthandler.cancel_dump_traceback_later()
    if item.session.testsfailed > failed and is_broken():
        os.write(item.config.stash[STDERR], f"{item.nodeid} broke the CUDA context; {WORKER} ends\n".encode())
        os._exit(BROKEN)
    return done


def _write(**line):
    path = os.environ.get("NUMBRIDGE_GPU_RESULTS")
    if path:
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_collection_finish(session):
    if WORKER in (None, "gw0") and session.items:
        _write(collected=collections.Counter(item.nodeid.partition("::")[0] for item in session.items))


def pytest_runtest_logreport(report):
    # Workers tell the process that started them, which also reports those that end.
    if WORKER is None and (report.when == "call" or report.outcome != "passed"):
        crash = getattr(report.longrepr, "reprcrash", None)
        said = "" if report.outcome == "passed" else getattr(crash, "message", report.longreprtext)[:500]
        _write(test=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 2), said=said)
