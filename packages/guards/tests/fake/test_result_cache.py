"""Remembered results of symbolic operators: the same metadata, new tensors, no lost guards."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torchsmith_guards import FakeMode, LocalSource, ShapeEnv, hint_of
from torchsmith_guards._src.fake import torch_mode

X = LocalSource("x")


@pytest.fixture(autouse=True)
def no_layout_rules(monkeypatch):
    """These operators have rules, which come first; here torch is to compute them."""
    monkeypatch.setattr(torch_mode, "entry_of", lambda func: None)


@pytest.fixture
def env():
    return ShapeEnv()


@pytest.fixture
def mode(env):
    return FakeMode(env)


@pytest.fixture
def runs(monkeypatch):
    """Operators that torch computed, by name."""
    names = []
    original = FakeTensorMode._dispatch_impl

    def counting(self, func, *args, **kwargs):
        names.append(func.name())
        return original(self, func, *args, **kwargs)

    monkeypatch.setattr(FakeTensorMode, "_dispatch_impl", counting)
    return names


def same_metadata(a, b):
    assert [str(s) for s in a.shape] == [str(s) for s in b.shape]
    assert [str(s) for s in a.stride()] == [str(s) for s in b.stride()]
    assert (a.dtype, a.device, a.requires_grad) == (b.dtype, b.device, b.requires_grad)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a + 1,
        lambda a: F.layer_norm(a, (6,)),
        lambda a: a.softmax(-1),
        lambda a: torch.cat([a, a], 1),
        lambda a: F.silu(a) * a,
        lambda a: a.max(-1).values,
        lambda a: a.new_zeros(a.shape[0], 3),
        lambda a: F.gelu(a).sum(0),
    ],
)
def test_second_run_is_remembered(mode, runs, function):
    fake = mode.fakeify(torch.ones(4, 5, 6), X, {0, 1})
    with mode.mode, torch.no_grad():
        first = function(fake)
        count = len(runs)
        second = function(fake)
    assert count > 0
    assert len(runs) == count
    assert second is not first
    same_metadata(first, second)
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


def test_other_arguments_are_other_results(mode):
    a = mode.fakeify(torch.ones(4, 5), X, {0})
    b = mode.fakeify(torch.ones(7, 5), LocalSource("y"), {0})
    with mode.mode:
        results = [a + 1, b + 1, a + 1.5, a.long() + 1, a.sum(0), a.sum(1), a * 1]
    assert [tuple(hint_of(s) for s in r.shape) for r in results] == [
        (4, 5), (7, 5), (4, 5), (4, 5), (5,), (4,), (4, 5),
    ]  # fmt: skip
    assert results[3].dtype == torch.int64


def test_default_dtype_is_part_of_the_key(mode):
    a = mode.fakeify(torch.ones(4, dtype=torch.int64), X, {0})
    old = torch.get_default_dtype()
    with mode.mode:
        assert (a / 2).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert (a / 2).dtype == torch.float64
        finally:
            torch.set_default_dtype(old)


def test_views_and_in_place_operators_keep_their_storage(mode):
    a = mode.fakeify(torch.ones(4, 6), X, {0})
    storage = a.untyped_storage()._cdata
    with mode.mode, torch.no_grad():
        for _ in range(2):
            assert a.view(-1).untyped_storage()._cdata == storage
            assert a.t().untyped_storage()._cdata == storage
            assert a[1:].untyped_storage()._cdata == storage
            assert a.add_(1) is a
            assert a.contiguous() is a


def test_guards_of_the_first_run_stay(mode, env):
    a = mode.fakeify(torch.ones(4, 6), X, {0})
    b = mode.fakeify(torch.ones(9, 6), LocalSource("y"), {0})

    def add_if_equal():
        try:
            return a + b
        except RuntimeError:
            return None

    with mode.mode:
        assert add_if_equal() is None
        first = [g.condition for g in env.guards]
        assert add_if_equal() is None
    assert first
    assert [g.condition for g in env.guards] == first


def test_rollback_forgets_results_whose_guards_it_forgets(mode, env, runs):
    a = mode.fakeify(torch.ones(4, 6), X, {0, 1})
    b = mode.fakeify(torch.ones(4, 6), LocalSource("y"), {0, 1})
    n = env.create_symbol(4, LocalSource("n"), "unspecified")
    mark = env.checkpoint()
    with mode.mode:
        first = torch.cat([a, b.new_ones(4, n)], 1) if n > 3 else a
        guards = [g.condition for g in env.guards]
        env.rollback(mark)
        assert env.guards == []
        second = torch.cat([a, b.new_ones(4, n)], 1) if n > 3 else a
    assert [g.condition for g in env.guards] == guards
    same_metadata(first, second)


def test_results_under_suppressed_guards_are_not_kept(mode, env, runs):
    a = mode.fakeify(torch.ones(4, 6), X, {0})
    with mode.mode, env.suppress_guards():
        a.exp()
    count = runs.count("aten::exp")
    with mode.mode:
        a.exp()
    assert runs.count("aten::exp") == count + 1


def test_static_operators_use_torch_cache(mode):
    fake = mode.fakeify(torch.ones(4, 6), X)
    assert mode.mode.cache_enabled
    with mode.mode:
        fake.exp()
        before = FakeTensorMode.cache_info().hits
        fake.exp()
    assert FakeTensorMode.cache_info().hits == before + 1
    mode.fakeify(torch.ones(3, 6), LocalSource("y"), {0})
    assert not mode.mode.cache_enabled
