"""``print`` in kernels on the CPU: Python prints it, whatever thread it comes from."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import numbridge as nb

WORD = 'a "naïve" word'


@nb.func
def doubled(x):
    print("doubling", x)
    return x + x


@nb.kernel
def show_everything(x: nb.array[float], c: nb.array[nb.complex128], v: nb.array[nb.vec3], n):
    i = nb.tid()
    print(i, x[i], "and", n, True, 1.5, i > 0, c[i], WORD)
    print()
    print(v[i], doubled(x[i]))


def test_each_kind_of_value(capsys):
    c, v = np.array([2j, 1]), np.arange(6, dtype=np.float32).reshape(2, 3)
    nb.launch(show_everything, 2, [np.array([0.1, 3], np.float32), c, v, 7])
    assert capsys.readouterr().out.splitlines() == [
        f"0 0.1 and 7 True 1.5 False 2j {WORD}",
        "",
        "doubling 0.1",
        "vec3(0.0, 1.0, 2.0) 0.2",
        f"1 3.0 and 7 True 1.5 True (1+0j) {WORD}",
        "",
        "doubling 3.0",
        "vec3(3.0, 4.0, 5.0) 6.0",
    ]


@nb.kernel
def show_choices(x):
    i = nb.tid()
    print("at", i, x[i] if x[i] > 0 else 0.0, x[i] > 0 and x[i] < 3, i or 7, max(x[i], 1.0 if i else 2.0))


def test_values_that_conditions_choose(capsys):
    nb.launch(show_choices, 2, [np.array([-1.5, 2.5])])
    assert capsys.readouterr().out.splitlines() == ["at 0 0.0 False 7 2.0", "at 1 2.5 True 1 2.5"]


@nb.kernel
def show(x):
    i = nb.tid()
    if i % 1000 == 0:
        print(x[i], i)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.uint64(2**64 - 1), "18446744073709551615"),
        (np.int8(-5), "-5"),
        (ml_dtypes.bfloat16(0.5), "0.5"),
        (np.float64(0.1), "0.1"),
        (np.complex64(0.1 + 1j), "(0.1+1j)"),
        (np.bool_(True), "True"),
    ],
)
def test_numbers_are_printed_as_python_prints_them(value, text, capsys):
    nb.launch(show, 1, [np.full(1, value)])
    assert capsys.readouterr().out == f"{text} 0\n"


def test_threads_print_whole_lines(capsys):
    nb.launch(show, 200_000, [np.zeros(200_000, np.int32)])
    printed = capsys.readouterr().out.splitlines()
    assert sorted(printed, key=lambda line: int(line.split()[1])) == [f"0 {i}" for i in range(0, 200_000, 1000)]


class Closed:
    def write(self, text):
        raise OSError("the file is closed")


def test_an_error_of_the_output_is_reported_and_the_kernel_goes_on(monkeypatch):
    x, seen = np.zeros(1), []
    monkeypatch.setattr("sys.unraisablehook", lambda found: seen.append(found.exc_value))
    monkeypatch.setattr("sys.stdout", Closed())
    nb.launch(show_and_store, 1, [x])
    assert x[0] == 1
    assert [str(error) for error in seen] == ["the file is closed"]


@nb.kernel
def show_and_store(x):
    i = nb.tid()
    print(i)
    x[i] = 1


@nb.kernel
def show_an_array(x):
    i = nb.tid()
    print(i, x)


@nb.kernel
def show_without_a_line(x):
    i = nb.tid()
    print(x[i], end="")


def test_what_cannot_be_printed_is_refused():
    with pytest.raises(nb.KernelError, match=r"print takes numbers, vectors, .* and this is an array of float64\n"):
        nb.launch(show_an_array, 1, [np.zeros(1)])
    with pytest.raises(nb.KernelError, match=r"takes no keywords; each call prints one line\n.*test_printing.py:\d+:5"):
        nb.launch(show_without_a_line, 1, [np.zeros(1)])


@nb.kernel
def square(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    print("squaring", x[i])
    y[i] = x[i] * x[i]


def test_the_gradient_of_a_printing_kernel_prints_nothing(capsys):
    x, by_x = np.full(1, 3, np.float32), np.zeros(1, np.float32)
    y, by_y = np.zeros(1, np.float32), np.ones(1, np.float32)
    nb.launch(square, 1, [x], [y], adj_inputs=[by_x], adj_outputs=[by_y], adjoint=True)
    assert by_x[0] == 6
    assert capsys.readouterr().out == ""


def test_a_printing_kernel_comes_from_the_cache_without_numba(run_python, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport numpy as np\nimport numbridge as nb\n"
        "@nb.kernel\ndef show(x):\n    i = nb.tid()\n    print('x is', x[i])\n"
        "nb.launch(show, 1, [np.ones(1)])\n"
        "print('numba' in sys.modules)\n"
    )
    start = f"import runpy; runpy.run_path({str(script)!r})"
    run_python(start)
    assert run_python(start).splitlines() == ["x is 1.0", "False"]


def test_an_element_is_the_same_in_another_process_that_has_other_types(run_python, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\nimport numbridge as nb\n"
        "vec9 = nb.vector(9, nb.float32)\n"
        "@nb.kernel\ndef show(x: nb.array[vec9]):\n    i = nb.tid()\n    print('x is', x[i])\n"
        "nb.launch(show, 1, [np.ones((1, 9), np.float32)])\n"
    )
    start = f"import runpy; runpy.run_path({str(script)!r})"
    with_others = f"import numbridge as nb; nb.vector(7, nb.float32), nb.matrix((2, 7), nb.float32); {start}"
    assert run_python(start) == run_python(with_others) == f"x is vec9({', '.join(['1.0'] * 9)})\n"
