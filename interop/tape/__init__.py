"""The tape: launches, copies and fills that are recorded while they run, and how gradients go back through them.

Imports no framework: tensors are arrays here, and whose gradient is whose is asked through `numbridge.bridges.bridge`. How one
kernel is differentiated is said in `numbridge.kernels.adjoint`.
"""
