"""Annotations of kernels as other libraries write them: classes of arrays, and those of numpy.typing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import paddle
import pytest
import torch

import numbridge as nb
from numbridge.kernels.annotations import ArrayAnnotation, annotation_of
from numbridge.kernels.scalars import scalar_of

ANY = ArrayAnnotation(None, None)


@pytest.mark.parametrize("kind", [np.ndarray, torch.Tensor, torch.nn.Parameter, jax.Array, paddle.Tensor])
def test_a_class_of_arrays_asks_for_an_array(kind):
    assert annotation_of(kind) == ANY


def test_numpy_typing_may_say_dtype_and_rank():
    assert annotation_of(npt.NDArray[np.float32]) == ArrayAnnotation(scalar_of(np.float32), None)
    assert annotation_of(np.ndarray[tuple[int, int], np.dtype[np.int64]]) == nb.array2d[nb.int64]
    assert annotation_of(npt.NDArray[np.floating]) == ANY
    assert annotation_of(npt.NDArray) == annotation_of(np.ndarray[tuple[int, ...], np.dtype]) == ANY


@pytest.mark.parametrize("kind", [tuple, tuple[int, ...], tuple[int, float], torch.Size])
def test_tuples_ask_for_nothing_of_what_they_hold(kind):
    assert annotation_of(kind) is None


@pytest.mark.parametrize(
    "kind", [list, str, memoryview, np.floating, np.generic, np.dtype, npt.ArrayLike, dict[str, int]]
)
def test_other_classes_are_refused(kind):
    with pytest.raises(nb.NumbridgeTypeError, match="is not an annotation for a kernel"):
        annotation_of(kind)


@nb.kernel
def squares(x: np.ndarray, y: torch.Tensor, n: int):
    i = nb.tid()
    if i < n:
        y[i] = x[i] * x[i]


@nb.kernel
def halves(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]):
    i = nb.tid()
    y[i] = x[i] / 2


def test_arrays_of_every_framework_will_do():
    for x, y in (
        (np.arange(3.0), np.zeros(3)),
        (torch.arange(3.0), torch.zeros(3)),
        (jnp.arange(3.0), torch.zeros(3)),
        (paddle.arange(3.0), np.zeros(3, np.float32)),
    ):
        nb.launch(squares, 3, inputs=[x], outputs=[y, 3])
        assert np.asarray(y).tolist() == [0.0, 1.0, 4.0]


def test_what_is_no_array_or_has_another_dtype_is_refused():
    with pytest.raises(nb.NumbridgeTypeError, match="'x'"):
        nb.launch(squares, 3, inputs=[2.0], outputs=[np.zeros(3), 3])
    with pytest.raises(nb.NumbridgeTypeError, match=r"'x'.*float64"):
        nb.launch(halves, 3, inputs=[np.ones(3, np.float32)], outputs=[np.zeros(3)])
