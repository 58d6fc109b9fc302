"""Functions of `torch.compile` that call numbridge outside operators, in processes where nothing of it has run before."""

from __future__ import annotations

PROGRAM = """
import sys
import warnings

warnings.simplefilter("ignore")  # torch's, that it cannot trace a built-in function
import numbridge as nb
import torch


@nb.kernel
def square(x: nb.array1d[float], y: nb.array1d[float]):
    i = nb.tid()
    y[i] = x[i] * x[i]


def launches(x):
    y = torch.zeros(5)
    nb.launch(square, x.shape, [x], [y], device="cpu")
    return y + 1


def brackets(x):
    y = torch.zeros(5)
    square[1, 5](x * 1, y)
    return y + 1


def arrays(x):
    y = nb.zeros(5)
    square.forall(5)(nb.from_torch(x * 1), y)
    return nb.to_torch(y) + 1


def tapes(x):
    w, y = nb.from_torch(x * 1, requires_grad=True), nb.zeros(5, requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(square, 5, [w], [y])
    tape.backward(grads={y: nb.ones(5)})
    return nb.to_torch(w.grad) + 4


def operators(x):
    return op(x) + 1


op = nb.torch_op(square, outputs="y", name="tracing::square")
x = torch.full((5,), 3.0)
for function in (launches, brackets, arrays, tapes, operators):
    compiled = torch.compile(function, backend="aot_eager", fullgraph=function is operators)
    for _ in range(2):
        print(function.__name__, compiled(x)[0].item())
rules = sys.modules["torch._dynamo.trace_rules"]
print(rules.__spec__.loader is rules.__loader__, rules.__spec__.name, any("Finder" == type(f).__name__ for f in sys.meta_path))
"""


def test_the_first_calls_may_be_those_of_compiled_functions(run_python, tmp_path, monkeypatch):
    # As on a new machine: everything is compiled within these calls.
    monkeypatch.setenv("NUMBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    told = run_python(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')")
    names = ("launches", "brackets", "arrays", "tapes", "operators")
    assert told.splitlines() == [
        *(f"{name} 10.0" for name in names for _ in range(2)),
        "True torch._dynamo.trace_rules False",
    ]


def test_dynamo_may_have_been_loaded_before(run_python):
    told = run_python("""
        import torch._dynamo.trace_rules as rules
        before = list(rules.SKIP_DIRS)
        import numbridge
        added = [folder for folder in rules.SKIP_DIRS if folder not in before]
        print(*(folder.rstrip("/").rpartition("/")[2] for folder in added))
        print(rules.check_file(numbridge.kernels.launch.__file__).skipped)
    """)
    assert told == "kernels numba numba_cuda llvmlite\nTrue\n"
