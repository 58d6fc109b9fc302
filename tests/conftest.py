"""Every kernel that a test launches on the CPU is also compiled for CUDA, to cubins of four architectures; no GPU is needed."""

from __future__ import annotations

from numbridge.kernels import variant
from numbridge.kernels.emission import emit
from numbridge.kernels.errors import KernelError
from numbridge.kernels.kernel import Kernel

ARCHITECTURES = ((7, 5), (8, 0), (9, 0), (10, 0))
# What only the CPU can: atomics on narrow integers, and NaN-aware ones on them; fields of records that are not aligned.
ONLY_ON_THE_CPU = ("Unimplemented atomic", "works on arrays of 32- and 64-bit numbers", "is not aligned")


def pytest_configure():
    on_the_cpu = variant._cpu_variant

    def on_both(kernel, emitted, parameters, weak):
        made = on_the_cpu(kernel, emitted, parameters, weak)
        for capability in ARCHITECTURES if type(kernel) is Kernel else ():
            try:
                text = emit(kernel.source, weak, "cuda")
                variant._cuda_code(kernel, text, parameters, capability, "masked")
            except KernelError as error:
                if not any(reason in str(error) for reason in ONLY_ON_THE_CPU):
                    # No error of numbridge's, which a test might expect.
                    raise AssertionError(f"{kernel!r}, which runs on the CPU, does not compile for CUDA") from error
                break
        return made

    variant._cpu_variant = on_both
