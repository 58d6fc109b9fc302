"""From arrays of others to ours and back, without a copy: a room for each framework, DLPack, and conversions between any two.

A framework is imported by its own room alone, within functions, and no room imports another; all fill in the interface of
`bridge`. Nothing here launches a kernel.
"""
