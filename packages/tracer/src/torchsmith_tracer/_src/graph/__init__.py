"""The fx graph under construction.

In: values (through ``call_function``/``call_method``) and real inputs with their fakes. Out: an
``fx.GraphModule`` plus its inputs' sources. Read ``output.py`` first, then ``fakes.py``.
"""
