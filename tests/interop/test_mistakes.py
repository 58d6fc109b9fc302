"""What tapes and operators say to mistakes: the argument, what it was, what was wanted, and what to do."""

import ctypes
import sys

import numba
import numpy as np
import pytest
import torch
from numba import cuda

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


NOT_ON_IT = r"is not on this tape: nothing that it has recorded has read or written it; pass what a launch in its with"


def test_gradients_of_another_tapes_arrays():
    tape, x, y = recorded()
    _, _, other = recorded()
    with pytest.raises(nb.NumbridgeError, match=r"backward: an array in grads, Array of shape \(4,\), " + NOT_ON_IT):
        tape.backward(grads=[(y, nb.ones(4)), (other, nb.ones(4))])
    assert other.grad.list() == x.grad.list() == [0.0] * 4
    loss = nb.zeros(1, requires_grad=True)
    with pytest.raises(nb.NumbridgeError, match=r"backward: the loss, Array of shape \(1,\), " + NOT_ON_IT):
        tape.backward(loss)
    tape.backward(grads={y[1:2]: [1.0], x: nb.ones(4)})  # of a view, and of what was only read
    assert x.grad.list() == [1.0, 3.0, 1.0, 1.0]


def test_gradients_of_tensors_that_no_tape_knows():
    torch = pytest.importorskip("torch")
    tape, _, _ = recorded()
    with pytest.raises(nb.NumbridgeError, match=r"backward: the loss, Tensor of shape \(\), " + NOT_ON_IT):
        tape.backward(torch.ones((), requires_grad=True))
    empty = nb.zeros(0, requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(square, 0, [empty, nb.zeros(0)])
    tape.backward(grads={nb.zeros(0, requires_grad=True): nb.zeros(0)})


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


@pytest.mark.parametrize("framework", ["torch", "paddle", "jax.numpy", "ml_dtypes"])
def test_dtypes_of_frameworks_are_dtypes(framework):
    module = pytest.importorskip(framework)
    bfloat16 = module.bfloat16
    assert nb.zeros(3, dtype=bfloat16).dtype == nb.bfloat16
    assert nb.asarray(np.ones(3, nb.bfloat16), dtype=bfloat16).dtype == nb.bfloat16
    if framework == "ml_dtypes":
        return
    assert nb.array([1, 2], dtype=module.float64).dtype == nb.float64
    assert nb.vector(3, module.float32) is nb.vec3 and nb.array[module.int32] == nb.array[int]
    assert nb.zeros(3).view(module.int32).dtype == nb.int32

    def scaled(x: nb.array[module.float32], a: module.float64): ...

    assert repr(nb.kernel(scaled)) == "<kernel scaled(x: array1d[float32], a: float64)>"


def test_types_of_numba_are_dtypes():
    def scaled(
        x: nb.array[numba.float64], y: numba.float32[:, ::1], z: numba.uint8[:], a: numba.float64, b: numba.boolean
    ): ...

    said = "<kernel scaled(x: array1d[float64], y: array2d[float32], z: array1d[uint8], a: float64, b: bool)>"
    assert repr(nb.kernel(scaled)) == said
    assert nb.zeros(3, dtype=numba.int16).dtype == nb.int16
    with pytest.raises(
        nb.ConversionError, match=r"dtype Array\(float64, 1, .* is not a scalar type; numbridge has bool"
    ):
        nb.array1d[numba.float64[:]]

    def of_rows(x: numba.types.unicode_type): ...

    with pytest.raises(
        nb.NumbridgeTypeError, match=r"parameter 'x' of kernel 'of_rows'.*is not an annotation for a kernel"
    ):
        nb.kernel(of_rows)


def test_dtypes_of_tensors_that_are_shared():
    torch = pytest.importorskip("torch")
    t = torch.ones(3)
    assert nb.from_torch(t, dtype=torch.float32).ptr == nb.from_dlpack(t, dtype=torch.float32).ptr == t.data_ptr()
    with pytest.raises(
        nb.ConversionError, match="dtype is float64, and the data is float32, which cannot be shared as"
    ):
        nb.from_torch(t, dtype=torch.float64)
    with pytest.raises(nb.ConversionError, match=r"dtype torch\.quint8 is not a scalar type; numbridge has bool"):
        nb.zeros(3, dtype=torch.quint8)


@pytest.mark.parametrize("annotation", [None, 3, np.ones(2, np.float32)])
def test_what_is_no_dtype_is_no_annotation(annotation):
    def scaled(x): ...

    scaled.__annotations__["x"] = annotation
    with pytest.raises(
        nb.NumbridgeTypeError,
        match=r"parameter 'x' of kernel 'scaled': .* is not an annotation for a kernel; use an array",
    ):
        nb.kernel(scaled)


def test_a_device_in_the_place_of_a_dtype():
    x = nb.ones(3)
    with pytest.raises(nb.ConversionError, match=r"dtype 'cpu' is not .*\. A device is given by name, as device='cpu'"):
        nb.zeros_like(x, "cpu")
    with pytest.raises(nb.ConversionError, match="A device is given by name, as device='cuda:0'"):
        nb.zeros(3, "cuda:0")


@pytest.mark.parametrize(
    "make", [nb.dtype_to_numpy, lambda dtype: nb.zeros(3, dtype=dtype), lambda dtype: nb.array[dtype]]
)
def test_none_is_no_dtype(make):
    with pytest.raises(nb.ConversionError, match="dtype None is not a scalar type; numbridge has bool"):
        make(None)


def of_module(module):
    @nb.kernel
    def sines(x):
        i = nb.tid()
        x[i] = module.sin(x[i])

    @nb.kernel
    def halves(x):
        i = nb.tid()
        memory = cuda.local.array(2, module.float32)
        memory[0] = x[i]
        x[i] = memory[0]

    return sines, halves


@pytest.mark.parametrize("framework", ["torch", "jax.numpy"])
def test_a_frameworks_functions_in_a_kernel(framework):
    sines, halves = of_module(pytest.importorskip(framework))
    text = f"{framework}.sin works on whole arrays, and kernels cannot call it; call .* numbridge, as math.sin"
    with pytest.raises(nb.KernelError, match=text):
        nb.launch(sines, 2, [nb.ones(2)])
    if framework == "torch":  # JAX's are NumPy's
        with pytest.raises(nb.KernelError, match=r"kernels do not know torch\.float32; write numpy\.float32"):
            nb.launch(halves, 2, [nb.ones(2)])


@nb.kernel
def of_epsilon(x):
    i = nb.tid()
    x[i] = sys.float_info.epsilon


def test_an_object_of_a_module_is_named_with_what_to_write():
    text = r"sys\.float_info is of type float_info, which kernels cannot read; make a constant .*: nb\.static"
    with pytest.raises(nb.KernelError, match=text):
        nb.launch(of_epsilon, 2, [nb.ones(2)])


@nb.kernel
def of_methods(x):
    i = nb.tid()
    x[i] = x[i].sin()


@nb.kernel
def of_three_numbers(x):
    i = cuda.threadIdx
    x[i] = 1.0


def test_methods_of_numbers_and_indices_without_an_axis():
    with pytest.raises(
        nb.KernelError, match=r"a float32 has no \.sin: elements are numbers in a kernel.*, as math\.sin"
    ):
        nb.launch(of_methods, 2, [nb.ones(2)])
    with pytest.raises(nb.KernelError, match=r"cuda\.threadIdx is no number; write cuda\.threadIdx\.x, \.y or \.z"):
        nb.launch(of_three_numbers, 2, [nb.ones(2)])


ASKED_FOR = {
    "torch": [
        *("nb.from_torch(a)", "nb.to_torch(a)", "nb.convert(a, 'torch')", "nb.dtype_to_torch(nb.float32)"),
        *("nb.dtype_from_torch(None)", "nb.device_from_torch('cpu')", "nb.stream_from_torch()", "nb.stream_to_torch()"),
        "nb.torch_op(square, outputs=['y'])",
    ],
    "paddle": [
        *("nb.from_paddle(a)", "nb.to_paddle(a)", "nb.convert(a, 'paddle')", "nb.dtype_to_paddle(nb.float32)"),
        *("nb.dtype_from_paddle(None)", "nb.stream_from_paddle()", "nb.stream_to_paddle()"),
        "nb.paddle_op(square, outputs=['y'])",
    ],
    "jax": [
        *(
            "nb.from_jax(a)",
            "nb.to_jax(a)",
            "nb.convert(a, 'jax')",
            "nb.dtype_to_jax(nb.float32)",
            "nb.device_to_jax('cpu')",
        ),
        *("nb.jax_kernel(square)", "nb.register_ffi_callback('name', print)"),
    ],
}


def test_frameworks_that_are_not_installed(run_python):
    """Whatever asks for one says which one it is, and how to get it; launches of other arrays need none."""
    said = run_python(f"""
        import sys
        sys.modules |= dict.fromkeys(["torch", "paddle", "jax"])
        import numpy as np
        import numbridge as nb
        from numbridge.command_line.sample_kernels import square

        a = nb.array([1.0, 2.0])
        nb.launch(square, 2, [a], [b := np.zeros(2, np.float32)])
        assert b.tolist() == [1.0, 4.0]
        for framework, asked in {ASKED_FOR}.items():
            for text in asked:
                try:
                    eval(text)
                except nb.FrameworkNotFoundError as error:
                    assert isinstance(error, ModuleNotFoundError) and error.name == framework, text
                    assert f"needs {{framework}}, which is not installed here; pip install 'numbridge[" in str(error)
                    print(framework)
                else:
                    raise AssertionError(text)
    """)
    assert said.split() == [framework for framework, asked in ASKED_FOR.items() for _ in asked]


HUGE = 10**5000  # Python itself does not write it


@nb.kernel
def filled(y: nb.array[float], s: np.uint8):
    i = nb.tid()
    y[i] = s


@nb.kernel
def taken(y: nb.array[float], v: nb.vec3):
    i = nb.tid()
    y[i] = v.x


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a[HUGE],
        lambda a: a.reshape(HUGE),
        lambda a: a.transpose(HUGE),
        lambda a: nb.zeros((HUGE, 2)),
        lambda a: nb.vec3i(HUGE, 0, 0),
        lambda a: nb.vector(HUGE, float),
        lambda a: nb.array(ptr=HUGE, shape=1),
        lambda a: nb.array([1], ndim=HUGE),
        lambda a: nb.copy(a, a, HUGE),
        lambda a: nb.launch(filled, 1, [a, HUGE]),
        lambda a: nb.launch(filled, HUGE, [a, 1]),
        lambda a: nb.launch(filled, 1, [a, 1], block_dim=HUGE),
        lambda a: nb.launch(taken, 1, [a, HUGE]),
    ],
)
def test_integers_of_many_digits_are_told_by_their_size(call):
    with pytest.raises(nb.NumbridgeError, match="an integer of 16610 bits"):
        call(nb.zeros(3))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda a: nb.array(ptr=ctypes.c_void_p(a.ptr), shape=1), "ptr is of type c_void_p; it must be an int"),
        (lambda a: nb.array(ptr=1.5, shape=1), "ptr is of type float; it must be an int"),
        (lambda a: nb.array(ptr=2**70, shape=1), "which is no address"),
        (lambda a: nb.array(ptr=a.ptr, shape=1, strides=("a",)), r"strides are \('a',\); they must be ints"),
        (lambda a: a.transpose(1.0, 0), r"axes are \(1\.0, 0\); they must be ints"),
        (lambda a: a.__dlpack__(max_version=1), "max_version is 1; it must be a pair of ints"),
        (lambda a: a.__dlpack__(max_version=("a", 0)), r"max_version is \('a', 0\); it must be a pair of ints"),
        (lambda a: a.__dlpack__(max_version=()), r"max_version is \(\); it must be a pair of ints"),
        (lambda a: a.__dlpack__(dl_device=5), "dl_device is 5; it must be a pair of ints"),
        (lambda a: nb.zeros((2**40, 2**40, 0)), "too large to address"),
        (lambda a: nb.array([torch.ones(2, requires_grad=True)]), r"data cannot become an array: .*requires grad"),
        (lambda a: nb.vec3(torch.ones(3, requires_grad=True)), "vec3 cannot be made of this Tensor: .*requires grad"),
        (lambda a: nb.device_from_torch("xyz"), "torch_device is 'xyz', which torch refuses"),
        (lambda a: nb.device_from_cupy("cpu"), r"device is 'cpu'; it must be a cupy\.cuda\.Device"),
    ],
)
def test_what_would_fail_inside_is_refused_where_it_is_passed(call, text):
    with pytest.raises(nb.NumbridgeError, match=text):
        call(nb.zeros((2, 3)))


def test_addresses_and_axes_of_numpy():
    a = nb.array([[1.0, 2, 3], [4, 5, 6]])
    assert nb.array(ptr=np.int64(a.ptr), shape=3, strides=8).list() == [1, 3, 5]
    assert a.transpose(np.array([1, 0])).shape == a.transpose(None).shape == (3, 2)
