"""`nb.init`: what otherwise happens with the first array or launch."""

from __future__ import annotations

from collections.abc import Callable


def test_it_starts_what_launches_need_and_no_framework(run_python: Callable[..., str]) -> None:
    found = run_python(
        "import sys\n"
        "import numbridge as nb\n"
        "from numbridge.kernels import machine\nfrom numbridge.kernels.cpu_backend import threads\n"
        "print(threads.layer(), machine.machine.cache_info().currsize)\n"
        "print(nb.init())\n"
        "print(threads.layer() != 'not started', machine.machine.cache_info().currsize)\n"
        "print(nb.init(), {'torch', 'jax', 'paddle', 'cupy'} & set(sys.modules))\n"
    )
    assert found.splitlines() == ["not started 0", "None", "True 1", "None set()"]


def test_what_exchanges_memory_is_loaded_when_it_is_first_asked_for(run_python: Callable[..., str]) -> None:
    found = run_python(
        "import numpy as np\n"
        "import numbridge as nb\n"
        "from numbridge.kernels import machine\n"
        "nb.init()\n"
        "made = nb.array(np.arange(4.0))\n"
        "loaded = lambda: machine._load_exchange.cache_info().currsize\n"
        "print(loaded(), np.from_dlpack(made), loaded())\n"
        "at = machine.machine()\n"
        "print(at.consume is at.consume, at.exporter(0, 0) is not None, loaded())\n"
    )
    assert found.splitlines() == ["0 [0. 1. 2. 3.] 1", "True True 1"]
