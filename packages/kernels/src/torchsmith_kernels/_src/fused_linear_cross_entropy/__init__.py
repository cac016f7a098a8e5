"""A linear layer and cross entropy in one, whose logits never exist all at once.

``plan`` decides how many rows are computed at a time, ``run`` goes through them, ``kernel`` turns a
chunk of logits into its gradient, ``reference`` is the meaning in plain PyTorch, ``op`` the
registered operators, ``functional`` the public function. Read ``run.py`` first.
"""
