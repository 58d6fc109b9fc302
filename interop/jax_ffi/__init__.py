"""Kernels inside JAX: compiled XLA handlers, the primitives that call them, and what users build from it.

`call_frame_layout` is XLA's binary interface, `words_layout` numbridge's own; `compiled` answers a call frame on the CPU,
`cuda_compiled` on CUDA, and `targets` registers them; `plan` decides pure facts (types, dims), `derivative` the same for
derivatives; `primitive` tells JAX, with `differentiation` and `sharding`; `kernel_call`, `callable` and `callback` are the public
faces. Nothing here imports JAX with the module.
"""
