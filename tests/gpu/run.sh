#!/usr/bin/env bash
# Runs the tests that need a GPU, then the benchmarks, on a machine with a CUDA GPU, its own Python with torch, JAX, CuPy,
# numba-cuda and pytest, and no network. Nothing is installed: the packages are laid out in a temporary folder.
# Results go to docs/benchmarks/<gpu>.json, and to $OUT if that is set. Takes less than 10 minutes.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python="${PYTHON:-python3}"
site="$(mktemp -d)"
trap 'rm -rf "$site"' EXIT
cp -r interop "$site/numbridge"
cp -r kernels "$site/numbridge/kernels"
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export NUMBRIDGE_CACHE_DIR="$site/cache"
mkdir -m 700 "$NUMBRIDGE_CACHE_DIR"
out="${OUT:-$site/out}"
mkdir -p "$out"

"$python" -m numbridge info | tee "$out/info.txt"
timeout 300 "$python" -m pytest -c tests/gpu/pytest.ini --rootdir . -q tests/gpu 2>&1 | tee "$out/tests.txt"
tests=${PIPESTATUS[0]}
NUMBRIDGE_GPU_TESTS="$(tail -1 "$out/tests.txt")"
export NUMBRIDGE_GPU_TESTS
timeout 150 "$python" tests/gpu/bench.py --out "$out" 2>&1 | tee "$out/benchmarks.txt"
bench=${PIPESTATUS[0]}
sanitizer=0
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        timeout 45 compute-sanitizer --tool "$tool" --error-exitcode 9 "$python" -m pytest -c tests/gpu/pytest.ini --rootdir . -q \
            tests/gpu/test_kernels.py -k "saxpy or shared_memory or atomics" 2>&1 | tee "$out/$tool.txt" | tail -5
        [ "${PIPESTATUS[0]}" -eq 0 ] || sanitizer=1
    done
fi
echo "tests: $tests, benchmarks: $bench, sanitizer: $sanitizer"
exit $((tests || bench || sanitizer))
