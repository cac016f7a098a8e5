"""Symbolic sizes: expressions, their ranges, and the environment that decides about them.

In: sizes, strides and ints of inputs. Out: ``torch.SymInt`` values that record guards when the
program branches on them. Read ``expr.py``, then ``env.py``, then ``node.py``.
"""
