"""Tracing: run Python code under a dispatch mode and record the operators as an fx graph.

In: a callable and example inputs. Out: a graph module of primitive operators (``make_fx``). Read
``make_fx.py``, then ``mode.py``; ``rules/`` are the decompositions, ``meta.py`` the quick layout
rules, ``torch_private.py`` the adapter to private torch names.
"""
