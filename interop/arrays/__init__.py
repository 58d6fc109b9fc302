"""`Array`: what one is made from, its values, views and gradient, and the protocols by which others read it.

Imports no framework: what must be asked of one is asked through `numbridge.bridges.bridge`. Nothing is recorded here, and nothing
differentiated.
"""
