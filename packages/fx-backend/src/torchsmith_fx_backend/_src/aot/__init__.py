"""Functional graphs: from a captured graph with writes and aliases to one without.

In: a graph module and example inputs. Out: ``FunctionalGraph``, a flat graph of primitive operators
whose only writes are final ``copy_`` nodes. Read ``functionalize.py`` for the whole,
``functional.py`` for the recording mode, ``views.py`` for what a view is, and ``frame.py`` for how
the compiled graph is called in the end.
"""
