"""Bytes that compiled graphs hold at once, against what eager holds, counted without a GPU."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torchsmith_fx_backend._src.aot.joint import trace_joint
from torchsmith_fx_backend._src.aot.training import Training
from torchsmith_fx_backend._src.capture.rules import JOINT_RULES
from torchsmith_fx_backend._src.driver import functional_graph
from torchsmith_fx_backend._src.passes import PASSES
from torchsmith_fx_backend._src.passes.base import run_passes
from torchsmith_fx_backend._src.schedule.facts import Facts
from torchsmith_fx_backend._src.schedule.scheduler import POLICIES, plan_with


class Held(TorchDispatchMode):
    """The most bytes of results that live at once, between two operators."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {a.untyped_storage()._cdata for a in args if isinstance(a, torch.Tensor)}
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage(), given)
        self.peak = max(self.peak, self.now)
        return result

    def _count(self, storage, given):
        key = storage._cdata
        if key in given or key in self.seen:
            return
        size = storage.nbytes()
        self.now += size
        self.seen.add(key)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key, size):
        self.now -= size
        self.seen.discard(key)


def _block(x, up, down, weight):
    for _ in range(3):
        y = F.layer_norm(x, x.shape[-1:], weight)
        x = x + F.gelu(y @ up) @ down
    return x


def _scores(x, up, down, weight):
    for _ in range(2):
        q, k = x @ up, (x * 2) @ up
        x = x + F.softmax((q @ k.t()) * 0.1, -1) @ x
    return x * weight


def _edges(x, up, down, weight):
    ends = torch.arange(4 * len(x)) % len(x)
    for _ in range(2):
        sent = x[ends] * (x[ends].sum(-1, keepdim=True).sigmoid())
        x = F.elu(torch.zeros_like(x).index_add(0, ends, sent)) @ up @ down
    return x * weight


def _normed(x, up, down, weight):
    for _ in range(3):
        h = F.batch_norm(x @ up, None, None, training=True).relu()
        x = (x + F.batch_norm(h @ down, None, None, training=True)).relu()
    return x * weight


ANALOGUES = {"block": _block, "scores": _scores, "edges": _edges, "normed": _normed}


def _inputs(grad):
    sizes = ((256, 64), (64, 256), (256, 64), (64,))
    return [torch.randn(size).requires_grad_(grad) for size in sizes]


@pytest.mark.parametrize("name", ANALOGUES)
def test_inference_holds_no_more_than_eager(name):
    fn, inputs = ANALOGUES[name], _inputs(False)
    with Held() as held:
        fn(*inputs)
    graph = functional_graph(fn, inputs).module
    ours, _ = plan_with(Facts(graph), POLICIES[0])
    assert ours <= held.peak


@pytest.mark.parametrize("name", ANALOGUES)
def test_training_holds_no_more_than_eager(name):
    fn, inputs = ANALOGUES[name], _inputs(True)
    with Held() as held:
        fn(*inputs).square().mean().backward()
    peaks = []

    def compiled(module):
        run_passes(module.graph, PASSES, check=False)
        peaks.append(plan_with(Facts(module), POLICIES[0])[0])

    joint = trace_joint(lambda *given: fn(*given).square().mean(), inputs, JOINT_RULES)
    training = Training(joint, compiled, 0.5, None)
    training.prepare()
    training._compile_backward(((),), frozenset())
    assert max(peaks) <= held.peak
