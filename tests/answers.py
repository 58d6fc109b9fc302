"""Programs to which another system gives a wrong answer: what is true, what is answered, and what is documented.

``python tests/answers.py`` runs them all and writes docs/benchmarks/answers.json, from which the documentation has its page;
`test_answers` runs them again. The documentation of Warp that is meant is the user guide of its repository (1.17 development
version), since the answers are those of an installed version that is newer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import answers_exchange
import answers_numbridge
import answers_warp
from numbridge.command_line.comparison import facts
from numbridge.kernels.errors import NumbridgeError

__all__ = ["CASES", "FILE", "Case", "answer"]

FILE = Path(__file__).parents[1] / "docs" / "benchmarks" / "answers.json"

LOOPS = (
    "Documented as a limitation: dynamic loops are not replayed in the backward pass. Static loops of at most `max_unroll` (16) "
    "trips are right. Nothing warns."
)
OVERWRITES = "Documented as a limitation; `wp.config.verify_autograd_array_access` finds it on request."
WRITES = "The user guide does not speak of read-only or immutable memory."
VMAP = (
    "The user guide says that batching is handled automatically. The batch is merged with the kernel's first dimension, which "
    'suits kernels that only look at their own element; `vmap_method="sequential"` is right here.'
)
NEGATED = "torch exports the memory as it is: `numpy.from_dlpack` reads the same wrong numbers."
DLPACK = "torch.from_dlpack of the JAX array itself stores as well: torch has no read-only tensors."


@dataclass(frozen=True)
class Case:
    """A program, named as its functions are.

    Attributes
    ----------
    name : str
        The function's name in ``answers_numbridge`` and in the peer's module.
    system : str
        Who answers wrongly.
    question : str
        What the program asks.
    truth : object
        The right answer.
    documented : str
        What the system's documentation says of it.
    """

    name: str
    system: str
    question: str
    truth: Any
    documented: str

    @property
    def theirs(self) -> Callable[[], Any]:
        return getattr(answers_warp if self.system == "Warp" else answers_exchange, self.name)

    @property
    def ours(self) -> Callable[[], Any]:
        return getattr(answers_numbridge, self.name)


def newton_of(a: float) -> float:
    """Return the derivative of Newton's iterate itself, by the rule for each step."""
    x, by_a = 1.0, 0.0
    while abs(x * x - a) > 1e-5:
        x, by_a = 0.5 * (x + a / x), 0.5 * (by_a + 1 / x - a / x**2 * by_a)
    return by_a


def sines(x: float, times: int) -> float:
    """Return the derivative of the sine, applied to itself `times` times."""
    found = 1.0
    for _ in range(times):
        found, x = found * math.cos(x), math.sin(x)
    return found


CASES = (
    Case("product_in_a_loop", "Warp", "gradient of x0 x1 x2, multiplied in a loop, at (2, 3, 4)", [12, 8, 6], LOOPS),
    Case("sine_of_sine", "Warp", "derivative of the sine applied 17 times, at 1", [sines(1.0, 17)], LOOPS),
    Case(
        "newton",
        "Warp",
        "derivative of a square root by Newton's method in a while loop, at 2",
        [newton_of(2.0)],
        LOOPS,
    ),
    Case("index_that_advances", "Warp", "gradient of a sum of squares along a chain of indices", [4, 6, 8], LOOPS),
    Case("square_in_place", "Warp", "derivative of y = y y in place, at 3", [6], OVERWRITES),
    Case(
        "input_overwritten_later", "Warp", "derivative of x x at 3, where a later launch adds 1 to x", [6], OVERWRITES
    ),
    Case(
        "force_of_a_potential",
        "Warp",
        "derivative of a force that is the gradient of the potential x x x within a kernel, at 1",
        [6],
        "The reference of `wp.grad` says that it takes no part in automatic differentiation, and so does a warning when the "
        "kernel is compiled.",
    ),
    Case(
        "value_of_an_atomic",
        "Warp",
        "gradient of the value that an atomic addition returns, one thread after another",
        [1, 0],
        "Documented for a returned index, with a custom replay function as the way out.",
    ),
    Case(
        "function_of_torch",
        "Warp",
        "gradient of a sum of squares at (1, 2, 3), by a function of torch's autograd",
        [2, 4, 6],
        "The user guide has such a function. It returns the gradient that the conversion has made the tensor's `.grad`, and "
        "torch adds that to itself. Adam, with which the guide's example goes on, does not see a factor of two.",
    ),
    Case("read_only_memory", "Warp", "a read-only NumPy array of ones after a launch that stores", [1, 1, 1], WRITES),
    Case("immutable_array", "Warp", "a JAX array of ones after a launch that stores", [1, 1, 1], WRITES),
    Case(
        "input_of_a_jit",
        "Warp",
        "a JAX array of ones after a jitted kernel that stores into its input",
        [1, 1, 1],
        WRITES,
    ),
    Case(
        "two_dimensions_for_one",
        "Warp",
        "what a kernel on a 1-d array stores into a 2-d one: there is no right answer but an error",
        "an error",
        "A Warp array of another rank is refused; an array of NumPy or torch, passed as it is, is not.",
    ),
    Case(
        "negative_bit",
        "Warp",
        "a torch tensor that is negated lazily, read",
        [-2, 1],
        f"{NEGATED} Passed directly to a launch of Warp's, the tensor is refused by torch.",
    ),
    Case(
        "number_that_does_not_fit",
        "Warp",
        "the int32 that 2**32 + 5 becomes",
        "an error",
        "A float for an int is refused.",
    ),
    Case("prefix_sum_under_vmap", "Warp", "prefix sums of two rows of ones", [[1, 2, 3], [1, 2, 3]], VMAP),
    Case("shape_under_vmap", "Warp", "the length of each of two rows, asked in the kernel", [[3] * 3, [3] * 3], VMAP),
    Case("tables_under_vmap", "Warp", "entries 2 and 0 of two tables", [[3, 1], [30, 10]], VMAP),
    Case(
        "negative_bit_through_tvm_ffi",
        "tvm-ffi",
        "a torch tensor that is negated lazily, passed on",
        [-2, 1],
        "Not mentioned.",
    ),
    Case(
        "immutable_array_through_tvm_ffi", "tvm-ffi", "a JAX array of ones after a consumer stores", [1, 1, 1], DLPACK
    ),
)


def answer(program: Callable[[], Any]) -> Any:
    """Return what a program answers; an error's first line if numbridge refuses."""
    try:
        return program()
    except NumbridgeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def main() -> None:
    """Run every program and write what was answered."""
    found = facts([], {}, 1)
    found["rows"] = [
        {
            "name": case.name,
            "system": case.system,
            "question": case.question,
            "truth": case.truth,
            "theirs": answer(case.theirs),
            "ours": answer(case.ours),
            "documented": case.documented,
        }
        for case in CASES
    ]
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
