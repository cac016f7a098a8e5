"""What a compiled graph runs, as plain data for reports.

In: a plan with the functional graph that it was made from (``summary.py``). Out: steps with what
they read, write, compute and hold, kernels, and what the device could do (``roof.py``). A compiled
graph has it as its attribute ``schedules`` (``parts.py``), which tracers may ask for. Numbers are
counted, not measured.
"""
