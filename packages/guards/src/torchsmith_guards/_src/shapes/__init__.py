"""Symbolic sizes: expressions, their ranges, and the environment that decides about them.

In: sizes, strides and ints of inputs. Out: ``torch.SymInt`` values that record guards when the
program branches on them. Read ``nodes.py``, ``expr.py``, ``env.py``, ``sym_node.py``.
"""
