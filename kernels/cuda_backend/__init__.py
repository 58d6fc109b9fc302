"""The CUDA back end: the kernel around a body, cubins, the driver, and memory and streams of a launch."""
