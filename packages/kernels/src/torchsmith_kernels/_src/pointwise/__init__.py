"""What ops that work element by element share: layouts, tiles, activations and random numbers.

``layout`` decides how tensors are walked (flat, or as rows at a distance), ``config`` cuts that
into tiles, ``kernel`` has the device functions, ``random`` draws and defines the random words of
dropout. Read ``layout.py`` first.
"""
