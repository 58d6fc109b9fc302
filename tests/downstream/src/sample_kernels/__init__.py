"""What the package offers: smoothing on arrays of any framework, as an operator of PyTorch, and as a function of JAX."""

from sample_kernels.operators import jax_smooth, smooth, torch_smooth

__all__ = ["jax_smooth", "smooth", "torch_smooth"]
