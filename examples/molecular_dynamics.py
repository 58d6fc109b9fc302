"""Finds the depth and the size of a Lennard-Jones potential from where its particles went.

The forces are the gradient of the potential, by `nb.grad` within a kernel; velocity Verlet carries 27 particles through time. The
launches are recorded on a tape, which differentiates the whole simulation, the gradient in its kernels included: by the two
parameters of the potential, for SciPy's L-BFGS-B.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

import numbridge as nb

SIDE, SPACING = 3, 1.15
PARTICLES, STEPS, DT = SIDE**3, 60, 0.01
TRUE = np.array([1.3, 1.05])  # depth and size of the potential by which the particles were moved
GUESS = np.array([0.6, 0.9])
BOUNDS = [(0.1, 3.0), (0.7, 1.2)]


@nb.func
def pair_energy(a: nb.vec3d, b: nb.vec3d, depth: float, size: float):
    s = (size * size / nb.length_sq(a - b)) ** 3
    return 4.0 * depth * (s * s - s)


@nb.kernel
def forces(x: nb.array[nb.vec3d], potential: nb.array[np.float64], f: nb.array[nb.vec3d]):
    i = nb.tid()
    total = nb.vec3d()
    for j in range(x.shape[0]):
        if j != i:
            by_a, _, _, _ = nb.grad(pair_energy)(x[i], x[j], potential[0], potential[1])
            total -= by_a
    f[i] = total


@nb.kernel
def kick_and_drift(
    x: nb.array[nb.vec3d],
    v: nb.array[nb.vec3d],
    f: nb.array[nb.vec3d],
    dt: np.float64,
    v_half: nb.array[nb.vec3d],
    x_next: nb.array[nb.vec3d],
):
    i = nb.tid()
    half = v[i] + f[i] * (0.5 * dt)
    v_half[i] = half
    x_next[i] = x[i] + half * dt


@nb.kernel
def kick(v_half: nb.array[nb.vec3d], f: nb.array[nb.vec3d], dt: np.float64, v: nb.array[nb.vec3d]):
    i = nb.tid()
    v[i] = v_half[i] + f[i] * (0.5 * dt)


@nb.kernel
def mechanical_energy(
    x: nb.array[nb.vec3d], v: nb.array[nb.vec3d], potential: nb.array[np.float64], total: nb.array[np.float64]
):
    i = nb.tid()
    energy = 0.5 * nb.length_sq(v[i])
    for j in range(i):
        energy += pair_energy(x[i], x[j], potential[0], potential[1])
    nb.atomic_add(total, 0, energy)


@nb.kernel
def squared_distance(x: nb.array[nb.vec3d], observed: nb.array[nb.vec3d], total: nb.array[np.float64]):
    i = nb.tid()
    nb.atomic_add(total, 0, nb.length_sq(x[i] - observed[i]))


def vectors(values: np.ndarray | None = None) -> nb.Array:
    """Return an array of vectors with a gradient, one for each particle; zeros if there are no `values`."""
    given = np.zeros((PARTICLES, 3)) if values is None else values
    return nb.array(given, dtype=nb.vec3d, requires_grad=True)


def simulate(potential: nb.Array) -> tuple[nb.Array, nb.Array, float]:
    """Return the last positions and velocities, and the largest relative change of the energy on the way.

    Each step writes to arrays of its own: a tape goes back through what a simulation was, not through what it is now.
    """
    generator = np.random.default_rng(5)
    lattice = np.stack(np.meshgrid(*[np.arange(SIDE)] * 3), axis=-1).reshape(-1, 3) * SPACING
    x, v, f = vectors(lattice), vectors(generator.normal(scale=0.3, size=(PARTICLES, 3))), vectors()
    nb.launch(forces, PARTICLES, [x, potential], [f])
    first, drift = energy(x, v, potential), 0.0
    for _ in range(STEPS):
        v_half, x_next, f_next, v_next = (vectors() for _ in range(4))
        nb.launch(kick_and_drift, PARTICLES, [x, v, f, DT], [v_half, x_next])
        nb.launch(forces, PARTICLES, [x_next, potential], [f_next])
        nb.launch(kick, PARTICLES, [v_half, f_next, DT], [v_next])
        x, v, f = x_next, v_next, f_next
        drift = max(drift, abs(energy(x, v, potential) / first - 1.0))
    return x, v, drift


def energy(x: nb.Array, v: nb.Array, potential: nb.Array) -> float:
    """Return what must stay the same."""
    total = nb.zeros(1, dtype=np.float64)
    nb.launch(mechanical_energy, PARTICLES, [x, v, potential], [total], record_tape=False)
    return float(total.numpy()[0])


def loss_and_gradient(parameters: np.ndarray, observed: nb.Array) -> tuple[float, np.ndarray]:
    """Return how far the particles end from where they were observed, squared, and its gradient by the parameters."""
    potential = nb.array(parameters, dtype=np.float64, requires_grad=True)
    total = nb.zeros(1, dtype=np.float64, requires_grad=True)
    with nb.Tape() as tape:
        x, _, _ = simulate(potential)
        nb.launch(squared_distance, PARTICLES, [x, observed], [total])
    tape.backward(loss=total)
    return float(total.numpy()[0]), potential.grad.numpy().copy()


def main() -> None:
    observed, _, drift = simulate(nb.array(TRUE, dtype=np.float64))
    print(f"{PARTICLES} particles, {STEPS} steps; the energy changes by at most {drift:.1e} of itself")
    assert drift < 1e-3

    loss, gradient = loss_and_gradient(GUESS, observed)
    steps = 1e-6 * np.eye(2)
    differences = [
        (loss_and_gradient(GUESS + step, observed)[0] - loss_and_gradient(GUESS - step, observed)[0]) / 2e-6
        for step in steps
    ]
    print(f"at the guess the loss is {loss:.3f}, its gradient {gradient}, and by differences {np.array(differences)}")
    assert np.allclose(gradient, differences, rtol=1e-5)

    found = minimize(loss_and_gradient, GUESS, args=(observed,), jac=True, method="L-BFGS-B", bounds=BOUNDS, tol=1e-14)
    print(f"depth and size after {found.nfev} simulations: {found.x}, where {TRUE} was wanted")
    assert np.allclose(found.x, TRUE, rtol=1e-3)


if __name__ == "__main__":
    main()
