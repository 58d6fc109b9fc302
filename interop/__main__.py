"""``python -m numbridge``: the command line of `numbridge.command_line`."""

from __future__ import annotations

import sys

from numbridge.command_line.app import main

if __name__ == "__main__":
    sys.exit(main())
