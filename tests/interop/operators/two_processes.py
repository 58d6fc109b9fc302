"""Checks of operators on DTensors, run by `test_torch_sharding` in two processes at once: ``two_processes.py RANK FILE``.

Prints ``ok NAME`` after each check that holds, and the traceback of each that does not, in both processes.
"""

from __future__ import annotations

import math
import sys
import traceback

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import numbridge as nb

WHOLE, ROWS, COLUMNS = Replicate(), Shard(0), Shard(1)


@nb.kernel
def gated(x: nb.array2d[float], w: nb.array[float], y: nb.array2d[float]):
    i, j = nb.tid()
    y[i, j] = x[i, j] * math.tanh(w[j] * x[i, j])


@nb.kernel
def product(a: nb.array2d[float], b: nb.array2d[float], c: nb.array2d[float]):
    i, j = nb.tid()
    s = 0.0
    for k in range(a.shape[1]):
        s += a[i, k] * b[k, j]
    c[i, j] = s


@nb.kernel
def two(x: nb.array[float], s: float, y: nb.array[float], z: nb.array[float]):
    i = nb.tid()
    y[i] = s * x[i] * x[i]
    z[i] = math.sin(x[i])


@nb.kernel
def differences(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] - x[(i + 1) % x.shape[0]]


@nb.kernel
def doubled(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = 2.0 * x[i]


@nb.kernel
def lengths(x: nb.array[nb.vec3], y: nb.array[float]):
    i = nb.tid()
    y[i] = nb.length(x[i])


def rows_by_columns(a, b):
    return a.shape[0], b.shape[1]


gate = nb.torch_op(gated, outputs="y")
matmul = nb.torch_op(product, outputs="c", launch_dims=rows_by_columns, output_dims=rows_by_columns)
both = nb.torch_op(two, outputs=["y", "z"])


def cut(mesh, tensor, *placements):
    return distribute_tensor(tensor, mesh, placements).requires_grad_(tensor.is_floating_point())


def twin(x, w):
    return x * torch.tanh(w * x)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def agree(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(whole(one), other)


def check_what_an_index_selects_along_is_cut(mesh):
    # Shards of four rows and of three
    values, weights, by = torch.randn(7, 4), torch.randn(4), torch.randn(7, 4)
    there = [values.clone().requires_grad_(), weights.clone().requires_grad_()]
    twin(*there).backward(by)
    results = {(ROWS, WHOLE): ROWS, (ROWS, ROWS): ROWS, (COLUMNS, ROWS): COLUMNS, (WHOLE, WHOLE): WHOLE}
    for (of_x, of_w), result in results.items():
        here = [cut(mesh, values, of_x), cut(mesh, weights, of_w)]
        made = gate(*here)
        assert made.placements == (result,)
        made.backward(cut(mesh, by, result))
        agree([made, here[0].grad, here[1].grad], [twin(values, weights), there[0].grad, there[1].grad])
        assert here[1].grad.placements == ({ROWS: Partial(), COLUMNS: ROWS, WHOLE: WHOLE}[result],)


def check_which_gradients_are_wanted_is_no_other_call_s(mesh):
    values, weights = torch.randn(6, 4), torch.randn(4)
    there = [values.clone().requires_grad_(), weights.clone().requires_grad_()]
    twin(*there).sum().backward()
    for wanted in [(True, False), (False, True), (True, True)]:
        here = [
            cut(mesh, v, ROWS if v.ndim == 2 else WHOLE).requires_grad_(w)
            for v, w in zip((values, weights), wanted, strict=True)
        ]
        gate(*here).sum().backward()
        for one, other, want in zip(here, there, wanted, strict=True):
            assert (one.grad is not None) == want
            if want:
                agree([one.grad], [other.grad])


def check_a_product_of_matrices_is_cut_along_rows_or_columns(mesh):
    a, b = torch.randn(6, 5), torch.randn(5, 8)
    there = [a.clone().requires_grad_(), b.clone().requires_grad_()]
    (there[0] @ there[1]).sum().backward()
    results = {(ROWS, WHOLE): ROWS, (WHOLE, COLUMNS): COLUMNS, (WHOLE, ROWS): WHOLE, (COLUMNS, ROWS): WHOLE}
    for (of_a, of_b), result in results.items():
        here = [cut(mesh, a, of_a), cut(mesh, b, of_b)]
        made = matmul(*here)
        assert made.placements == (result,)
        made.sum().backward()
        agree([made, here[0].grad, here[1].grad], [a @ b, there[0].grad, there[1].grad])


def check_what_reads_its_neighbours_runs_whole(mesh):
    op = nb.torch_op(differences, outputs="y", name="whole")
    given = torch.randn(8)
    made = op(cut(mesh, given, ROWS))
    assert made.placements == (WHOLE,)
    agree([made], [given - given.roll(-1)])


def check_dims_that_are_not_those_of_shards_are_not_cut(mesh):
    given = torch.randn(8)
    for dims in (8, lambda x: 8, lambda x: max(x.shape[0], 5)):
        made = nb.torch_op(doubled, outputs="y", launch_dims=dims, output_dims=dims, name="fixed")(
            cut(mesh, given, ROWS)
        )
        assert made.placements == (WHOLE,)
        agree([made], [2 * given])
    of_x = nb.torch_op(doubled, outputs="y", launch_dims=lambda x: x.shape[0], name="of_x")(cut(mesh, given, ROWS))
    assert of_x.placements == (ROWS,)


def check_numbers_as_tensors_and_outputs_that_nothing_depends_on(mesh):
    given, scale = torch.randn(5), torch.tensor(3.0)
    x, s = cut(mesh, given, ROWS), cut(mesh, scale, WHOLE)
    squares, _ = both(x, s)
    squares.sum().backward()
    agree([squares, x.grad, s.grad], [3 * given**2, 6 * given, (given**2).sum()])
    x = cut(mesh, given, ROWS)
    squares, sines = both(x, 3.0)
    (first,) = torch.autograd.grad(squares.sum() + sines.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    agree([first, second], [6 * given + given.cos(), 6 - given.sin()])


def check_vectors_are_cut_along_their_array_alone(mesh):
    op, given = nb.torch_op(lengths, outputs="y"), torch.randn(6, 3)
    for placement, result in ((ROWS, ROWS), (COLUMNS, WHOLE)):
        x = cut(mesh, given, placement)
        made = op(x)
        assert made.placements == (result,)
        made.sum().backward()
        agree([made, x.grad], [given.norm(dim=1), given / given.norm(dim=1, keepdim=True)])


def check_shards_without_elements(mesh):
    given = torch.randn(1)
    x = cut(mesh, given, ROWS)
    made, _ = both(x, 2.0)
    made.sum().backward()
    agree([made, x.grad], [2 * given**2, 4 * given])


def check_models_of_torch_s_parallel_layers(mesh):
    class Gate(torch.nn.Module):
        def __init__(self, weights):
            super().__init__()
            self.w = torch.nn.Parameter(weights)

        def forward(self, x):
            return gate(x, self.w)

    def model(weights):
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(4, 12), Gate(weights), torch.nn.Linear(12, 1))

    weights, x = torch.linspace(-1, 1, 12), torch.randn(5, 4)
    plain, parallel = model(weights), model(distribute_tensor(weights, mesh, [ROWS]))
    layers = {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel()}
    parallelize_module(parallel, mesh, layers)
    for one in (plain, parallel):
        one(x).square().sum().backward()
    agree([p.grad for p in parallel.parameters()], [p.grad for p in plain.parameters()])


def check_graphs_of_torch_compile(mesh):
    values, weights = torch.randn(6, 4), torch.randn(4)
    here = [cut(mesh, values, ROWS), cut(mesh, weights, WHOLE)]
    # That nobody has called before
    op = nb.torch_op(gated, outputs="y", name="within_a_graph")
    made = torch.compile(lambda x, w: 2 * op(x, w), fullgraph=True, backend="aot_eager")(*here)
    made.sum().backward()
    assert made.placements == (ROWS,)
    there = [values.clone().requires_grad_(), weights.clone().requires_grad_()]
    (2 * twin(*there)).sum().backward()
    agree([here[0].grad, here[1].grad], [there[0].grad, there[1].grad])


def check_what_is_changed_in_place_is_refused(mesh):
    op, x = nb.torch_op(doubled), distribute_tensor(torch.ones(4), mesh, [ROWS])
    with pytest.raises(nb.BufferAccessError, match=r"changes y in place, and a DTensor's shards .*x\.to_local\(\)"):
        op(x, x)
    with pytest.raises(nb.BufferAccessError, match="a DTensor decides itself what its memory means"):
        nb.launch(doubled, 4, [x, torch.ones(4)])


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}


if __name__ == "__main__":
    rank, meeting = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{meeting}")
    line = init_device_mesh("cpu", (2,))
    for name, check in CHECKS.items():
        torch.manual_seed(0)
        try:
            check(line)
        except Exception:  # noqa: BLE001 - the next check runs all the same
            print(f"failed {name}\n{traceback.format_exc()}", flush=True)
        else:
            print(f"ok {name}", flush=True)
    dist.destroy_process_group()
