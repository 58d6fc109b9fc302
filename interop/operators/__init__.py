"""Kernels as operators of frameworks with autograd: what goes in and comes out, and derivatives of every order.

What all have in common names no framework; the modules of one framework import no other's. Nothing is recorded on a tape: the
framework records. Operators of JAX have a folder of their own, `numbridge.jax_ffi`.
"""
