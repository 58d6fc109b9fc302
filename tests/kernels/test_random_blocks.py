"""Random kernels whose threads work together give on the CPU what their source gives in Python, one thread after the other."""

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("first", [0, 12])
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
