"""The sessions that build, check and measure numbridge; they are the contributing guide.

``nox -s tests`` is what must pass. The sessions that run code share one environment, because filling it takes minutes.
"""

from __future__ import annotations

from pathlib import Path

import nox

nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["tests"]

CONSTRAINTS = ("-c", "tests/constraints.txt")


def run_in_environment(session: nox.Session, program: str, *arguments: str) -> None:
    """Run a program of the environment that the session `environment` has filled."""
    programs = Path(session.cache_dir).parent / "environment" / "bin"
    session.run(str(programs / program), *arguments, external=True)


def run_tests(session: nox.Session) -> None:
    """Run every test on two processes, or what follows ``--``."""
    # What a process has compiled it keeps: by the end of all tests each would have some 10 GB, and slow the machine down.
    # Among the paths of pyproject.toml, which are what runs if none is given, what is to be ignored would be named.
    parts = [session.posargs] if session.posargs else [["--ignore", "tests/kernels", "tests"], ["tests/kernels"]]
    for part in parts:
        run_in_environment(session, "pytest", "-n", "2", "--dist", "loadfile", *part)


def run_random_tests(session: nox.Session, variable: str, count: int, *arguments: str) -> None:
    """Run tests that read from an environment variable how many random programs to try: as many as follow ``--``, or `count`."""
    session.env[variable] = session.posargs[0] if session.posargs else str(count)
    run_in_environment(session, "pytest", *arguments)


@nox.session(default=False)
def environment(session: nox.Session) -> None:
    """Install numbridge as it is here, with every framework and peer, at the versions that are tested."""
    # Alone and first: a machine that offers a CPU build keeps it when the rest is resolved, and fetches no CUDA for it.
    session.install("torch==2.13.0")
    session.install("-e", ".[all,cuda13,dev]", *CONSTRAINTS)


@nox.session(default=False)
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff; changes nothing."""
    session.install("ruff", *CONSTRAINTS)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(default=False)
def types(session: nox.Session) -> None:
    """Check both packages with mypy --strict."""
    session.install("mypy", "numpy", "ml_dtypes", "rich", "typer", *CONSTRAINTS)
    # mypy does not follow the import hook of an ordinary editable install; the strict kind is a folder of links, which
    # holds the files that there are now. So it is made anew each time, even where `nox -R` skips the installs.
    strict = ("--config-settings", "editable_mode=strict")
    session.run("pip", "install", "--no-deps", *strict, "-e", ".", silent=True)
    session.run("mypy", "--strict", "-p", "numbridge")


@nox.session(venv_backend="none", requires=["lint", "types", "environment"])
def tests(session: nox.Session) -> None:
    """Run lint, types and then every test, on two processes; arguments after ``--`` go to pytest."""
    run_tests(session)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def thorough(session: nox.Session) -> None:
    """Run the tests with every case, and compile each kernel that they launch for four architectures, not for one of these."""
    session.env["NUMBRIDGE_THOROUGH"] = "1"
    run_tests(session)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def adjoint_fuzz(session: nox.Session) -> None:
    """Check the adjoints of 10,000 random kernels against differences; another number may follow ``--``."""
    run_random_tests(session, "NUMBRIDGE_ADJOINT_PROGRAMS", 10_000, "tests/kernels/adjoint", "-k", "random_programs")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def compiled_adjoint_fuzz(session: nox.Session) -> None:
    """Compile the adjoints of 1,000 random kernels, and compare; ``-- 500,1000`` takes 500 from the 1000th on."""
    run_random_tests(session, "NUMBRIDGE_COMPILED_ADJOINTS", 1000, "tests/kernels/adjoint/test_compiled_programs.py")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def block_gradient_fuzz(session: nox.Session) -> None:
    """Check the derivatives of 500 random kernels of blocks against differences and for races; or of as many as follow."""
    tests = ("tests/kernels/adjoint/test_block_gradients.py", "-k", "random_programs")
    run_random_tests(session, "NUMBRIDGE_BLOCK_GRADIENTS", 500, *tests)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def function_gradient_fuzz(session: nox.Session) -> None:
    """Check the gradients within kernels of 1,000 random functions; another number may follow ``--``."""
    tests = ("tests/kernels/adjoint/test_function_gradients.py", "-k", "random_functions")
    run_random_tests(session, "NUMBRIDGE_FUNCTION_GRADIENTS", 1000, *tests)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def forward_fuzz(session: nox.Session) -> None:
    """Compare what 1,000 random kernels leave with what their text does; ``-- 500,1000`` takes 500 from the 1000th on."""
    run_random_tests(session, "NUMBRIDGE_FORWARD_PROGRAMS", 1000, "tests/kernels/test_random_forward.py")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def tape_fuzz(session: nox.Session) -> None:
    """Check the gradients of 10,000 random programs on a tape against differences; another number may follow ``--``."""
    run_random_tests(session, "NUMBRIDGE_TAPE_PROGRAMS", 10_000, "tests/interop/tape/test_random_tapes.py")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def conversion_fuzz(session: nox.Session) -> None:
    """Hand arrays from framework to framework in 20,000 random programs; another number may follow ``--``."""
    run_random_tests(
        session, "NUMBRIDGE_CONVERSION_PROGRAMS", 20_000, "tests/interop/bridges/test_random_conversions.py"
    )


@nox.session(venv_backend="none", requires=["environment"], default=False)
def launch_fuzz(session: nox.Session) -> None:
    """Launch on arrays of every framework in 3,000 random programs, alone and in threads; another number may follow ``--``."""
    run_random_tests(session, "NUMBRIDGE_LAUNCH_PROGRAMS", 3000, "tests/interop/test_random_launches.py")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def jax_fuzz(session: nox.Session) -> None:
    """Check 2,000 random programs of JAX that call kernels against twins, on four devices; another number may follow ``--``."""
    # Most of the time is XLA's, for its compiler.
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    session.env["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=4 {quick}"
    run_random_tests(session, "NUMBRIDGE_JAX_PROGRAMS", 2000, "tests/interop/jax_ffi/test_random_jax.py")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def torch_fuzz(session: nox.Session) -> None:
    """Check 3,000 random programs of PyTorch with operators, and as many in transforms; another number may follow ``--``."""
    run_random_tests(session, "NUMBRIDGE_TORCH_PROGRAMS", 3000, "tests/interop/operators/test_random_torch.py")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def paddle_fuzz(session: nox.Session) -> None:
    """Check 2,000 random programs of Paddle with operators, and a sixth of that compiled; another number may follow ``--``."""
    session.env["NUMBRIDGE_PADDLE_PROGRAMS"] = session.posargs[0] if session.posargs else "2000"
    # Paddle says at length what it does not like of a program.
    session.env["GLOG_minloglevel"] = "3"
    run_in_environment(session, "pytest", "tests/interop/operators/test_random_paddle.py")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def demo(session: nox.Session) -> None:
    """Launch one kernel on the tensors of every framework, and print the table of conversions."""
    run_in_environment(session, "python", "examples/demo.py", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def docs(session: nox.Session) -> None:
    """Build the documentation into docs/_build, with warnings as errors, which finds links that lead nowhere within it."""
    run_in_environment(session, "sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def linkcheck(session: nox.Session) -> None:
    """Follow the documentation's links to elsewhere; needs the network."""
    run_in_environment(session, "sphinx-build", "--keep-going", "-b", "linkcheck", "docs", "docs/_build/linkcheck")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def benchmarks(session: nox.Session) -> None:
    """Measure against the peers, as ratios within one run; writes JSON and a table under docs/benchmarks/."""
    run_in_environment(session, "python", "tests/benchmarks/run.py", *session.posargs)
