"""Random kernels whose threads work together give on the CPU what their source gives in Python, one thread after the other."""

from pathlib import Path

import pytest

from some_cases import some

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("first", some([0, 12], 2))
def test_random_programs(first, run_python, tmp_path):
    # In a process of their own, whose kernels are compiled for the CPU alone.
    run_python(f"""
        import sys
        from pathlib import Path

        sys.path.insert(0, {str(TESTS)!r})
        import block_programs

        for seed in range({first}, {first + 4}):
            block_programs.check(seed, Path({str(tmp_path)!r}))
    """)
