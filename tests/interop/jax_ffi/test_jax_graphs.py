"""Plans of launches that XLA sees as one call, and their CUDA graphs, against a driver that records what it is asked to do."""

from __future__ import annotations

import ctypes
import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from call_frames import ORDINAL, STREAM, Elsewhere, Framed
from compiled_calls import jax_callable
from fake_cuda import CONTEXTS, fake_cuda
from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.jax_ffi import targets
from numbridge.jax_ffi import words_layout as wl
from numbridge.jax_ffi.grouping import Group, grouped
from numbridge.jax_ffi.replay import GraphCache
from numbridge.kernels.cuda_backend import cuda_driver

MODE = nb.GraphMode.NUMBRIDGE
both_modes = pytest.mark.parametrize("mode", [nb.GraphMode.JAX, MODE])
a10 = jnp.arange(10, dtype=jnp.float32)


@nb.kernel
def scale(x: nb.array[float], s: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] * s


@nb.kernel
def pairs(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    nb.atomic_add(out, i // 2, x[i])


@nb.kernel
def increase(x: nb.array[float]):
    i = nb.tid()
    x[i] += 1.0


def steps(x: nb.array[float], out: nb.array[float]):
    once, sums = nb.zeros(x.shape), nb.zeros(x.shape)
    nb.launch(scale, x.shape, [x, 2.0], [once])
    nb.launch(pairs, x.shape, [once], [sums])
    nb.launch(scale, x.shape, [sums, 0.5], [once])
    nb.launch(scale, x.shape, [once, 3.0], [out])


def steps_in_numpy(x):
    return 3 * np.add.reduceat(np.asarray(x), np.arange(0, len(x), 2))


def in_place(state: nb.array[float], out: nb.array[float]):
    for _ in range(5):
        nb.launch(increase, state.shape, [state])
    nb.launch(scale, state.shape, [state, 2.0], [out])


def groups_of(f, *arguments):
    """Return the groups of a function's launches."""
    (equation,) = (e for e in jax.make_jaxpr(f)(*arguments).eqns if e.primitive.name == "numbridge_replay")
    return [part for part in grouped(equation.params["jaxpr"].jaxpr) if isinstance(part, Group)]


def replayed(func, **options):
    return jax_callable(func, graph_mode=MODE, **options)


# --------------------------------------------------------------------------------------------------------------------
# What a plan is


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_plan_computes_what_its_launches_compute(wrap):
    (out,) = wrap(replayed(steps))(a10)
    np.testing.assert_array_equal(out[:5], steps_in_numpy(a10))
    assert not out[5:].any()
    state, out = wrap(replayed(in_place, num_outputs=2, in_out_argnames=["state"]))(a10)
    np.testing.assert_array_equal(state, a10 + 5)
    np.testing.assert_array_equal(out, 2 * a10 + 10)
    np.testing.assert_array_equal(a10, np.arange(10))


def test_launches_that_follow_each_other_are_one_call():
    text = jax.jit(replayed(steps)).lower(a10).as_text()
    assert text.count("numbridge_plan") == 1 and "@numbridge_launch" not in text


def test_results_share_buffers_when_they_are_not_needed_together():
    """Once is written twice, and its second contents may lie where the first were; out may not lie where it is read."""
    (group,) = groups_of(replayed(steps), a10)
    assert len(group.steps) == 4 and len(group.buffers) == 2 and group.aliases == {}
    assert [(step.operands, step.results) for step in group.steps] == [
        ((0,), (-1,)),
        ((-1,), (-2,)),
        ((-2,), (-1,)),
        ((-1,), (-2,)),
    ]


def test_in_out_arguments_stay_in_one_buffer():
    f = replayed(in_place, num_outputs=2, in_out_argnames=["state"])
    (group,) = groups_of(f, a10)
    assert group.aliases == {0: 0} and len(group.buffers) == 2
    assert [step.results for step in group.steps] == [(-1,)] * 5 + [(-2,)]


def test_what_is_read_later_is_not_overwritten():
    def function(x: nb.array[float], out: nb.array[float], rest: nb.array[float]):
        changed = nb.zeros(x.shape)
        nb.copy(changed, x)
        nb.launch(increase, x.shape, [changed])
        nb.launch(scale, x.shape, [x, 3.0], [out])
        nb.launch(pairs, x.shape, [changed], [rest])
        nb.launch(increase, x.shape, [rest])

    f = replayed(function, num_outputs=2)
    (group,) = groups_of(f, a10)
    assert group.aliases == {}
    for wrap in (jax.jit, lambda g: g):
        out, rest = wrap(f)(a10)
        np.testing.assert_array_equal(out, 3 * a10)
        np.testing.assert_array_equal(rest[:5], np.add.reduceat(np.asarray(a10) + 1, np.arange(0, 10, 2)) + 1)


def test_operations_of_xla_between_launches_separate_plans():
    def function(x: nb.array[float], out: nb.array[float]):
        once = nb.zeros(x.shape)
        nb.launch(scale, x.shape, [x, 2.0], [once])
        nb.launch(increase, x.shape, [once])
        once[:2].fill_(7.0)
        nb.launch(increase, x.shape, [once])
        nb.launch(scale, x.shape, [once, 2.0], [out])

    f = replayed(function)
    assert [len(group.steps) for group in groups_of(f, a10)] == [2, 2]
    (out,) = jax.jit(f)(a10)
    np.testing.assert_array_equal(out, [16, 16, *(4 * np.arange(2, 10) + 4)])


@pytest.mark.parametrize("method", ["broadcast_all", "expand_dims", "sequential"])
def test_batches(method):
    x = jnp.arange(30, dtype=jnp.float32).reshape(3, 10)
    (out,) = jax.jit(jax.vmap(replayed(steps, vmap_method=method)))(x)
    for row, got in zip(x, out, strict=True):
        np.testing.assert_array_equal(got[:5], steps_in_numpy(row))


def test_a_function_that_uses_what_is_traced_outside():
    def outer(x, y):
        def function(x: nb.array[float], out: nb.array[float]):
            nb.launch(scale, x.shape, [x, y], [out])
            nb.launch(increase, x.shape, [out])

        return replayed(function)(x)[0]

    np.testing.assert_array_equal(jax.jit(outer)(a10, 3.0), 3 * a10 + 1)


def collective(x: nb.array[float], out: nb.array[float]):
    nb.launch(scale, x.shape, [x, 2.0], [out])
    summed = jax.lax.psum(jnp.asarray(out), "rows") + jax.lax.axis_index("rows")
    nb.launch(scale, x.shape, [summed, 3.0], [out])


def test_collectives_of_a_batch_with_an_axis_name():
    rows = jnp.stack([a10, a10 + 1])
    f = jax.vmap(lambda x: replayed(collective, enable_backward=True)(x)[0], axis_name="rows")
    expected = np.stack([6 * rows.sum(0), 6 * rows.sum(0) + 3])
    np.testing.assert_array_equal(f(rows), expected)
    np.testing.assert_array_equal(jax.jit(f)(rows), expected)
    np.testing.assert_array_equal(jax.vmap(f)(jnp.stack([rows, rows])), [expected, expected])
    np.testing.assert_array_equal(jax.grad(lambda rows: f(rows).sum())(rows), np.full((2, 10), 12.0))


def test_collectives_of_devices_separate_plans():
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("rows")
    f = jax.shard_map(lambda x: replayed(collective)(x)[0], mesh=mesh, in_specs=spec, out_specs=spec)
    assert "numbridge_replay" in str(jax.make_jaxpr(f)(a10))
    np.testing.assert_array_equal(jax.jit(f)(a10), 6 * a10)
    np.testing.assert_array_equal(jax.jit(jax.vmap(f))(a10[None]), 6 * a10[None])


def test_references_within_and_from_outside():
    total = jax.new_ref(jnp.zeros(10))

    def function(x: nb.array[float], out: nb.array[float]):
        nb.launch(scale, x.shape, [x, 2.0], [out])
        own = jax.new_ref(jnp.asarray(out))
        own[...] = own[...] + 1
        total[...] = total[...] + own[...]
        nb.launch(scale, x.shape, [own[...], 2.0], [out])

    f = replayed(function)
    np.testing.assert_array_equal(f(a10)[0], 4 * a10 + 2)
    np.testing.assert_array_equal(jax.jit(f)(a10)[0], 4 * a10 + 2)
    np.testing.assert_array_equal(total[...], 2 * (2 * a10 + 1))


@both_modes
@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_function_that_is_linear_is_transposed(mode, wrap):
    def function(x: nb.array[float], w: nb.array[float], out: nb.array[float], count: nb.array[int]):
        nb.launch(scale, w.shape, [w, 2.0], [out])
        out.assign(jnp.asarray(x) * jnp.asarray(out))
        count.fill_(1)

    f = nb.jax_callable(function, 2, mode)
    transposed = wrap(jax.linear_transpose(wrap(lambda x: f(x, a10)[0]), a10))
    np.testing.assert_array_equal(transposed(a10)[0], 2 * a10**2)


@both_modes
def test_a_launch_is_not_transposed(mode):
    def function(x: nb.array[float], out: nb.array[float]):
        nb.launch(scale, x.shape, [x, 2.0], [out])

    f = nb.jax_callable(function, graph_mode=mode)
    message = r"kernel 'scale' under JAX is not linear as far as JAX knows, so it cannot be transposed"
    with pytest.raises(nb.KernelUnsupportedError, match=message):
        jax.linear_transpose(lambda x: f(x)[0], a10)(a10)

    @jax.custom_jvp
    def doubled(x):
        return 2 * x

    doubled.defjvp(lambda primals, tangents: (doubled(*primals), f(*tangents)[0]))
    np.testing.assert_array_equal(jax.jvp(doubled, (a10,), (a10,))[1], 2 * a10)
    with pytest.raises(nb.KernelUnsupportedError, match=message + r".*jax\.custom_vjp"):
        jax.grad(lambda x: doubled(x).sum())(a10)


def random_program(seed):
    """Return a function that launches at random on a few arrays."""
    random = np.random.default_rng(seed)
    program = [(random.integers(3), *random.integers(4, size=2)) for _ in range(10)]

    def function(x: nb.array[float], s: nb.array[float], out: nb.array[float]):
        arrays = [s, nb.zeros(x.shape), nb.zeros(x.shape), out]
        for kind, source, target in program:
            if kind == 0:
                nb.launch(increase, x.shape, [arrays[target]])
            elif source == target:
                nb.launch(scale, x.shape, [x, 2.0], [arrays[target]])
            elif kind == 1:
                nb.launch(scale, x.shape, [arrays[source], 0.5], [arrays[target]])
            else:
                nb.launch(pairs, x.shape, [arrays[source]], [arrays[target]])

    return function


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    """The same as launches that are calls of their own."""
    function, given = random_program(seed), (a10, jnp.ones(10, jnp.float32))
    options = {"num_outputs": 2, "in_out_argnames": ["s"]}
    wanted = jax_callable(function, **options)(*given)
    for got, expected in zip(jax.jit(replayed(function, **options))(*given), wanted, strict=True):
        np.testing.assert_array_equal(got, expected)


# --------------------------------------------------------------------------------------------------------------------
# Graphs


@pytest.fixture
def driver():
    with fake_cuda() as found:
        for ordinal in range(found.count()):
            cuda_driver.devices().prepare(ordinal)
        yield found
        assert not found.streams and not found.graphs


class Planned(Framed):
    """The frame of a plan; `numbers` are the addresses of its buffers in MiB, operands first."""

    def __init__(self, group, cache, *numbers):
        names, words = cache.words(group)
        kinds = [(v.aval.shape, v.aval.dtype) for v in group.operands]
        buffers = [Elsewhere(n << 20, *kind) for n, kind in zip(numbers, [*kinds, *group.buffers], strict=True)]
        super().__init__(names, words, buffers[: len(kinds)], buffers[len(kinds) :])

    def replay(self, driver):
        driver.calls.clear()
        driver.launches.clear()
        answer = self.run(targets.room().cuda_plans["numbridge_xla_plan_cuda"])
        assert (answer == 0) == (self.errors == [])
        return [call[0] for call in driver.calls]


@pytest.fixture
def group():
    # Caches of tests before, of which frames are part of a cycle, may still have graphs of this plan.
    gc.collect()
    (found,) = groups_of(replayed(steps), a10)
    return found


CAPTURE = ["load"] * 4 + [
    "create_stream",
    "begin",
    "launch",
    "fill",
    "launch",
    "launch",
    "launch",
    "end",
    "destroy_stream",
]
MADE = [*CAPTURE, "instantiate", "destroy_graph", "graph"]


def first_addresses(driver):
    """Return the address of the first array of each launch."""
    return [launched.first_address >> 20 for launched in driver.launches]


def test_the_first_execution_captures_and_the_next_replays(driver, group):
    cache = GraphCache(4)
    made = Planned(group, cache, 1, 2, 3)
    assert made.replay(driver) == ["push", *MADE, "pop"]
    assert ("create_stream", 1) in driver.calls and ("begin", 2) in driver.calls
    assert driver.calls[-2][2] == STREAM
    assert first_addresses(driver) == [1, 2, 3, 2]
    (work,) = driver.executables.values()
    assert [what[0] for what in work] == ["launch", "fill", "launch", "launch", "launch"]
    assert work[1] == ("fill", 3 << 20, 0, 40)
    assert {launched.context for launched in driver.launches} == {CONTEXTS + ORDINAL}
    assert made.replay(driver) == ["push", "graph", "pop"]
    assert first_addresses(driver) == [1, 2, 3, 2]
    assert cache.size == 1


def test_other_buffers_have_a_graph_of_their_own(driver, group):
    cache = GraphCache(2)
    here, there = Planned(group, cache, 1, 2, 3), Planned(group, cache, 4, 5, 6)
    assert here.replay(driver)[1:-1] == MADE and there.replay(driver)[1:-1] == MADE
    for made, addresses in ((here, [1, 2, 3, 2]), (there, [4, 5, 6, 5]), (here, [1, 2, 3, 2])):
        assert made.replay(driver) == ["push", "graph", "pop"]
        assert first_addresses(driver) == addresses
    assert cache.size == 2


def test_the_graph_that_was_not_used_longest_is_updated(driver, group):
    cache = GraphCache(2)
    one, two, three = (Planned(group, cache, 3 * k + 1, 3 * k + 2, 3 * k + 3) for k in range(3))
    for made in (one, two, one):
        made.replay(driver)
    oldest = next(e for e, work in driver.executables.items() if work[0][1].first_address == 4 << 20)
    assert three.replay(driver)[1:-1] == [*CAPTURE, "update", "destroy_graph", "graph"]
    assert ("update", oldest) in driver.calls and first_addresses(driver) == [7, 8, 9, 8]
    assert one.replay(driver) == ["push", "graph", "pop"] and first_addresses(driver) == [1, 2, 3, 2]
    assert "update" in two.replay(driver) and first_addresses(driver) == [4, 5, 6, 5]
    assert cache.size == 2 and len(driver.executables) == 2


def test_a_graph_that_cannot_be_updated_is_made_anew(driver, group):
    cache = GraphCache(1)
    Planned(group, cache, 1, 2, 3).replay(driver)
    driver.fail["update"] = 910
    made = Planned(group, cache, 4, 5, 6)
    assert made.replay(driver)[1:-1] == [*CAPTURE, "update", "destroy_exec", "instantiate", "destroy_graph", "graph"]
    assert first_addresses(driver) == [4, 5, 6, 5] and len(driver.executables) == cache.size == 1


def test_batches_of_other_sizes_have_graphs_of_their_own(driver, group):
    """XLA's buffers of both may lie at the same addresses; a graph has the extents of one in its launches."""
    batches = [groups_of(jax.vmap(replayed(steps)), jnp.zeros((rows, 10), jnp.float32))[0] for rows in (3, 5)]

    def planned(found, cache):
        return Planned(found, cache, *range(1, 1 + len(found.operands) + len(found.buffers)))

    cache = GraphCache(3)
    made = [planned(found, cache) for found in (*batches, group)]
    assert ["instantiate" in each.replay(driver) for each in made] == [True] * 3
    for each in (*made, *made):
        assert each.replay(driver) == ["push", "graph", "pop"]
    assert cache.size == len(driver.executables) == 3
    # Where there is room for one, that of the other size is updated.
    small = GraphCache(1)
    one, other = (planned(found, small) for found in batches)
    for each, way in ((one, "instantiate"), (other, "update"), (one, "update")):
        assert way in each.replay(driver) and each.replay(driver) == ["push", "graph", "pop"]
    assert small.size == 1


def test_each_device_has_its_graphs(driver, group):
    cache = GraphCache(1)
    made = Planned(group, cache, 1, 2, 3)
    made.replay(driver)
    made.ordinal_of_the_call = 0
    assert made.replay(driver)[1:-1] == MADE
    assert {launched.context for launched in driver.launches} == {CONTEXTS}
    assert cache.size == 2


def test_within_a_capture_of_xla_the_launches_are_xlas(driver, group):
    cache = GraphCache(4)
    driver.capturing.add(STREAM)
    made = Planned(group, cache, 1, 2, 3)
    assert made.replay(driver)[1:-1] == ["launch", "fill", "launch", "launch", "launch"]
    assert {launched.stream for launched in driver.launches} == {STREAM} and cache.size == 0


def test_no_graphs_at_all(driver, group):
    made = Planned(group, GraphCache(0), 1, 2, 3)
    assert made.replay(driver)[1:-1] == ["launch", "fill", "launch", "launch", "launch"]
    assert first_addresses(driver) == [1, 2, 3, 2]


def test_graphs_without_a_limit(driver, group):
    cache = GraphCache(None)
    made = [Planned(group, cache, 3 * k + 1, 3 * k + 2, 3 * k + 3) for k in range(40)]
    for one in made:
        one.replay(driver)
    assert cache.size == len(driver.executables) == 40
    cache.capacity = 3
    assert cache.size == len(driver.executables) == 3
    assert made[-1].replay(driver) == ["push", "graph", "pop"]
    cache.clear()
    assert cache.size == len(driver.executables) == 0
    assert made[-1].replay(driver)[1:-1] == MADE


def test_graphs_end_with_their_function(driver):
    def function(x: nb.array[float], out: nb.array[float]):
        nb.launch(scale, x.shape, [x, 12.5], [out])
        nb.launch(increase, x.shape, [out])

    f = replayed(function, graph_cache_max=7)
    (group,) = groups_of(f, a10)
    assert Planned(group, f._graphs, 1, 2).replay(driver)[-2] == "graph"
    assert f.graph_cache_max == 7 and f.graph_cache_size == len(driver.executables) == 1
    f.clear_graph_cache()
    assert f.graph_cache_size == len(driver.executables) == 0
    Planned(group, f._graphs, 1, 2).replay(driver)
    del f
    jax.clear_caches()
    gc.collect()
    assert not driver.executables


@pytest.mark.parametrize(
    "step",
    ["load", "create_stream", "begin", "end", "destroy_stream", "instantiate", "graph", "is_capturing", "push", "pop"],
)
def test_what_the_driver_refuses_is_an_error(driver, group, step):
    cache = GraphCache(4)
    driver.fail[step] = 719
    made = Planned(group, cache, 1, 2, 3)
    made.replay(driver)
    ((code, said),) = made.errors
    assert code == xla.INTERNAL
    assert "a graph of kernels 'scale', 'pairs', 'scale', 'scale' under JAX: the CUDA driver refused it" in said
    assert "CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure" in said
    made.errors.clear()
    driver.fail.clear()
    assert made.replay(driver)[-2] == "graph" and first_addresses(driver) == [1, 2, 3, 2]


def test_a_launch_that_is_refused_names_its_kernel(driver, group):
    driver.fail["fill"] = 719
    cache = GraphCache(4)
    made = Planned(group, cache, 1, 2, 3)
    made.replay(driver)
    assert "kernel 'pairs' under JAX: the CUDA driver refused the launch" in made.errors[0][1] and cache.size == 0


def test_wrong_buffers_are_refused(driver, group):
    made = Planned(group, GraphCache(4), 1, 2, 3)
    made.frame.args.args = made._buffers([Elsewhere(1 << 20, (10,), np.dtype(np.float64))])
    assert "graph" not in made.replay(driver)
    assert "kernel 'scale' under JAX: parameter 0: wrong element type: wanted float32" in made.errors[0][1]


@pytest.mark.parametrize("change", [(0, 1), (wl.PLAN_LENGTH, 1), (wl.PLAN_OPERANDS, 2), (wl.PLAN_RESULTS, 1)])
def test_words_that_do_not_fit_are_refused(driver, group, change):
    made = Planned(group, GraphCache(4), 1, 2, 3)
    made.words[change[0] // 8] = change[1]
    made.replay(driver)
    assert "carries no words of this version" in made.errors[0][1]


def test_a_plan_of_another_process(driver, group):
    """Neither its graphs nor its kernels' code are known."""
    _, words = GraphCache(4).words(group)
    made = Planned(group, GraphCache(4), 1, 2, 3)
    made.words[wl.PLAN_KEY // 8] ^= 0x5A5A
    assert made.replay(driver)[-2] == "graph"
    step = wl.PLAN_STEPS // 8
    made.words[step + words[step + wl.STEP_WORDS // 8] // 8 + 1] ^= 0x5A5A
    made.replay(driver)
    assert "kernel 'scale' under JAX: this program was made elsewhere" in made.errors[0][1]


def test_metadata_does_not_offer_command_buffers(driver, group):
    for handler in (targets.room().plan_handler, targets.room().cuda_plans["numbridge_xla_plan_cuda"]):
        made = Planned(group, GraphCache(4), 1, 2, 3)
        metadata = xla.XLA_FFI_Metadata(struct_size=ctypes.sizeof(xla.XLA_FFI_Metadata), traits=9)
        base = xla.XLA_FFI_InternalExtension(type=xla.EXTENSION_METADATA)
        extension = xla.XLA_FFI_Metadata_Extension(base, ctypes.addressof(metadata))
        made.frame.extension_start = ctypes.addressof(extension)
        assert made.run(handler) == 0 and metadata.traits == 0


def test_threads_share_graphs(driver, group):
    cache, failures = GraphCache(3), []

    def work(first):
        for k in range(30):
            at = 3 * ((first + k) % 5) + 1
            made = Planned(group, cache, at, at + 1, at + 2)
            made.run(targets.room().cuda_plans["numbridge_xla_plan_cuda"])
            failures.extend(made.errors)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and cache.size == len(driver.executables) == 3
    assert len(driver.launches) == 4 * 30 * 4
