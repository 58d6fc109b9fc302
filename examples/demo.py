"""One kernel, written once, on the tensors of every framework; then who shares memory with whom.

The first table launches the same kernel on NumPy, PyTorch, Paddle and JAX tensors, straight in. The second is that of
`numbridge matrix`: an array of every dtype goes from each framework to each other one, and equal pointers mean zero-copy.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import numbridge as nb
from numbridge.command_line import pairs
from numbridge.command_line.timing import median_microseconds

warnings.filterwarnings("ignore")
os.environ.setdefault("JAX_PLATFORMS", "cpu")


@nb.kernel
def saxpy(x, y, a):
    i = nb.tid()
    y[i] = a * x[i] + y[i]


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
        time = median_microseconds(lambda x=x, y=y: nb.launch(saxpy, n, [x, y, 0.0]))
        table.add_row(name, f"{before:g}", f"{after:g}", f"{time:.2f} us")
    console.print(table)
    try:
        nb.launch(saxpy, n, inputs=[np.ones(n, np.float32), jnp.ones(n), 2.0])
    except nb.NumbridgeError as error:
        console.print(f"Writing to a JAX array is refused: [italic]{escape(str(error))}[/italic]\n")


def main() -> None:
    """Run both parts."""
    console = Console(width=max(110, Console().width))
    launches(console)
    names, missing = pairs.usable()
    found = pairs.measure(names)
    report = pairs.report(found, missing, "cpu")
    pairs.show(console, report, found)
    if not report["zero_copy"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
