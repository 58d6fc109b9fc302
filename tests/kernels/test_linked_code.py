"""Code that numba.cuda links with a kernel: CUDA C++ behind `cuda.declare_device`, and what its numbers of 16 bits call."""

import numpy as np
import pytest
from cuda import core
from cuda.pathfinder import DynamicLibNotFoundError
from numba import cuda
from numba.cuda.cudadrv import nvrtc

import numbridge as nb
from numbridge.kernels.kernel import kernel

X = np.ones(3, np.float32)
TWICE = 'extern "C" __device__ int {name}(float* result, float x) {{ *result = {factor} * x; return 0; }}'


def calling(function):
    """Return a kernel that calls a function of numbers."""

    @kernel
    def calls(x, y):
        i = nb.tid()
        y[i] = function(x[i])

    return calls


def declared(name, link):
    return calling(cuda.declare_device(name, "float32(float32)", link=link))


def cubin(made):
    return made.cubin(X, X, capability=(9, 0))


def test_cuda_source_is_compiled_and_linked():
    assert cubin(declared("twice", cuda.CUSource(TWICE.format(name="twice", factor=2))))


def test_what_is_linked_is_part_of_the_code(tmp_path):
    path = tmp_path / "scaled.cu"
    made = []
    for factor in (2, 3, 2):
        path.write_text(TWICE.format(name="scaled", factor=factor))
        made.append(cubin(declared("scaled", str(path))))
    assert made[0] == made[2] != made[1]


def test_numbers_of_16_bits_are_computed_with():
    def product(x, y):
        i = nb.tid()
        y[i] = cuda.fp16.hmul(x[i], 0.5)

    x = np.ones(3, np.float16)
    assert kernel(product).cubin(x, x, capability=(9, 0))


def test_functions_of_cuda_are_refused_on_the_cpu():
    made = declared("thrice", cuda.CUSource(TWICE.format(name="thrice", factor=3)))
    with pytest.raises(nb.KernelUnsupportedError, match=r"(?s)declare_device\('thrice'\) exists only on CUDA.*\^"):
        nb.launch(made, 3, [X, X.copy()])


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (cuda.CUSource("no C++"), r"(?s)calls CUDA C\+\+ that does not compile: .*error"),
        ("/nowhere/there_is.cu", r"declare_device\('wrong', link=\.\.\.\) names cannot be read: .*there_is"),
        (cuda.PTXSource("no PTX"), "does not link for sm_90"),
        (
            cuda.CUSource("", setup_callback=print),
            "has a callback for when it is loaded or unloaded; numbridge calls none",
        ),
    ],
)
def test_what_cannot_be_linked(link, message):
    made = declared("wrong", link)
    with pytest.raises(nb.KernelError, match=message):
        cubin(made)


@nb.kernel
def without_a_toolkit(x, y):
    i = nb.tid()
    y[i] = x[i] + 2.0


@pytest.mark.parametrize(
    ("module", "name", "library"), [(nvrtc, "get_arch_option", "nvrtc"), (core, "Linker", "nvJitLink")]
)
def test_a_toolkit_that_is_not_there_says_what_brings_it(module, name, library, monkeypatch):
    def missing(*_, **__):
        raise DynamicLibNotFoundError(f'Failure finding "lib{library}.so.13 or lib{library}.so.12": No such file')

    # Its types are of nothing else, so that it is not compiled yet.
    x = np.ones(3, np.float16 if module is nvrtc else np.complex64)
    monkeypatch.setattr(module, name, missing)
    with pytest.raises(nb.DeviceError, match=rf"'without_a_toolkit' is compiled for CUDA by lib{library}, .*cuda13"):
        without_a_toolkit.cubin(x, x, capability=(9, 0))


NOTHING = """
import sys
import numpy as np
from numba import cuda
import numbridge as nb

nothing = cuda.declare_device("nothing", "float32(float32)")


@nb.kernel
def calls(x, y):
    i = nb.tid()
    y[i] = nothing(x[i])


x = np.ones(3, np.float32)
try:
    calls.cubin(x, x, capability=(9, 0))
except nb.KernelError as error:
    print(error)
"""


def test_what_is_not_there_does_not_link(tmp_path, run_python, cache_without_kernels, monkeypatch):
    # In a process of its own: in one that had linked thousands of kernels, nvJitLink 13.5 let it pass once.
    monkeypatch.setenv("NUMBRIDGE_CACHE_DIR", cache_without_kernels)
    (tmp_path / "nothing.py").write_text(NOTHING)
    found = run_python(f"import runpy; runpy.run_path({str(tmp_path / 'nothing.py')!r})")
    assert "does not link for sm_90" in found and "Undefined reference to 'nothing'" in found
