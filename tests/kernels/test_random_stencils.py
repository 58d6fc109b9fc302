"""Random kernels that load from rows and columns beside their own give on CUDA, with several ids at once, what the CPU gives."""

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("first", range(0, 14, 7))
def test_random_programs(first, run_python):
    # In a process of their own, whose kernels are compiled for one architecture alone.
    found = run_python(f"""
        import sys

        sys.path.insert(0, {str(TESTS)!r})
        import fake_cuda
        import stencil_programs

        fake_cuda.remember_ptx()
        print(sum(stencil_programs.check(seed) for seed in range({first}, {first + 7})))
    """)
    # Most of them are for threads that take two columns.
    assert int(found) > 4
