"""What happened while compiling, shown: as text, as plain data, and as one page of HTML.

In: the reports of ``breaks`` with the details that ``explain`` asks for, or a folder of traces.
Out: ``Explanation``, whose ``save`` writes a page that needs nothing but a browser. ``model.py``
makes the plain data that a page shows, ``source.py`` says what became of each of the user's lines,
``templates/`` has the page itself. Read ``model.py`` first.
"""
