"""What comparing two runs of a program takes: ``torchsmith.testing`` and ``torchsmith.same``.

In come two results, out comes a verdict leaf by leaf (``same.py``); inputs and random state that
both runs see alike are made in ``clones.py``.
"""
