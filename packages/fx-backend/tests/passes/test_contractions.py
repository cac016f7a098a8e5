"""Sums of products become matrix products where that pays, and stay as exact as they were."""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "aot"))

import pytest
import torch
from differential import assert_metadata, check
from torchsmith_fx_backend._src.passes import contractions
from torchsmith_fx_backend._src.passes.base import run_passes
from torchsmith_fx_backend._src.passes.common import DeadCode
from torchsmith_fx_backend._src.passes.contractions import Contractions
from torchsmith_fx_backend._src.runtime.products import EXACT_MATMUL

aten = torch.ops.aten
PRODUCTS = (EXACT_MATMUL, aten.matmul.default, aten.bmm.default)


@pytest.fixture
def any_size(monkeypatch):
    every = {device: (types, 1, 1) for device, (types, *_) in contractions._DEVICES.items()}
    monkeypatch.setattr(contractions, "_DEVICES", every)
    monkeypatch.setattr(contractions, "_LEAST", 2)


def products(fn, *inputs):
    """How many matrix products take the place of what ``fn`` sums, which it still does."""

    def transform(module):
        run_passes(module.graph, [Contractions(), DeadCode()], check=True)
        module.recompile()

    graph = check(fn, *inputs, transform=transform, atol=1e-4, rtol=1e-4)
    assert_metadata(graph, inputs)
    return sum(n.target in PRODUCTS for n in graph.module.graph.nodes)


def tensors(*shapes):
    torch.manual_seed(1)
    return [torch.randn(shape) for shape in shapes]


def scores(a, b):
    return (a[:, None] * b[None]).sum(-1)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (scores, [(7, 9), (8, 9)]),
        (lambda a, b: (a[:, None] * b).sum(-1, keepdim=True).relu(), [(7, 9), (8, 9)]),
        (lambda a, b: (a.t()[:, None] * b.t()[None]).sum(-1), [(9, 7), (9, 8)]),
        (lambda a, b: (a[..., None] * b[:, :, None]).sum(3), [(2, 3, 4, 5, 6), (2, 3, 5, 6, 7)]),
        (lambda a, b: (a[..., None] * b[..., None, :]).sum((0, 1)), [(3, 4, 5), (3, 4, 6)]),
        (lambda a, b: (a[:, None].expand(-1, 8, -1) * b).sum(-1), [(7, 9), (8, 9)]),
        (lambda a, b: (a * b[:, None, :, None]).sum(-1), [(1, 3, 5, 4, 2), (6, 5, 2)]),
        (lambda a, b: (a[:, None, :, None] * b[None, :, :, None]).sum(2), [(7, 9), (8, 9)]),
        (lambda a, b: (a[:, None].double() * b[None]).sum(-1), [(7, 9), (8, 9)]),
        (lambda a, b: scores(a.amax(0), b.softmax(1)).sin(), [(2, 7, 9), (8, 9)]),
        (lambda a, b: scores(a[1:, ::2], b[:, ::2]), [(7, 10), (8, 10)]),
        (
            lambda a, b: (a[:, None, None, :, :, None] * b).sum((-3, -2)),
            [(3, 4, 5), (3, 6, 4, 5, 2)],
        ),
    ],
)
def test_what_is_a_product(fn, shapes):
    assert products(fn, *tensors(*shapes)) == 1


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda a, b: (a * b).sum(-1), [(7, 9), (7, 9)]),  # used once
        (lambda a, b: (a[:, None] * b).sum((0, 2)), [(7, 9), (8, 9)]),  # one factor could go first
        (lambda a, b: (p := a[:, None] * b[None], p.sum(-1)), [(7, 9), (8, 9)]),  # there anyway
        (lambda a, b: (a[:, None].int() * b[None].int()).sum(-1), [(7, 9), (8, 9)]),
        (lambda a, b: scores(a[:, :0], b[:, :0]), [(7, 9), (8, 9)]),
        (lambda a, b: (a[:, None] * 2.0).sum(-1) + b.sum(), [(7, 9), (8, 9)]),
        (lambda a, b: (a[:, None] * b.double()).sum(-1, dtype=torch.float32), [(7, 9), (8, 9)]),
    ],
)
def test_what_is_none(fn, shapes):
    assert products(fn, *tensors(*shapes)) == 0


def test_few_products_stay_in_loops():
    assert products(scores, *tensors((16, 64), (16, 64))) == 0
    assert products(scores, *tensors((256, 256), (256, 256))) == 1


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("seed", range(4))
def test_random_products(seed):
    draw = random.Random(seed)
    found = 0
    for _ in range(12):
        kinds = [draw.choice("bmnk1") for _ in range(draw.randint(3, 6))]
        sizes = [1 if kind == "1" else draw.randint(1, 5) for kind in kinds]

        def factor(missing, kinds=kinds, sizes=sizes):
            shape = [1 if kind == missing else n for kind, n in zip(kinds, sizes, strict=True)]
            order = draw.sample(range(len(shape)), len(shape))
            stored = torch.randn([shape[axis] for axis in order])
            value = stored.permute([order.index(axis) for axis in range(len(order))])
            return value.expand(sizes) if draw.random() < 0.3 else value

        summed = [axis for axis, kind in enumerate(kinds) if kind == "k"] or [0]
        if draw.random() < 0.2:
            summed.append(draw.choice([axis for axis in range(len(kinds)) if axis not in summed]))
        keep = draw.random() < 0.3
        a, b = factor("n"), factor("m")
        found += products(lambda x, y, d=summed, k=keep: (x * y).sum(d, keepdim=k), a, b)
    assert found > 0


@pytest.mark.usefixtures("any_size")
def test_gradients_are_products_too():
    def gradients(a, b):
        grad = scores(a, b).cos().unsqueeze(-1).expand(7, 8, 9)
        return (grad * b[None]).sum((1,)), (grad * a[:, None]).sum((0,))

    assert products(gradients, *tensors((7, 9), (8, 9))) == 3


@pytest.mark.usefixtures("any_size")
def test_not_where_products_may_be_refused():
    torch.use_deterministic_algorithms(True)
    try:
        assert products(scores, *tensors((7, 9), (8, 9))) == 0
    finally:
        torch.use_deterministic_algorithms(False)


def test_exact_whatever_is_allowed_for_products():
    """Here the second factor has bits that bfloat16 and TF32 drop."""
    a = torch.ones(64, 64)
    b = torch.full((64, 64), 1 + 2**-20)
    exact = a.double() @ b.double()
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(torch.ops.torchsmith_fx_backend.exact_matmul(a, b).double(), exact)
        into = torch.empty(64, 64)
        torch.ops.torchsmith_fx_backend.exact_matmul.out(a, b, out=into)
        assert torch.equal(into.double(), exact)
    finally:
        torch.set_float32_matmul_precision("highest")
