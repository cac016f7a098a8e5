"""Symbolic values: one class for each family of Python objects, one method for each slot.

In: real objects (through the builder) and results of traced operations. Out: values that the
interpreter computes with and the code generator rebuilds. Read ``base.py`` first.
"""
