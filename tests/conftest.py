"""Every kernel that a test launches on the CPU is also compiled for CUDA, to cubins of four architectures; no GPU is needed."""

from __future__ import annotations

import pytest

from numbridge.kernels import variant
from numbridge.kernels.emission import emit
from numbridge.kernels.errors import KernelError
from numbridge.kernels.kernel import Kernel

ARCHITECTURES = ((7, 5), (8, 0), (9, 0), (10, 0))
# What only the CPU can: atomics on narrow integers, and NaN-aware ones on them.
ONLY_ON_THE_CPU = ("Unimplemented atomic", "works on arrays of 32- and 64-bit numbers")
_failed = pytest.StashKey[list[str]]()


def pytest_configure(config):
    config.stash[_failed] = failed = []
    on_the_cpu = variant._cpu_variant

    def on_both(kernel, emitted, parameters, weak):
        made = on_the_cpu(kernel, emitted, parameters, weak)
        for capability in ARCHITECTURES if type(kernel) is Kernel else ():
            try:
                text = emit(kernel.source, weak, "cuda")
                variant._cuda_code(kernel, text, parameters, capability, "masked")
            except KernelError as error:
                if not any(reason in str(error) for reason in ONLY_ON_THE_CPU):
                    failed.append(f"{kernel!r} for {', '.join(f'{p.name}: {p}' for p in parameters)}: {error}")
                break
        return made

    variant._cpu_variant = on_both


def pytest_sessionfinish(session, exitstatus):
    if session.config.stash[_failed] and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    for failure in config.stash[_failed]:
        terminalreporter.section("does not compile for CUDA", red=True)
        terminalreporter.line(failure)
