"""Which operators keep their kernel where torch has a definition in Python, too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torchsmith_guards as guards
from torchsmith_guards._src.fake.kernels import ORDERED_IN_PYTHON, WRONG_IN_PYTHON

aten = torch.ops.aten
AUTOGRAD = torch._C.DispatchKey.Autograd


def margins():
    weight = torch.rand(5)
    for reduction in (0, 1, 2):
        scores, labels = torch.randn(6, 5), torch.randint(0, 5, (6,))
        yield aten.multi_margin_loss.default, (scores, labels, 2, 0.5, weight, reduction)
        labels = torch.tensor([[2, 1, -1, 3, 4], [-1] * 5, [0, 0, 0, 0, 0]])
        yield aten.multilabel_margin_loss_forward.default, (scores[:3], labels, reduction)


def shrinking():
    x = torch.tensor([0.0, -0.0, 0.5, -0.5, 0.3, float("inf"), float("nan"), 1e-40])
    for op in (aten.hardshrink.default, aten.softshrink.default):
        yield op, (x, 0.5)
        yield op, (x, 0.0)


def images():
    x, w = torch.randn(2, 4, 8, 9), torch.rand(4)
    for train in (False, True):
        running = (torch.zeros(4), torch.ones(4))
        yield aten.native_batch_norm.default, (x, w, w, *running, train, 0.1, 1e-5)
    for name in ("upsample_nearest2d", "_upsample_nearest_exact2d"):
        yield getattr(aten, name).default, (x, [13, 7], None, None)
    for name in ("upsample_nearest1d", "_upsample_nearest_exact1d"):
        for line in (x[0], torch.randn(7, 4, 3).permute(2, 1, 0), torch.randn(3, 7, 4).mT):
            yield getattr(aten, name).default, (line, [13], None)
            yield getattr(aten, name).vec, (line, None, [1.7])
    for name in ("upsample_bilinear2d", "upsample_bicubic2d"):
        yield getattr(aten, name).default, (x, [13, 7], False, None, None)


def test_definitions_in_python_that_are_kept_agree_with_the_kernel():
    """Those that do not are the ones listed: when torch mends one, its line can go."""
    torch.manual_seed(0)
    wrong, ordered = set(), set()
    for op, args in (*margins(), *shrinking(), *images()):
        kernel, definition = op(*args), op.py_kernels[AUTOGRAD](*args)
        results = [(r,) if isinstance(r, torch.Tensor) else r for r in (kernel, definition)]
        for ours, theirs in zip(*results, strict=True):
            if not torch.allclose(ours, theirs, 1e-4, 1e-5, equal_nan=True):
                wrong.add(op)
            elif ours.stride() != theirs.stride():
                ordered.add(op)
    assert wrong == set(WRONG_IN_PYTHON)
    assert ordered == set(ORDERED_IN_PYTHON)


class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self, called):
        super().__init__()
        self.called = called

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.called.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("op", WRONG_IN_PYTHON, ids=str)
def test_only_our_fakes_take_the_kernel(op):
    """What others trace under torch's own modes stays as torch has it."""
    called = []
    x, labels = torch.randn(3, 5), torch.zeros(3, 5, dtype=torch.int64)

    ours, theirs = guards.FakeMode(guards.ShapeEnv()), torch._subclasses.FakeTensorMode()
    for mode, fake in ((ours.mode, ours.fakeify), (theirs, theirs.from_tensor)):
        fakes = [fake(t) for t in (x, labels)]
        with mode, torch._dispatch.python.enable_python_dispatcher(), Watch(called):
            op(*fakes, 1)
    assert called[0] is op
    assert op not in called[1:]
    assert aten.gather.default in called[1:]


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("target", [{"scale_factor": 1.7}, {"size": (5, 9)}], ids=str)
@pytest.mark.parametrize("sizes", [{0}, {2, 3}], ids=str)
def test_gradients_of_images_of_any_batch_come_from_the_kernel(order, given, target, sizes):
    plain = torch.randn(3, 4, 8, 6).to(memory_format=order).requires_grad_()
    mode, called = guards.FakeMode(guards.ShapeEnv()), []
    x = mode.fakeify(plain, guards.LocalSource("x"), sizes)

    def resampled(x):
        y = F.interpolate(x, **target, mode="bilinear", align_corners=False)
        tangent = torch.ones_like(y, memory_format=given)
        return y, *torch.autograd.grad(y, x, tangent)

    with mode.mode, Watch(called):
        fakes = resampled(x)
    backward = aten.upsample_bilinear2d_backward.default
    assert (backward in called) is (sizes == {0})
    assert (aten._unsafe_index_put.default in called) is (sizes != {0})
    assert type(fakes[0].shape[0]) is (torch.SymInt if sizes == {0} else int)
    if sizes == {0}:
        for fake, real in zip(fakes, resampled(plain), strict=True):
            assert fake.shape[1:] == real.shape[1:]
            assert fake.stride() == real.stride()
    called.clear()
    with mode.mode, torch.no_grad(), Watch(called):
        F.interpolate(x.detach(), **target, mode="bilinear")
    assert aten._unsafe_index.Tensor in called
