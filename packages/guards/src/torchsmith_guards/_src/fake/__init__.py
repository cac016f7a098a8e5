"""Fake tensors: tensors with metadata and no data, on which operators run while tracing.

In: real tensors with their sources. Out: fake ones, with symbolic sizes where asked for. This
folder is the single adapter to ``torch._subclasses``; read ``mode.py``.
"""
