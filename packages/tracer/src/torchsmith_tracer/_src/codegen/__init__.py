"""From a finished trace to code that runs: the body, and the pieces around a graph break.

In: what the interpreter returned (a value, or a break with its chain of frames), the journal, the
graph. Out: a body function (readable Python source, registered in ``linecache``) and, for breaks,
step and resume functions assembled from the user's own bytecode.
Read ``../emitter.py`` (the ``cg`` object that values reconstruct themselves with), then
``body.py``, then ``resume.py``.
"""
