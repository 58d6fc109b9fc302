"""Kernels inside JAX: compiled XLA handlers, the primitive that calls them, and what users build from it.

`call_frame_layout` is XLA's binary interface, `words_layout` numbridge's own; `compiled` answers a call frame natively and
`targets` registers it; `plan` decides pure facts (types, dims) and `primitive` tells JAX; `kernel_call`, `callable`
and `callback` are the public faces. Nothing here imports JAX with the module.
"""
