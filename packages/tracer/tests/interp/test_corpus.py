"""Every function of the corpus gives in the interpreter what it gives in CPython."""

from __future__ import annotations

import corpus_language
import corpus_library
import corpus_objects
import pytest
from interp_harness import check

CASES = corpus_language.CASES + corpus_library.CASES + corpus_objects.CASES


@pytest.mark.parametrize(("fn", "args"), CASES, ids=[fn.__name__ for fn, _ in CASES])
def test_same_as_cpython(fn, args):
    check(fn, *args)
