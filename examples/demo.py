"""One kernel, written once, on the tensors of every framework; then who shares memory with whom.

The first table launches the same kernel on NumPy, PyTorch, Paddle and JAX tensors, straight in. The second converts an array
of every dtype from each framework to each other one and looks at the pointer: equal means zero-copy.
"""

from __future__ import annotations

import os
import time
import warnings

import numpy as np
from rich.console import Console
from rich.table import Table

import numbridge as nb

warnings.filterwarnings("ignore")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

FRAMEWORKS = ("numbridge", "numpy", "torch", "paddle", "jax")
DTYPES = (
    *(
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    ),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"),
)


@nb.kernel
def saxpy(x, y, a):
    i = nb.tid()
    y[i] = a * x[i] + y[i]


def pointer(x: object) -> int:
    """Return where the memory of a tensor of any framework starts."""
    return nb.explain(x).ptr


def median_time(run: object, count: int = 200) -> float:
    """Return the median time of a call in microseconds."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()  # type: ignore[operator]
        times.append(time.perf_counter() - start)
    return sorted(times)[count // 2] * 1e6


def launches(console: Console) -> None:
    """Launch one kernel on every framework's tensors."""
    import jax.numpy as jnp
    import paddle
    import torch

    n = 1000
    makers = {
        "numpy": (np.ones(n, np.float32), np.ones(n, np.float32)),
        "torch": (torch.ones(n), torch.ones(n)),
        "paddle": (paddle.ones([n]), paddle.ones([n])),
        "jax in, numpy out": (jnp.ones(n), np.ones(n, np.float32)),
        "numbridge": (nb.ones(n), nb.ones(n)),
    }
    table = Table("x and y", "y[0] before", "y[0] after", "time of a launch", title="y = 2 x + y, one kernel")
    for name, (x, y) in makers.items():
        before = float(y[0])
        nb.launch(saxpy, n, inputs=[x, y, 2.0])
        after = float(y[0])
        table.add_row(
            name,
            f"{before:g}",
            f"{after:g}",
            f"{median_time(lambda x=x, y=y: nb.launch(saxpy, n, [x, y, 0.0])):.2f} us",
        )
    console.print(table)
    try:
        nb.launch(saxpy, n, inputs=[np.ones(n, np.float32), jnp.ones(n), 2.0])
    except nb.NumbridgeError as error:
        console.print(f"Writing to a JAX array is refused: [italic]{error}[/italic]\n")


def convert_pair(dtype: str, source: str, target: str) -> tuple[str, str]:
    """Convert an array from one framework to another; return (outcome, detail)."""
    base = nb.zeros(64, dtype=getattr(nb, dtype))
    try:
        x = nb.convert(base, source)
    except nb.NumbridgeError:
        return "lacks", source
    try:
        y = nb.convert(x, target)
    except nb.ConversionError:
        return "lacks", target
    if pointer(x) != pointer(y):
        return "copied", ""
    return "shared", f"{median_time(lambda: nb.convert(x, target), 50):.2f}"


def pairs(console: Console) -> bool:
    """Print the table of framework pairs; return whether every expressible one shares memory."""
    import jax

    jax.config.update("jax_enable_x64", True)
    table = Table("from \\ to", *FRAMEWORKS, title="zero-copy dtypes, and the time of a conversion (float32)")
    all_shared = True
    missing: dict[str, set[str]] = {}
    for source in FRAMEWORKS:
        cells = []
        for target in FRAMEWORKS:
            outcomes = {dtype: convert_pair(dtype, source, target) for dtype in DTYPES}
            shared = sum(outcome == "shared" for outcome, _ in outcomes.values())
            copied = [dtype for dtype, (outcome, _) in outcomes.items() if outcome == "copied"]
            for dtype, (outcome, detail) in outcomes.items():
                if outcome == "lacks":
                    missing.setdefault(detail, set()).add(dtype)
            all_shared &= not copied
            lacks = len(DTYPES) - shared - len(copied)
            text = f"{shared} of {len(DTYPES) - lacks} shared"
            cells.append(text + (f"\n{outcomes['float32'][1]} us" if outcomes["float32"][1] else ""))
        table.add_row(source, *cells)
    console.print(table)
    for name, dtypes in missing.items():
        console.print(f"{name} has no {', '.join(sorted(dtypes))}")
    console.print(
        "every pair and dtype that both sides have is zero-copy" if all_shared else "NOT everything was shared"
    )
    return all_shared


def main() -> None:
    """Run both parts."""
    console = Console(width=max(110, Console().width))
    launches(console)
    if not pairs(console):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
