"""The command line, ``python -m numbridge``: what this installation is, whether it works, and how fast it is.

Only this room imports rich and typer, and the peers that `bench` compares with. Nothing else of numbridge imports this room.
"""
