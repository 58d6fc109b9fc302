"""A tape and what it is not told of: values set between launches by others, values that leave it, and how long looking takes."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import torch

import numbridge as nb
from numbridge.kernels.adjoint.overlap import share_memory
from numbridge.kernels.readers import describe
from numbridge.tape.places import Places
from numbridge.tape.remembered_contents import _checksum as checksum


@nb.kernel
def accumulate(x, y):
    i = nb.tid()
    y[i] = y[i] + x[i]


@nb.kernel
def copy_to(x, y):
    i = nb.tid()
    y[i] = x[i]


@nb.kernel
def square(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i]


@nb.kernel
def square_2d(x, y):
    i, j = nb.tid()
    y[i, j] = x[i, j] * x[i, j]


def leaf(*values):
    return nb.array(list(values), dtype=nb.float64, requires_grad=True)


def fresh(n=3):
    return nb.zeros(n, dtype=nb.float64)


def numpy_array():
    return np.zeros(3)


def torch_tensor():
    return torch.zeros(3, dtype=torch.float64)


def set_to_zero(y):
    (y if isinstance(y, torch.Tensor) else np.asarray(y))[:] = 0


SET = "written by something that the tape is not told of, such as NumPy, before the launch of kernel 'accumulate'"


@pytest.mark.parametrize("make", [numpy_array, torch_tensor, fresh])
def test_no_gradient_passes_what_others_have_set_between_launches(make):
    x, y = leaf(1.0, 2.0, 3.0), make()
    with nb.Tape() as tape:
        nb.launch(accumulate, 3, [x, y])
        set_to_zero(y)
        nb.launch(accumulate, 3, [x, y])
    with pytest.raises(nb.NumbridgeError, match=SET):
        tape.backward(grads=[(y, np.ones(3))])


@pytest.mark.parametrize("make", [numpy_array, torch_tensor, fresh])
def test_what_others_have_set_and_a_launch_overwrites_does_no_harm(make):
    x, y, z = leaf(1.0, 2.0, 3.0), make(), fresh()
    with nb.Tape() as tape:
        for _ in range(3):
            set_to_zero(y)
            nb.launch(copy_to, 3, [x, y])
            nb.launch(accumulate, 3, [y, z])
    tape.backward(grads=[(z, np.ones(3))])
    assert x.grad.list() == [3, 3, 3]


def test_no_gradient_passes_an_array_that_others_set_in_part():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(accumulate, 3, [x, y])
        y.numpy()[2] = 7.0
        nb.launch(accumulate, 2, [x[:2], y[:2]])
        nb.launch(accumulate, 2, [x[1:], y[1:]])
    with pytest.raises(nb.NumbridgeError, match=SET):
        tape.backward(grads=[(y, np.ones(3))])


def test_no_gradient_passes_a_leaf_that_others_have_set_between_launches():
    x, y = torch.ones(3, dtype=torch.float64, requires_grad=True), fresh()
    with nb.Tape() as tape:
        nb.launch(accumulate, 3, [x, y])
        with torch.no_grad():
            x.mul_(2)
        nb.launch(accumulate, 3, [x, y])
    with pytest.raises(nb.NumbridgeError, match=SET):
        tape.backward(grads=[(y, np.ones(3))])
    assert x.grad is None


def test_no_gradient_passes_what_an_inner_tape_has_written():
    x, other, y, z = leaf(1.0, 2.0, 3.0), leaf(4.0, 5.0, 6.0), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x, y])
        with nb.Tape():
            nb.launch(square, 3, [other, y])
        nb.launch(accumulate, 3, [y, z])
    with pytest.raises(nb.NumbridgeError, match=SET):
        tape.backward(grads=[(z, np.ones(3))])


def test_no_gradient_passes_to_a_copy_of_what_others_have_set():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(accumulate, 3, [x, y])
        y.numpy()[:] = 0
        z = y.clone()
    with pytest.raises(nb.NumbridgeError, match="such as NumPy, before clone; gradients go on through launches"):
        tape.backward(grads=[(z, np.ones(3))])


@nb.kernel
def with_bits(x, bits, y):
    i = nb.tid()
    bits[i] = 0
    y[i] = x[i]


@nb.kernel
def clear_bits(bits):
    i = nb.tid()
    bits[i] = 0


def launch_that_carries_others(x, bits):
    nb.launch(with_bits, 3, [x, bits, fresh()])


def launch_that_carries_none(x, bits):
    nb.launch(clear_bits, 3, [bits])


def method(x, bits):
    bits.zero_()


AS_INTEGERS = {
    launch_that_carries_others: "kernel 'with_bits', to parameter 'bits'",
    launch_that_carries_none: "kernel 'clear_bits', to parameter 'bits'",
    method: "zero_",
}


@pytest.mark.parametrize("check_contents", [True, False])
@pytest.mark.parametrize("write", AS_INTEGERS, ids=lambda write: write.__name__)
def test_no_gradient_passes_what_is_written_as_integers(write, check_contents):
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape(check_contents) as tape:
        nb.launch(square, 3, [x, y])
        nb.launch(square, 3, [y, z])
        write(x, y.view(nb.int64))
        nb.launch(accumulate, 3, [x, y])
    tape.backward(grads=[(z, np.ones(3))], retain_graph=True)
    assert x.grad.list() == [4, 32, 108], "of what is read before"
    with pytest.raises(
        nb.NumbridgeError, match=f"{AS_INTEGERS[write]}, as elements that are no floating-point numbers"
    ):
        tape.backward(grads=[(y, np.ones(3))])


@pytest.mark.parametrize("write", AS_INTEGERS, ids=lambda write: write.__name__)
def test_no_gradient_passes_to_a_leaf_what_is_written_as_integers(write):
    x, z = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape(check_contents=False) as tape:
        nb.launch(square, 3, [x, fresh()])
        write(leaf(1.0, 1.0, 1.0), x.view(nb.int64))
        nb.launch(accumulate, 3, [x, z])
    with pytest.raises(nb.NumbridgeError, match="as elements that are no floating-point numbers"):
        tape.backward(grads=[(z, np.ones(3))])


def test_a_step_of_ones_own_answers_for_what_it_writes_as_integers():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x, y])
        nb.launch(clear_bits, 3, [y.view(nb.int64)], record_tape=False)
        tape.record_func(lambda: y.grad.fill_(0.0), [y])
        nb.launch(accumulate, 3, [x, y])
    tape.backward(grads=[(y, np.ones(3))])
    assert x.grad.list() == [1, 1, 1]


def launch_on_a_part(y):
    nb.launch(square, 1, [fresh(1), y[2:]])


def method_of_a_part(y):
    y[2:].fill_(5.0)


@pytest.mark.parametrize("whole", ["cloned", "filled"])
@pytest.mark.parametrize("write", [launch_on_a_part, method_of_a_part])
def test_a_part_on_which_nothing_depends_may_change(write, whole):
    """Also of an array that has carried gradients as a whole, or been filled."""
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 1, [x[:1], y[:1]])
        made = y.clone()
        if whole == "filled":
            y.fill_(2.0)
        write(y)
        nb.launch(accumulate, 3, [x, y])
    tape.backward(grads=[(y, np.ones(3)), (made, np.ones(3))])
    assert x.grad.list() == [3 if whole == "filled" else 5, 1, 1]


@pytest.mark.parametrize("write", [launch_on_a_part, method_of_a_part])
def test_what_others_set_before_such_a_part_changes_is_noticed(write):
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 1, [x[:1], y[:1]])
        y.clone()
        y.numpy()[:] = 0
        write(y)
        nb.launch(accumulate, 3, [x, y])
    with pytest.raises(nb.NumbridgeError, match="something that the tape is not told of, such as NumPy, before"):
        tape.backward(grads=[(y, np.ones(3))])


@pytest.mark.parametrize("check_contents", [True, False])
def test_a_leaf_that_a_launch_overwrites_by_another_array(check_contents):
    """Its gradient is that of what it held at first."""
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape(check_contents) as tape:
        nb.launch(square, 3, [x, y])
        nb.launch(square, 2, [fresh(2), x.numpy()[:2]])
        nb.launch(square, 3, [x, z])
        nb.asarray(x.numpy()).zero_()
        nb.launch(accumulate, 3, [x, z])
    tape.backward(grads=[(y, np.ones(3)), (z, np.ones(3))])
    assert x.grad.list() == [2, 4, 12]


def test_methods_of_arrays_and_steps_of_ones_own_are_told_of():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(accumulate, 3, [x, y])
        y[:2].zero_()
        nb.launch(accumulate, 3, [x, y])
        y.numpy()[:] *= 10
        tape.record_func(lambda: np.multiply(y.grad.numpy(), 10, out=y.grad.numpy()), [y])
        nb.launch(accumulate, 3, [x, y])
    tape.backward(grads=[(y, np.ones(3))])
    assert x.grad.list() == [11, 11, 21]


def test_a_write_that_fails_ends_no_gradient():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x, y])
        with pytest.raises(ValueError, match="broadcast"):
            y.fill_(np.ones(7))
    tape.backward(grads=[(y, np.ones(3))])
    assert x.grad.list() == [2, 4, 6]


@pytest.mark.parametrize("make", [numpy_array, torch_tensor, fresh])
@pytest.mark.parametrize("write", [nb.Array.assign, nb.copy])
def test_values_that_carry_a_gradient_are_copied(make, write):
    x, y, z = leaf(1.0, 2.0, 3.0), make(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x, y])
        write(z, y)
    tape.backward(grads=[(z, np.ones(3))])
    assert x.grad.list() == [2, 4, 6]


@pytest.mark.parametrize("make", [numpy_array, torch_tensor, fresh])
@pytest.mark.parametrize("write", [nb.Array.fill_])
def test_values_that_carry_a_gradient_are_not_set_unrecorded(make, write):
    x, y, z = leaf(1.0, 2.0, 3.0), make(), fresh()
    with nb.Tape():
        nb.launch(square, 3, [x, y])
        with pytest.raises(nb.NumbridgeError, match="of an array that carries a gradient is not recorded"):
            write(z, y)


@pytest.mark.parametrize("make", [numpy_array, torch_tensor, fresh])
@pytest.mark.parametrize("dtype", [None, nb.float32])
def test_new_arrays_with_the_values_of_others_carry_gradients(make, dtype):
    x, y, z = leaf(1.0, 2.0, 3.0), make(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x, y])
        nb.launch(square, 3, [nb.array(y, dtype=dtype), z])
    tape.backward(grads=[(z, np.ones(3))])
    assert np.allclose(x.grad.numpy(), [4, 32, 108])


def test_new_arrays_of_integers_carry_none():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(accumulate, 3, [x, y])
        nb.array(x, dtype=nb.int32)
    tape.backward(grads=[(y, np.ones(3))])
    assert x.grad.list() == [1, 1, 1]


def test_a_loss_that_nothing_recorded_has_made_is_refused():
    x, y = leaf(1.0, 2.0, 3.0), torch_tensor()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x, y])
    with pytest.raises(nb.NumbridgeError, match=r"so every gradient would be zero; .* pass what these launches wrote"):
        tape.backward(loss=y.sum())
    tape.backward(grads=[(y, np.ones(3))])
    assert x.grad.list() == [2, 4, 6]


@nb.kernel
def total(x, loss):
    i = nb.tid()
    nb.atomic_add(loss, 0, x[i])


def test_launches_over_nothing_have_gradients():
    x, y, loss = nb.array(np.zeros(0), requires_grad=True), fresh(0), fresh(1)
    with nb.Tape() as tape:
        nb.launch(square, 0, [x, y])
        nb.launch(total, 0, [y, loss])
    tape.backward(loss, grads=[(y, np.zeros(0))])
    assert x.grad.shape == (0,)


def test_the_gradient_of_a_leaf_by_itself():
    x = leaf(3.0)
    with nb.Tape() as tape:
        pass
    tape.backward(loss=x)
    assert x.grad.list() == [1]


def torch_leaf():
    return torch.ones(3, dtype=torch.float64, requires_grad=True)


def paddle_leaf():
    made = paddle.ones([3], dtype="float64")
    made.stop_gradient = False
    return made


@pytest.mark.parametrize("make", [torch_leaf, paddle_leaf])
def test_a_gradient_that_ends_in_a_tensor_that_is_no_leaf_says_so(make):
    x, y = make(), fresh()
    tripled = x * 3
    with nb.Tape() as tape:
        nb.launch(square, 3, [tripled, y])
    with pytest.warns(
        nb.NumbridgeWarning, match="does not flow to what the tensor was made of; pass it to the tensor's own"
    ):
        tape.backward(grads=[(y, np.ones(3))])
    assert x.grad is None
    tripled.backward(nb.convert(tape.gradients[tripled], type(tripled)))
    assert x.grad.tolist() == [18, 18, 18]


def test_a_view_of_a_leaf_that_is_recorded_too_has_its_gradient_there():
    x, y = torch_leaf(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 2, [x[1:], y])
        nb.launch(accumulate, 3, [x, y])
    tape.backward(grads=[(y, np.ones(3))])
    assert x.grad.tolist() == [1, 3, 3]


def test_places_are_linked_by_shared_memory():
    random = np.random.default_rng(3)
    memory, places, known = np.zeros(3000, np.uint8), Places(), []
    for _ in range(300):
        size, step = int(random.choice([0, 1, 7, 40, 900])), int(random.integers(1, 4))
        start = int(random.integers(0, 3000 - size * step))
        known.append(memory[start : start + size * step : step][:: int(random.choice([1, -1]))])
        places.keep(describe(known[-1]))
    every = list(places)
    assert len(every) == len({place.found.place for place in every})
    for array in known[::10]:
        place = places.find(describe(array))
        expected = {id(other) for other in every if share_memory(other.found, place.found)}
        assert {id(other) for other in place.links} == expected and len(place.links) == len(expected)
        assert all(place.meets(other) == (id(other) in expected) for other in every)
        assert places.keep(describe(array)) is place
    apart = places.find(describe(memory[1000:2000]))
    assert apart not in list(places) and all(share_memory(apart.found, other.found) for other in apart.links)
    every[0].vary()
    assert {id(other) for other in every if other.meets_varied} == {id(other) for other in every[0].links}


@pytest.mark.parametrize("kernel", [square, accumulate])
def test_a_longer_tape_takes_longer_for_each_launch_by_nothing(kernel, monkeypatch):
    asked = []
    monkeypatch.setattr("numbridge.tape.places.share_memory", lambda a, b: asked.append(1) or share_memory(a, b))
    monkeypatch.setattr(
        "numbridge.tape.remembered_contents._checksum", lambda place: asked.append(1) or checksum(place)
    )
    counts = []
    for length in (20, 80):
        asked.clear()
        x = leaf(1.0, 1.0)
        with nb.Tape() as tape:
            for _ in range(length):
                made = fresh(2)
                nb.launch(kernel, 2, [x, made])
                x = made
        tape.backward(grads=[(x, np.ones(2))], retain_graph=True)
        counts.append(len(asked) / length)
    assert counts[1] < 1.2 * counts[0]


def test_a_tape_may_be_told_not_to_look():
    x, y = nb.array([1.0, 2.0], requires_grad=True), nb.zeros(2)
    with nb.Tape(check_contents=False) as tape:
        nb.launch(square, 2, [x], [y])
    x.numpy()[0] = 5.0
    tape.backward(grads={y: [1.0, 1.0]})
    assert x.grad.list() == [10.0, 4.0], "the contents that there are now"
    assert tape.kept_bytes == 0
    with tape:
        nb.launch(square, 2, [x], [y])
    x.numpy()[0] = 6.0
    tape.backward(grads={y: [1.0, 1.0]})
    assert x.grad.list() == [22.0, 8.0], "nor when it is used again"


def test_a_tensor_that_has_other_memory_before_it_could_be_kept():
    x, y = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True), fresh()
    held = x.detach()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x, y])
    x.data = torch.full((3,), 9.0, dtype=torch.float64)
    nb.launch(copy_to, 3, [y, held])
    with pytest.raises(nb.NumbridgeError, match="parameter 'x' of kernel 'square' has been changed since the launch"):
        tape.backward(grads=[(y, np.ones(3))])


def test_gradients_of_elements_with_several_indices_are_refused():
    values = np.arange(4.0)
    windows = np.lib.stride_tricks.as_strided(values, (3, 2), (8, 8))
    for repeated in (
        windows,
        torch.from_numpy(values)[1:2].expand(3, 2),
        torch.from_numpy(values[:3, None]).expand(3, 2),
    ):
        x, y = nb.asarray(repeated), nb.zeros((3, 2), dtype=nb.float64)
        x.requires_grad = True
        with nb.Tape() as tape:
            nb.launch(square_2d, (3, 2), [x, y])
        expected = (
            "parameter 'x' of kernel 'square_2d' has strides .*, so several indices name one element; pass a contiguous"
        )
        with pytest.raises(nb.BufferAccessError, match=expected):
            tape.backward(grads=[(y, np.ones((3, 2)))])


@nb.kernel
def chosen_by_windows(x, windows, y):
    i = nb.tid()
    y[i] = x[windows[i, 0, 1]]
    windows[i, 1, 0] = 0


def test_gradients_are_refused_where_elements_that_are_written_have_several_indices():
    """What is stored by one index was read by another, which the compiler takes for other elements."""
    numbers = np.ones((3, 3), np.int32)
    windows = np.lib.stride_tricks.as_strided(numbers, (3, 2, 2), (12, 4, 4))
    x, y = nb.ones(3, requires_grad=True), nb.zeros(3)
    expected = "'windows' has strides .*, so several indices name one element, and the kernel writes to it"
    with nb.Tape(), pytest.raises(nb.BufferAccessError, match=expected):
        nb.launch(chosen_by_windows, 3, [x, windows, y])
    assert numbers.all()
    nb.launch(chosen_by_windows, 3, [x, windows, y])


@pytest.mark.parametrize("reads", [True, False])
def test_a_tensor_that_has_other_memory_when_going_back(reads):
    x, y = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True), fresh()
    held = x.detach()
    with nb.Tape() as tape:
        nb.launch(square if reads else copy_to, 3, [x, y])
    x.data = torch.full((3,), 9.0, dtype=torch.float64)
    if reads:
        with pytest.raises(nb.NumbridgeError, match="parameter 'x' of kernel 'square' has been given other memory"):
            tape.backward(grads=[(y, np.ones(3))])
        return
    tape.backward(grads=[(y, np.ones(3))])
    assert tape.gradients[held].list() == [1, 1, 1]


@pytest.mark.parametrize("as_array", [nb.from_torch, lambda tensor: tensor], ids=["array", "tensor"])
def test_a_tensor_that_is_given_other_memory_is_not_read_in_the_old_one(as_array):
    x, y = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), nb.zeros(3)
    with nb.Tape() as tape:
        nb.launch(square, 3, [as_array(x)], [y])
    tape.backward(grads={y: np.ones(3)})
    assert x.grad.tolist() == [2.0, 4.0, 6.0]
    before = x.data
    x.data = torch.full((3,), 5.0)
    with pytest.raises(
        nb.NumbridgeError, match=r"tensor of parameter 'x' of kernel 'square' has been given other memory"
    ):
        tape.backward(grads={y: np.ones(3)})
    with nb.Tape() as tape:
        nb.launch(square, 3, [as_array(x)], [y])
    x.data = before
    with pytest.raises(
        nb.NumbridgeError, match=r"since the launch, as by x.data = y; write into the memory that it has"
    ):
        tape.backward(grads={y: np.ones(3)})
    assert x.grad.tolist() == [2.0, 4.0, 6.0]
