"""Turns what scheduling decided into text: kernels as C (``c``) or Triton (``triton``), and plans
as Python (``wrapper.py``).

The two kernel printers read the same loop IR and have files of the same names. Nothing here runs or
compiles anything; that is the runtime's part.
"""
