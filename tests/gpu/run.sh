#!/usr/bin/env bash
# Runs the tests that need a GPU, then the benchmarks, on a machine with a CUDA GPU, its own Python with torch, JAX, CuPy,
# numba-cuda and pytest, and no network. Nothing is installed: the packages are laid out in a temporary folder.
# Results go to docs/benchmarks/<gpu>.json, and with logs and what each test came to also to $OUT if that is set. Takes 8 minutes at
# most: no step takes more than its limit, and none keeps the next ones from running; only where kernels cannot be compiled at all,
# or there is no device, does it stop at once. NUMBRIDGE_GPU_SKIP="others memcheck" leaves steps out, and NUMBRIDGE_GPU_SECONDS is
# how long all may take.
#
# Known to do, with Python 3.12, NumPy 2.5, JAX 0.11, CuPy 14.2 and a toolkit of CUDA 13.0: Numba 0.67 and 0.68, and numba-cuda
# 0.30.4 (older ones fail to import with these). If the machine's numba-cuda is older, bring that wheel (2 MB), and for an older
# Numba those of numba 0.68 and llvmlite 0.50 as well (64 MB in all):
#   pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 \
#       -d .whl numba-cuda==0.30.4    # and there:
#   python3 -m pip install -q --no-index --no-deps --target /tmp/site .whl/*.whl; PYTHONPATH=/tmp/site bash tests/gpu/run.sh
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
budget="${NUMBRIDGE_GPU_SECONDS:-470}"
python="${PYTHON:-python3}"
site="$(mktemp -d)"
trap 'rm -rf "$site"' EXIT
cp -r interop "$site/numbridge"
cp -r kernels "$site/numbridge/kernels"
out="${OUT:-$site/out}"
mkdir -p -m 700 "$out" "$site/cache"
export PYTHONPATH="$site:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 NUMBRIDGE_CACHE_DIR="$site/cache"
export NUMBRIDGE_GPU_RESULTS="$out/tests.jsonl"
# JAX would take most of the memory, in each process.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
# Where NVVM lies if no wheel brought it.
nvcc="$(command -v nvcc)" && export CUDA_HOME="${CUDA_HOME:-$(dirname "$(dirname "$(readlink -f "$nvcc")")")}"

# skipped NAME: whether a step is to be left out.
skipped() { [[ " ${NUMBRIDGE_GPU_SKIP:-} " == *" $1 "* ]]; }

# step NAME LIMIT COMMAND...: run it for LIMIT seconds at most, or for what is left, and note what it came to.
step() {
    local name=$1 limit=$2 left=$((budget - SECONDS)) start=$SECONDS status=124 outcome
    shift 2
    skipped "$name" && return 0
    ((limit < left)) || limit=$left
    if ((limit > 9)); then
        echo "== $name, $limit s at most"
        timeout --signal INT --kill-after 10 "$limit" "$@"
        status=$?
    fi
    case $status in 124 | 137) outcome="out of time" ;; *) outcome=$status ;; esac
    echo -n "$name: $outcome after $((SECONDS - start)) s; " >>"$site/outcomes"
    return "$status"
}

# tests NAME LIMIT ARGUMENTS...: a test that hangs or breaks its CUDA context costs a worker, and another one goes on.
tests() {
    local name=$1 limit=$2
    shift 2
    step "$name" "$limit" "$python" -m pytest -c tests/gpu/pytest.ini --rootdir . -q --tb short -rfE "$@"
}

# sanitized TOOL PORT LIMIT OPTIONS... -- ARGUMENTS...: tests under one of compute-sanitizer's tools. What they come to there goes to
# a file of their own. Every process connects to the tool by a port, from PORT on; pytest-xdist waits for ever for a worker that gets
# none, and by default there are ten. Left out is what makes millions of threads or thousands of launches.
sanitized() {
    local tool=$1 port=$2 limit=$3 options=()
    shift 3
    while [[ $1 != -- ]]; do options+=("$1") && shift; done
    # What has no file has not run.
    skipped "$tool" && return 0
    : >"$out/$tool.jsonl"
    NUMBRIDGE_GPU_RESULTS="$out/$tool.jsonl" NUMBRIDGE_GPU_TEST_SECONDS=150 step "$tool" "$limit" \
        compute-sanitizer --tool "$tool" --target-processes all --max-connections 200 --port "$port" "${options[@]}" \
        --error-exitcode 9 "$python" -m pytest -c tests/gpu/pytest.ini --rootdir . -q --tb short -rfE "${@:2}" \
        --deselect tests/gpu/test_kernels.py::test_more_than_2_to_the_31_threads \
        --deselect tests/gpu/test_kernels.py::test_no_launch_grows_memory_or_references >"$out/$tool.txt" 2>&1
}

# workers SIXTEENTHS: the options by which pytest-xdist, if it is there, takes so much of the processor, and two workers at least.
workers() {
    local count=$(($(nproc) * $1 / 16))
    "$python" -c "import xdist" && echo "-n $((count > 2 ? count : 2)) --dist worksteal --max-worker-restart 50"
}

# Of the ordinary tests, those of JAX run as they are where JAX's default device is a GPU, but for what is the CPU's (XLA's frames and
# CUDA's driver made by hand, fusing, numbers of a traced call that are looked at before it runs, kernels that raise, memory that
# NumPy shares, TBB, processes of several devices).
jax=tests/interop/jax_ffi
jax_tests=("$jax")
for name in emulated_jax jax_cuda jax_graphs jax_measured jax_values jax_handler jax_devices jax_fused jax_traced_numbers; do
    jax_tests+=(--ignore "$jax/test_$name.py")
done
for name in asked_dims.py::test_functions_that_python_runs_each_time callback.py::test_attributes_and_context \
    callback.py::test_buffers_speak_every_protocol callback.py::test_what_is_kept_beyond_the_call_is_found \
    kernel.py::test_a_raising_kernel_is_an_error kernel.py::test_the_warm_path_needs_no_numba \
    threads.py::test_many_jitted_functions_beside_launches; do
    jax_tests+=(--deselect "$jax/test_jax_$name")
done

main() {
    local failed=0 running=() job log many
    many=$(workers 12)
    timeout 20 nvidia-smi
    timeout 30 "$python" -m pip list 2>/dev/null | grep -iE "^(.*cuda|numba|llvmlite|nvidia|torch|triton|cupy|jax|numpy|pytest)"
    step info 30 "$python" -m numbridge info
    if ! step compiler 60 "$python" -c "from numbridge.kernels.cuda_backend import cuda, cuda_driver; print(cuda_driver.driver().name(0))"; then
        echo "$(<"$site/outcomes") without numba.cuda and a device there is nothing to test; if numba-cuda is too old, see the head of run.sh"
        return 1
    fi
    # Whether the others make sense
    tests kernels 75 $many tests/gpu/test_kernels.py || failed=1
    tests together 150 $many -m "not alone" --ignore tests/gpu/test_kernels.py tests/gpu || failed=1
    tests alone 75 ${many:+-n 1 --max-worker-restart 50} -m alone tests/gpu || failed=1
    step benchmarks 130 "$python" tests/gpu/bench.py --out "$out" || failed=1
    # Nothing is timed from here on, so the rest runs side by side; the report comes last, and must have time.
    ((budget -= 20))
    (
        # JAX's own products of matrices have a lower precision otherwise.
        export JAX_DEFAULT_MATMUL_PRECISION=highest
        tests others 330 $(workers 6) --confcutdir . -p gpu_reports "${jax_tests[@]}" tests/test_docs.py::test_code_of_a_page_runs_on_a_gpu
    ) >"$site/others.txt" 2>&1 &
    running+=($!)
    if command -v compute-sanitizer; then
        # What the driver refuses is an answer, to numbridge and to the frameworks.
        sanitized memcheck 49152 330 --report-api-errors no -- $(workers 6) -m "not alone" tests/gpu &
        running+=($!)
        sanitized racecheck 50152 330 -- $(workers 3) tests/gpu/test_kernels.py tests/gpu/test_warps.py &
        running+=($!)
    fi
    for job in "${running[@]}"; do wait "$job" || failed=1; done
    for log in "$site/others.txt" "$out"/*check.txt; do [[ ! -e $log ]] || cat "$log"; done
    ((budget += 20))
    step report 30 "$python" tests/gpu/bench.py --tests --out "$out" || failed=1
    cat "$site/outcomes" && echo
    return "$failed"
}

: >"$NUMBRIDGE_GPU_RESULTS"
rm -f "$out"/*check.txt "$out"/*check.jsonl
main 2>&1 | tee "$out/log.txt"
exit "${PIPESTATUS[0]}"
