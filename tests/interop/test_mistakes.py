"""What tapes and operators say to mistakes: the argument, what it was, what was wanted, and what to do."""

import numpy as np
import pytest

import numbridge as nb


@nb.kernel
def square(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * x[i]


def recorded():
    x, y = nb.ones(4, requires_grad=True), nb.zeros(4, requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(square, 4, [x, y])
    return tape, x, y


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (3.0, "the loss is 3.0; pass an array that a recorded launch has written"),
        ("loss", "the loss is 'loss'"),
        (np.ones(1, np.int64), "the loss is ndarray of int64"),
    ],
)
def test_a_loss_that_is_none(loss, text):
    with pytest.raises(nb.NumbridgeTypeError, match=text):
        recorded()[0].backward(loss)


@pytest.mark.parametrize("grads", [lambda y: [y], lambda y: y, lambda y: 5, lambda y: [(y, y, y)]])
def test_gradients_without_their_arrays(grads):
    tape, x, y = recorded()
    with pytest.raises(nb.NumbridgeTypeError, match=r"grads is of type \w+; wanted {array: gradient}, or pairs"):
        tape.backward(grads=grads(y))
    tape.backward(grads=[(y, nb.ones(4))])
    assert x.grad.numpy().tolist() == [2, 2, 2, 2]


def test_gradients_of_what_is_no_array():
    with pytest.raises(nb.NumbridgeTypeError, match="an array in grads is 'y'"):
        recorded()[0].backward(grads={"y": nb.ones(4)})


@pytest.mark.parametrize(("framework", "of"), [("torch", nb.torch_op), ("paddle", nb.paddle_op)])
class TestOperators:
    def x(self, framework):
        module = pytest.importorskip(framework)
        return module.ones([4])

    @pytest.mark.parametrize("outputs", [None, 1])
    def test_outputs(self, framework, of, outputs):
        with pytest.raises(
            nb.NumbridgeTypeError, match=f"wanted a parameter's name, or a list of names, got {outputs}"
        ):
            of(square, outputs)

    def test_name(self, framework, of):
        with pytest.raises(nb.NumbridgeTypeError, match=f"{framework}_op: name is 3; it must be a string"):
            of(square, "y", name=3)

    def test_arguments_by_name(self, framework, of):
        with pytest.raises(
            nb.NumbridgeTypeError, match=r"operator .*by position, in the order \(x\), and x came by name"
        ):
            of(square, "y")(x=self.x(framework))

    @pytest.mark.parametrize(
        ("dims", "text"),
        [(-1, "-1 has a negative extent"), ((4.0,), r"wanted an int or a tuple of ints, got \(4.0,\)")],
    )
    def test_dims(self, framework, of, dims, text):
        with pytest.raises(nb.NumbridgeError, match=f"output_dims of kernel 'square': {text}"):
            of(square, "y", output_dims=dims)(self.x(framework))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: nb.full(3, 300, dtype=nb.int8),
            r"fill_: an array of int8 with shape \(3,\) does not take these values",
        ),
        (lambda: nb.array([1j], dtype=nb.float32), "data cannot become an array of float32: "),
        (lambda: nb.array([300], dtype=nb.int8), "data cannot become an array of int8: "),
        (
            lambda: nb.array([2**70]),
            "data is a list that holds what is no number, or integers of more than 64 bits; pass",
        ),
        (lambda: nb.array([None]), "data is a list that holds what is no number"),
        (lambda: nb.array(["a"]), "data is a list that holds text; pass numbers"),
        (
            lambda: nb.zeros(4).__setitem__(slice(None), np.ones(3)),
            r"array\[...\] = value: an array of float32 with shape \(4,\)",
        ),
        (lambda: nb.zeros(4).fill_(1j), "fill_: an array of float32 .*does not take these values"),
        (lambda: nb.zeros(4).reshape(2.0, 2), r"shape is \(2.0, 2\); it must be an int or a tuple of ints"),
        (lambda: nb.empty_like(3), "builtins.int is a number, and an array is wanted here; pass an array"),
        (lambda: nb.clone(np.float32(3)), "numpy.float32 is a number, and an array is wanted here"),
    ],
)
def test_contents(make, text):
    with pytest.raises(nb.NumbridgeError, match=text):
        make()


def test_an_index_out_of_range_is_an_index_error_in_stores_too():
    with pytest.raises(nb.NumbridgeIndexError, match=r"the array has shape \(4,\): index 7 is out of bounds"):
        nb.zeros(4)[7] = 1.0


@pytest.mark.parametrize("ndim", [-1, 2.0, "2"])
def test_an_annotation_of_dimensions_that_no_array_has(ndim):
    with pytest.raises(
        nb.NumbridgeTypeError, match=f"ndim is {ndim!r}; it must be an int of 0 or more, or None for any"
    ):
        nb.array(dtype=float, ndim=ndim)


def test_what_is_no_graph():
    with pytest.raises(nb.NumbridgeTypeError, match=r"capture_launch: wanted a graph, of capture_end\(\).*got 3"):
        nb.capture_launch(3)


def test_a_sparse_tensor_for_an_operator():
    torch = pytest.importorskip("torch")
    with pytest.raises(
        nb.BufferAccessError, match=r"parameter 'x': a torch tensor of layout torch.sparse_coo cannot be shared"
    ):
        nb.torch_op(square, "y")(torch.ones(4).to_sparse())
