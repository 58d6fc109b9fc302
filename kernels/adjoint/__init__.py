"""Derivatives of kernels: a typed IR, reverse and forward mode, and the kernels that they become."""
