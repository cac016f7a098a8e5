"""Layout rules against torch's fake mode and against the real operators."""

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from layout_cases import LAYOUTS, WHOLE_CALLS, WITH_SETTINGS, overload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map
from torchsmith_guards import FakeMode
from torchsmith_guards._src.fake.layouts import entry_of

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)


def described(value):
    """Containers and metadata of a result."""
    if isinstance(value, torch.Tensor):
        return (
            tuple(value.shape),
            value.stride(),
            value.dtype,
            value.device,
            value.storage_offset(),
        )
    if isinstance(value, list | tuple):
        return ("list" if isinstance(value, list) else "tuple", [described(v) for v in value])
    return value


def run(func, args, kwargs):
    try:
        with torch.no_grad():
            return described(func(*args, **kwargs))
    except (RuntimeError, IndexError, NotImplementedError, ValueError, TypeError):
        return None


def faked(mode, convert, args, kwargs):
    with mode:
        return tree_map(lambda a: convert(a) if isinstance(a, torch.Tensor) else a, (args, kwargs))


def compare(name, call):
    """Run one call by rule, by torch's fake mode and for real.

    Eager decides: where torch's fake mode differs from it (axes of one, empty tensors), the rule
    follows eager. None when the rule has no answer, else a list of complaints.
    """
    func = overload(name)
    try:
        args, kwargs = call()
    except (RuntimeError, IndexError):
        return None
    mode = FakeMode()
    ours, our_kwargs = faked(mode.mode, mode.fakeify, args, kwargs)
    if entry_of(func).rule(*ours, **our_kwargs) is None:
        return None
    peer = FakeTensorMode(allow_non_fake_inputs=True)
    theirs, their_kwargs = faked(peer, peer.from_tensor, args, kwargs)
    with peer:
        expected = run(func, theirs, their_kwargs)
    with mode.mode:
        result = run(func, ours, our_kwargs)
    real = run(func, args, kwargs)
    if result == real:
        return []
    return [f"{name}{describe_all(args)}: rule {result}, eager {real}, fake mode {expected}"]


def describe_all(args):
    return tree_map(lambda a: described(a) if isinstance(a, torch.Tensor) else a, args)


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_rules_match(name):
    complaints = [
        compare(name, lambda s=settings, k=layout, d=dtype: s(LAYOUTS[k](d)))
        for dtype, layout in itertools.product(DTYPES, LAYOUTS)
        for settings in WITH_SETTINGS[name]
    ]
    answered = [c for c in complaints if c is not None]
    assert answered, "the rule never answers"
    assert [line for c in answered for line in c] == []


@pytest.mark.parametrize("index", range(len(WHOLE_CALLS)))
def test_whole_calls_match(index):
    name, call = WHOLE_CALLS[index]
    assert compare(name, call) == []
