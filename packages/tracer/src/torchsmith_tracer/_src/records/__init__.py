"""What the tracer tells about each frame that it compiles.

In: the record of a code object and the entry that a compile has made of it. Out: the fields of a
``FrameRecord`` of ``torchsmith_guards.records``. Read ``frames.py``.
"""
