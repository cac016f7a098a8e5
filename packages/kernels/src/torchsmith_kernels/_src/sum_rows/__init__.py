"""Sums of rows by index: an index is sorted once, and any number of sums go by that order.

Comes in: an index, and rows of numbers. Goes out: for each row of a table, the sum of those that
the index says belong there, in the order of the index. Read ``run.py`` first.
"""
