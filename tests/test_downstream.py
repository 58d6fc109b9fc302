"""A package that depends on numbridge is built, installed from wheels into a fresh environment, works, and has types."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "tests" / "downstream"


def run(*command: object, **options: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(source: Path, folder: Path) -> Path:
    """Build a wheel from a copy of a project, so that nothing is left in it; return the wheel."""
    copy = folder / "source" / source.name
    copy.mkdir(parents=True)
    files = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=source).splitlines()
    for name in files:
        # What is not part of any wheel takes time to copy, and must not be needed.
        if (source / name).is_file() and not name.startswith(("tests/", "docs/", "examples/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((source / name).read_bytes())
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps")
    run(*pip, "--no-build-isolation", "--wheel-dir", folder, copy)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [built(source, tmp_path_factory.mktemp("wheel")) for source in (ROOT, SAMPLE)]


@pytest.fixture(scope="module")
def environment(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a new environment with both wheels; the frameworks are those of the tests."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    run(*pip, "--no-warn-script-location", "--prefix", folder, "--ignore-installed", *wheels)
    # After the environment's own folder, so the numbridge of the wheel is found first.
    (site / "frameworks.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def test_the_wheel_holds_what_it_must(wheels: list[Path]) -> None:
    names = zipfile.ZipFile(wheels[0]).namelist()
    for name in (
        "py.typed",
        "arrays/typed_arrays.pyi",
        "kernels/py.typed",
        "__main__.py",
        "command_line/app.py",
        "kernels/adjoint/derive.py",
    ):
        assert f"numbridge/{name}" in names
    assert not [
        name
        for name in names
        if name.split("/")[0] not in {"numbridge", wheels[0].name.rpartition("-py3")[0] + ".dist-info"}
    ]
    text = zipfile.ZipFile(wheels[0]).read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert "numbridge = numbridge.command_line.app:main" in text


def test_it_works_from_wheels(environment: Path, tmp_path: Path) -> None:
    printed = run(environment, "-I", SAMPLE / "use.py", cwd=tmp_path).splitlines()
    assert all(Path(line).is_relative_to(environment.parents[1]) for line in printed) and len(printed) == 2


def test_the_script_is_installed(environment: Path, tmp_path: Path) -> None:
    assert '"numbridge": "' in run(environment.parent / "numbridge", "info", "--json", cwd=tmp_path)


def test_mypy_sees_the_types_and_finds_the_sample_clean(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("import numbridge as nb\n\nx: int = nb.zeros(3)\nnb.zeros(3).shape.nothing\n")
    mypy = (sys.executable, "-m", "mypy", "--config-file", SAMPLE / "pyproject.toml", "--cache-dir", tmp_path / "cache")
    mypy = (*mypy, "--python-executable", environment)
    assert "no issues found in 3 source files" in run(*mypy, "-p", "sample_kernels", cwd=tmp_path)
    command = [*map(str, mypy), "wrong.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert 'expression has type "Array"' in done.stdout and '"nothing"' in done.stdout


def test_pyright_sees_the_types_and_finds_the_sample_clean(environment: Path, tmp_path: Path) -> None:
    installed = Path(run(environment, "-c", "import sample_kernels; print(sample_kernels.__file__)").strip()).parent
    shutil.copytree(installed, tmp_path / "sample_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    pyright = (sys.executable, "-m", "pyright", "--project", tmp_path, "--pythonpath", environment)
    assert "0 errors, 0 warnings" in run(*pyright, cwd=tmp_path)
    (tmp_path / "wrong.py").write_text(
        "import numbridge as nb\n\n\n@nb.kernel\ndef k(x: nb.array[float]) -> None:\n    x[nb.tid()].nothing\n"
    )
    done = subprocess.run(list(map(str, pyright)), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert 'Cannot access attribute "nothing" for class "float"' in done.stdout
