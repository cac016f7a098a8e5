"""What the compilers did, as data: one record for each compiled frame and each graph.

In: what the stages report while they work (``recorder.py``). Out: a ring buffer with counters and
times (``metrics.py``), JSON lines in a folder (``trace_file.py``), tables (``tables.py``). Read
``rows.py`` first; nothing but ``recorder.py`` knows torch.
"""
