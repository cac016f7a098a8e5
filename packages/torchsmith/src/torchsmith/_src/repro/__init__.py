"""What finds out where a compiled program goes wrong.

In comes a graph or a program, out comes the stage at fault and a small file that fails alone. Read
``judge.py`` first (is what a backend made of a graph right?), then ``reduce.py`` and ``stages.py``;
``watch.py`` is where compiling a program meets them, ``minify.py`` where the command line does.
"""
