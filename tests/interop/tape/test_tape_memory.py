"""Which memory a tape takes for gradients, and what it does to that of others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from numbridge.tape import adjoint_memory, sparing_adjoints, tape_launches

N = 6


@nb.kernel
def square(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i]


@nb.kernel
def product(x, y, out):
    i = nb.tid()
    out[i] = x[i] * y[i]


@nb.kernel
def sines(x, out):
    i = nb.tid()
    if x[i] > 1.0:
        out[i] = math.sin(x[i])
    else:
        out[i] = 0.5 * x[i]


@nb.kernel
def inner(x, out):
    i = nb.tid()
    if i > 0 and i < x.shape[0] - 1:
        out[i] = x[i - 1] + x[i] * x[i + 1]


@nb.kernel
def in_place(x):
    i = nb.tid()
    x[i] = x[i] * x[i]


@nb.kernel
def double(x):
    i = nb.tid()
    x[i] = x[i] * 2.0


@nb.kernel
def added(x, out):
    i = nb.tid()
    out[i] = out[i] + 2.0 * x[i]


@nb.kernel
def gathered(x, out):
    i = nb.tid()
    out[i] = x[i] + x[0]


@nb.kernel
def both(x, first, second):
    i = nb.tid()
    first[i] = x[i] * x[i]
    second[i] = first[i] + x[i]


@nb.kernel
def split(x, first, second):
    i = nb.tid()
    first[i] = x[i] * x[i]
    second[i] = 3.0 * x[i]


@nb.kernel
def through(x, first, second):
    """What it needs of the first one is what it leaves there."""
    i = nb.tid()
    first[i] = 0.5 * first[i] + math.exp(x[i])
    second[i] = first[i] * first[i] * x[i]


@nb.kernel
def total(x, loss):
    i = nb.tid()
    nb.atomic_add(loss, 0, x[i] * x[i])


@nb.kernel
def checked(x, y, limit):
    i = nb.tid()
    if x[i] > limit:
        raise ValueError("too large")
    y[i] = x[i] * x[i]


@pytest.fixture
def all_are_large(monkeypatch):
    """Let arrays of any size count as large, and tell how many launches were spared passes over their memory."""
    monkeypatch.setattr(adjoint_memory, "LARGE", 0)
    spared = []
    reverse = sparing_adjoints.reverse_sparingly

    def counted(sparing, *rest):
        spared.append(sparing)
        reverse(sparing, *rest)

    monkeypatch.setattr(tape_launches, "reverse_sparingly", counted)
    return spared


def leaf(n=3):
    return nb.array(np.arange(1.0, n + 1), requires_grad=True, device="cpu")


def fresh(n=3):
    return nb.zeros(n, dtype=nb.float64, device="cpu")


def recorded(x, kernel=square):
    """Record a launch; return the tape, and what it wrote."""
    y = fresh(x.shape[0])
    with nb.Tape() as tape:
        nb.launch(kernel, x.shape[0], [x], [y])
    return tape, y


@pytest.mark.parametrize("make", [list, np.array, nb.array], ids=["list", "numpy", "numbridge"])
def test_what_a_gradient_starts_from_is_only_read(make):
    x = leaf()
    tape, y = recorded(x)
    given = make([1.0, 2.0, 3.0])
    tape.backward(grads={y: given})
    assert list(np.asarray(given)) == [1, 2, 3] and x.grad.list() == [2, 8, 18]
    assert tape.gradients[y].list() == [0, 0, 0]


def test_the_gradient_of_what_no_launch_wrote_is_no_view_of_what_was_given():
    x, given = leaf(), np.array([1.0, 2.0, 3.0])
    tape, y = recorded(x)
    tape.backward(grads={x: given, y: np.zeros(3)})
    given[:] = 7
    assert tape.gradients[x].list() == x.grad.list() == [1, 2, 3]


def test_gradients_that_are_given_for_one_array_and_its_parts_add_up():
    x = leaf()
    tape, y = recorded(x)
    whole, part = np.ones(3), np.array([1.0, 0.0])
    tape.backward(grads=[(y, whole), (y[1:], part), (y, whole)])
    assert x.grad.list() == [4, 12, 12] and whole.tolist() == [1, 1, 1] and part.tolist() == [1, 0]


def test_a_gradient_that_is_an_array_of_the_launch():
    x = leaf()
    tape, y = recorded(x)
    tape.backward(grads={y: x})
    assert x.list() == [1, 2, 3] and x.grad.list() == [2, 8, 18]


def test_a_gradient_that_is_the_one_it_is_added_to():
    x = leaf()
    x.grad = np.array([1.0, 1.0, 2.0])
    tape, y = recorded(x)
    tape.backward(grads={y: x.grad})
    assert x.grad.list() == [3, 5, 14]


def test_what_is_given_may_change_while_a_step_of_ones_own_runs():
    x, given = leaf(), np.ones(3)
    tape, y = recorded(x)
    with tape:
        nb.launch(square, 3, [x], [y])
        z = fresh()
        tape.record_func(lambda: given.fill(100), [z, x])
    tape.backward(grads={y: given})
    assert x.grad.list() == [2, 4, 6]


def test_a_gradient_that_cannot_be_added_leaves_the_tape_as_it_was():
    x = leaf()
    tape, y = recorded(x)
    with pytest.raises(TypeError):
        tape.backward(grads={y: np.ones(3) * 1j})
    tape.backward(grads={y: np.ones(3)})
    assert x.grad.list() == [2, 4, 6]


def test_a_zero_with_a_sign_has_none():
    x = leaf()
    tape, y = recorded(x)
    tape.backward(grads={x: np.full(3, -0.0), y: np.zeros(3)})
    assert [math.copysign(1, g) for g in tape.gradients[x].list()] == [1, 1, 1]


# Launches on large arrays


def test_a_gradient_goes_from_one_owners_memory_into_new_memory(all_are_large, monkeypatch):
    x, seed = leaf(), np.array([1.0, 2.0, 3.0])
    tape, y = recorded(x)
    seen = []
    read = sparing_adjoints.Region.read

    def reading(region, found):
        seen.append(read(region, found))
        return seen[-1]

    monkeypatch.setattr(sparing_adjoints.Region, "read", reading)
    tape.backward(grads={y: seed})
    assert len(all_are_large) == 1 and [one is seed for one in seen] == [True]
    assert x.grad.list() == [2, 8, 18] and tape.gradients[y].list() == [0, 0, 0] and seed.tolist() == [1, 2, 3]
    assert tape.gradients[x].ptr != x.grad.ptr


def test_a_chain_needs_no_zeros(all_are_large, monkeypatch):
    x, y, z = leaf(), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        nb.launch(square, 3, [y], [z])
    zeros = np.zeros
    made = []
    monkeypatch.setattr(np, "zeros", lambda *given, **named: made.append(given) or zeros(*given, **named))
    tape.backward(grads={z: np.ones(3)})
    assert len(all_are_large) == 2 and not [given for given in made if given[0] == 3]
    assert x.grad.list() == [4, 32, 108]


@pytest.mark.parametrize(
    "seed",
    [
        np.ones(6)[::2],
        np.ones(3, np.float32),
        np.frombuffer(np.ones(3).tobytes(), np.float64),
        np.frombuffer(bytearray(b"-" + np.ones(3).tobytes()), np.float64, 3, 1),
    ],
    ids=["strided", "of another dtype", "read-only", "unaligned"],
)
def test_what_kernels_cannot_read_as_it_is_is_copied(all_are_large, seed):
    x = leaf()
    tape, y = recorded(x)
    tape.backward(grads={y: seed})
    assert x.grad.list() == [2, 4, 6] and len(all_are_large) == 1 and seed.tolist() == [1, 1, 1]


def test_what_a_launch_leaves_out_keeps_its_gradient(all_are_large):
    x, y = leaf(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 2, [x], [y])
    tape.backward(grads={y: np.ones(3)})
    assert not all_are_large and tape.gradients[y].list() == [0, 0, 1] and x.grad.list() == [2, 4, 0]


def test_arrays_that_share_memory_are_added_up(all_are_large):
    x, y = leaf(4), fresh(4)
    with nb.Tape() as tape:
        nb.launch(product, 4, [x, x], [y])
        nb.launch(square, 2, [y[:2]], [y[2:]])
    tape.backward(grads={y: np.ones(4)})
    assert not all_are_large
    with nb.Tape() as tape:
        nb.launch(product, 2, [x[::2], x[1::2]], [y[:2]])
    x.grad = None
    tape.backward(grads={y[:2]: np.ones(2)})
    assert len(all_are_large) == 0 and x.grad.list() == [2, 1, 4, 3]


def test_a_second_reader_adds(all_are_large):
    x, y, z = leaf(), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        nb.launch(product, 3, [x, y], [z])
    tape.backward(grads={z: np.ones(3)})
    assert len(all_are_large) == 1 and np.allclose(x.grad.numpy(), [3, 12, 27])


def test_what_a_launch_that_fails_has_stored_is_nobodys(all_are_large, monkeypatch):
    x = leaf()
    tape, y = recorded(x)
    run = tape_launches.Recipe.run

    def failing(recipe, geometry, way):
        def launched(*arguments):
            run(recipe, geometry, way)(*arguments)
            raise nb.KernelError("failed")

        return launched

    monkeypatch.setattr(tape_launches.Recipe, "run", failing)
    with pytest.raises(nb.KernelError, match="failed"):
        tape.backward(grads={y: np.ones(3)})
    assert x.grad.list() == tape.gradients[x].list() == [0, 0, 0] and tape.gradients[y].list() == [1, 1, 1]


def test_a_kernel_that_may_raise_stores_no_gradient(all_are_large):
    x, y = leaf(), fresh()
    with nb.Tape() as tape:
        nb.launch(checked, 3, [x], [y, 5.0])
    tape.backward(grads={y: np.ones(3)})
    assert not [n for one in all_are_large for n in one.fresh] and x.grad.list() == [2, 4, 6]


@nb.kernel
def turned(v: nb.array(dtype=nb.vec3), s: nb.array(dtype=float), out: nb.array(dtype=nb.vec3)):
    i = nb.tid()
    out[i] = s[i] * nb.cross(v[i], nb.vec3(1.0, 2.0, 3.0))


@nb.kernel
def transposed(x, y):
    i, j = nb.tid()
    y[i, j] = 3.0 * x[j, i] + x[i, j]


def in_two_ways(run, monkeypatch):
    """Return what a program gives where nothing is large, and where everything is."""
    found = []
    for large in (1 << 62, 0):
        monkeypatch.setattr(adjoint_memory, "LARGE", large)
        found.append(run())
    return found


def test_vectors_and_matrices(all_are_large, monkeypatch):
    values = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)

    def run():
        v, s = (
            nb.array(a, dtype=d, requires_grad=True, device="cpu")
            for a, d in ((values, nb.vec3), (values[:, 0], float))
        )
        out = nb.zeros(4, dtype=nb.vec3, device="cpu")
        x, y = (
            nb.array(values[:3].copy(), requires_grad=True, device="cpu"),
            nb.zeros((3, 3), dtype=float, device="cpu"),
        )
        with nb.Tape() as tape:
            nb.launch(turned, 4, [v, s], [out])
            nb.launch(transposed, (3, 3), [x], [y])
        tape.backward(grads={out: values, y: values[:3]})
        return [a.grad.numpy().tolist() for a in (v, s, x)]

    first, second = in_two_ways(run, monkeypatch)
    assert first == second and len(all_are_large) == 2


@nb.kernel
def moving(z, y):
    i = nb.tid()
    z[i] = z[i] * z[i]
    y[i] = z[i] * z[i]


def test_a_gradient_may_start_from_an_array_that_going_back_changes_for_a_while(all_are_large, monkeypatch):
    def run():
        z, y = leaf(), fresh()
        with nb.Tape() as tape:
            nb.launch(moving, 3, [z], [y])
        tape.backward(grads={y: z})
        return z.grad.list()

    first, second = in_two_ways(run, monkeypatch)
    assert first == second == [4, 128, 972] and not all_are_large


@nb.kernel
def through_a_tile(x, y):
    tile = cuda.shared.array(4, dtype=np.float64)
    i, k = nb.tid(), cuda.threadIdx.x
    a = x[i]
    tile[k] = a * a
    cuda.syncthreads()
    y[i] = tile[k] + tile[3 - k]


def test_threads_that_work_together_are_reversed_as_ever(all_are_large):
    x, y = leaf(4), fresh(4)
    with nb.Tape() as tape:
        nb.launch(through_a_tile, 4, [x], [y], block_dim=4)
    tape.backward(grads={y: np.array([1.0, 0.0, 0.0, 0.0])})
    assert x.grad.list() == [2, 0, 0, 8] and not all_are_large


CHOICES = (square, sines, inner, in_place, double, added, gathered, product, both, split, total)


def program(seed):
    """Run random launches, copies and fills, and go back twice; return every gradient."""
    random = np.random.default_rng(seed)
    arrays = [nb.array(random.uniform(0.5, 1.5, N), requires_grad=k < 2, device="cpu") for k in range(5)]
    with nb.Tape() as tape:
        for _ in range(random.integers(1, 8)):
            kernel = CHOICES[random.integers(len(CHOICES))]
            count = len(kernel.parameters)
            given = [arrays[k] for k in random.permutation(5)[:count]]
            if random.random() < 0.2:
                given = [array[1:-1] for array in given]
            dim = given[0].shape[0] - int(random.random() < 0.15)
            nb.launch(kernel, dim, given)
            if random.random() < 0.15:
                arrays[2].fill_(0.5)
            if random.random() < 0.15:
                arrays[3].assign(arrays[random.integers(3)])
    for _ in range(2):
        chosen = [arrays[k] for k in random.permutation(5)[:2]]
        try:
            tape.backward(grads=[(array, random.normal(size=N)) for array in chosen], retain_graph=True)
        except nb.NumbridgeError:
            continue
    return np.concatenate(
        [*(array.grad.numpy() for array in arrays[:2]), *(g.numpy() for g in tape.gradients.values())]
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_tapes(all_are_large, monkeypatch, seed):
    np.testing.assert_array_equal(*in_two_ways(lambda: program(seed), monkeypatch))


def test_random_tapes_are_spared_something(all_are_large):
    for seed in range(20):
        program(seed)
    assert len(all_are_large) > 10


def test_arrays_that_are_apart_have_gradients_and_their_views_too():
    x, y, z, unread = leaf(4), fresh(4), fresh(4), leaf(4)
    with nb.Tape() as tape:
        nb.launch(square, 4, [x], [y])
        nb.launch(square, 4, [unread], [z])
    tape.backward(grads={y: np.arange(4.0)})
    assert x.grad.list() == tape.gradients[x].list() == [0, 4, 12, 24]
    assert tape.gradients[x[1:3]].list() == [4, 12] and tape.gradients[x[::-2]].list() == [24, 4]
    # To what no gradient has come one may be asked for all the same; on what the tape does not know there is none.
    assert tape.gradients[unread].list() == tape.gradients[z[:4]].list() == [0, 0, 0, 0]
    assert tape.gradients[x].list() == [0, 4, 12, 24] and unread.grad.list() == [0, 0, 0, 0]
    with pytest.raises(KeyError):
        tape.gradients[fresh(4)]


@pytest.mark.parametrize("is_seed", [False, True])
def test_arrays_in_each_others_reach_have_one_memory_of_gradients(is_seed):
    base, y = fresh(6), fresh(3)
    even, odd = base[::2], base[1::2]
    base.numpy()[:] = np.arange(6)
    even.requires_grad, odd.requires_grad = True, not is_seed
    with nb.Tape() as tape:
        if is_seed:
            nb.launch(square, 3, [even], [odd])
        else:
            nb.launch(product, 3, [even, odd], [y])
    tape.backward(grads={odd if is_seed else y: np.ones(3)})
    assert even.grad.list() == ([0, 4, 8] if is_seed else [1, 3, 5])
    assert tape.gradients[base].list() == ([0, 0, 4, 0, 8, 0] if is_seed else [1, 0, 3, 2, 5, 4])


def test_a_part_of_what_was_recorded_may_be_what_a_gradient_starts_from():
    x, y = leaf(4), fresh(4)
    with nb.Tape() as tape:
        nb.launch(square, 4, [x], [y])
    tape.backward(grads={y[1:3]: np.ones(2)})
    assert x.grad.list() == [0, 4, 6, 0] and tape.gradients[y].list() == [0] * 4


def derivative_of_through(x, first):
    """The gradient of the sum of what `through` makes second, by x, and by what was first before."""
    first = 0.5 * first + np.exp(x)
    return 2 * first * np.exp(x) * x + first * first, 2 * first * x * 0.5


@pytest.mark.parametrize("is_large", [False, True])
def test_what_an_adjoint_reads_as_the_launch_leaves_it_is_not_copied(is_large, request):
    spared = request.getfixturevalue("all_are_large") if is_large else []
    x, first, second = leaf(), nb.array(np.array([0.1, -0.2, 0.3]), requires_grad=True, device="cpu"), fresh()
    wanted = derivative_of_through(x.numpy(), first.numpy())
    with nb.Tape() as tape:
        nb.launch(through, 3, [x, first], [second])
    assert tape.kept_bytes == 0
    for times in (1, 2):
        tape.backward(grads={second: np.ones(3)}, retain_graph=True)
        assert np.allclose(x.grad.numpy(), times * wanted[0]) and np.allclose(first.grad.numpy(), times * wanted[1])
    assert len(spared) == (2 if is_large else 0)


@pytest.mark.parametrize("change", ["a launch", "a method", "another tape"])
def test_what_a_launch_left_is_copied_before_it_is_overwritten(change):
    x, first, second = leaf(), nb.array(np.array([0.1, -0.2, 0.3]), requires_grad=True, device="cpu"), fresh()
    wanted = derivative_of_through(x.numpy(), first.numpy())
    with nb.Tape() as tape:
        nb.launch(through, 3, [x, first], [second])
        assert tape.kept_bytes == 0
        if change == "a launch":
            nb.launch(double, 3, [first])
    if change == "a method":
        first.fill_(7.0)
    elif change == "another tape":
        with nb.Tape():
            nb.launch(double, 3, [first])
    assert tape.kept_bytes == first.nbytes
    tape.backward(grads={second: np.ones(3)})
    assert np.allclose(x.grad.numpy(), wanted[0]) and np.allclose(first.grad.numpy(), wanted[1])


def test_what_a_launch_left_and_something_else_changed_is_refused():
    x, first, second = leaf(), nb.array(np.array([0.1, -0.2, 0.3]), requires_grad=True, device="cpu"), fresh()
    with nb.Tape() as tape:
        nb.launch(through, 3, [x, first], [second])
    first.numpy()[1] = 5.0
    with pytest.raises(nb.NumbridgeError, match="'first' of kernel 'through' has been changed since the launch"):
        tape.backward(grads={second: np.ones(3)})
    assert not x.grad.numpy().any()
