"""Runs PTX on the CPU, so that what was compiled for CUDA can be tested where there is no GPU.

`program` reads PTX, `instructions`, `meeting_instructions` and `functions` translate it to LLVM IR, and `execution` runs a
grid of it. Where threads wait for each other, `scheduling` runs them by turns, each as one of the `fibers`, and `meetings`
tells what they find out.
"""
