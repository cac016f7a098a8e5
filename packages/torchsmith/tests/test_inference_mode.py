"""Inference mode within compiled programs: which results are inference tensors, whatever the sizes,
and which writes are errors."""

import pytest
import torch
import torchsmith
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

LAYER = nn.Linear(4, 3)


@torch.inference_mode()
def decorated(x, y):
    return {"a": LAYER(x), "b": [y, x.view(-1), y * 2, x.add_(1)]}


def on_and_off(x, y):
    with torch.inference_mode():
        a = x * 2
        with torch.inference_mode(False):
            b, c = x * 3, a.clone()
    return a, b, c, y + 1


def broken(x, y):
    a = x + 1
    with torch.inference_mode():
        b = a * 2
        if b.sum() > 0:
            c = b + y[0]
    return a, b, c


def returned_from(x, y):
    with torch.inference_mode():
        return LAYER(x), torch.zeros(2), y.shape[0]


def no_change(x, y):
    with torch.inference_mode(False):
        return x * 2, y.view(1, -1)


def observed(result):
    tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return [(t.is_inference(), t.requires_grad, t.tolist()) for t in tensors]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [decorated, on_and_off, broken, returned_from, no_change])
def test_results_are_inference_tensors_where_eagers_are(fn, dynamic):
    compiled = torchsmith.compile(fn, dynamic=dynamic)

    def call(run, n):
        x, y = torch.arange(4.0 * n).view(n, 4), torch.ones(2)
        return [*observed(run(x, y)), *observed(x)]

    for n in (3, 4, 5, 3):
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode():
                got, expected = call(compiled, n), call(fn, n)
            for one, other in zip(got, expected, strict=True):
                assert one[:2] == other[:2]
                assert one[2] == pytest.approx(torch.tensor(other[2]).numpy(), rel=1e-5)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: torch.add(x, 1, out=x),
        lambda x: (x.view(-1).mul_(2), x.sum())[1],
        lambda x: (x.__setitem__(0, 5.0), x + 1)[1],
    ],
)
def test_writes_to_inference_tensors_are_eagers_errors(write):
    compiled = torchsmith.compile(write)
    for n in (2, 3, 4):
        with torch.inference_mode():
            x, y = torch.ones(n), torch.ones(n)
            assert torch.equal(compiled(x), write(y)) and torch.equal(x, y)
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            compiled(x)


@pytest.mark.parametrize("backend", ["eager", "smith"])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("norm", [torch.nn.BatchNorm1d, torch.nn.InstanceNorm1d])
def test_statistics_that_become_inference_tensors(norm, affine, backend):
    rows = []
    for compile in (lambda m: m, lambda m: torchsmith.compile(m, backend=backend)):
        module = norm(2, affine=affine, track_running_stats=True)
        run, seen = compile(module), []
        torch.manual_seed(0)
        x = torch.randn(3, 2, 4)
        for kind in ("normal", "inference", "inference", "eval", "mode", "normal"):
            module.train(kind != "eval")
            if kind in ("normal", "inference"):
                with torch.inference_mode(kind == "inference"):
                    module.running_mean = torch.zeros(2)
            try:
                with torch.inference_mode(kind == "mode"):
                    result = run(x).sum().round(decimals=3).tolist()
            except RuntimeError as e:
                result = str(e)
            state = [b.tolist() for b in module.buffers()]
            seen.append((result, str(torch.tensor(state[0])), state[-1]))
        rows.append(seen)
    assert rows[0] == rows[1]


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("given", ["argument", "attribute", "in a list"])
def test_checkpoints_of_inference_tensors(given, wanted):
    """Eager refuses to save them, also where all is computed again."""
    with torch.inference_mode():
        held = torch.arange(8.0).view(2, 4)
    layer = nn.Linear(4, 3).requires_grad_(wanted)
    bodies = {
        "argument": lambda x: checkpoint(layer, x, use_reentrant=False),
        "attribute": lambda x: checkpoint(lambda y: layer(held) + y.sum(), x, use_reentrant=False),
        "in a list": lambda x: checkpoint(lambda y: layer(y[0]), [x], use_reentrant=False),
    }
    compiled = torchsmith.compile(bodies[given])
    for x in (held, torch.ones(2, 4), held):
        sides = []
        for run in (bodies[given], compiled):
            layer.zero_grad()
            try:
                y = run(x)
                if y.requires_grad:
                    y.sum().backward()
                sides.append((y.requires_grad, y.tolist(), str(layer.bias.grad)))
            except RuntimeError as error:
                sides.append(str(error))
        assert sides[0] == sides[1] or sides[0][::2] == sides[1][::2], sides
