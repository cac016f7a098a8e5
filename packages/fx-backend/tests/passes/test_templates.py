"""Attention that a program writes out, given to an operator of another package."""

import importlib.metadata
import logging
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1] / "aot"))

import pytest
import torch
from differential import check
from torch.nn.functional import softmax
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src import switches
from torchsmith_fx_backend._src.passes import templates
from torchsmith_fx_backend._src.passes.base import run_passes
from torchsmith_fx_backend._src.passes.common import DeadCode
from torchsmith_fx_backend._src.passes.templates import LibraryKernels, SummedRows
from torchsmith_fx_backend.errors import SettingError

aten = torch.ops.aten
HALF = torch.bfloat16


@torch.library.custom_op("template_test::attend", mutates_args=())
def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    """In float32, a row without keys as kernels give it; heads of keys may be fewer."""
    q, k, v = (x.float() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * scale
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores if mask is None else scores + mask.float()
    weights = softmax(scores.masked_fill(scores < -2.3e38, -math.inf), -1)
    weights = torch.where((scores < -2.3e38).all(-1, True), 0.0, weights)
    return (weights @ v).to(HALF).transpose(1, 2).contiguous().transpose(1, 2)


@attend.register_fake
def _(q, k, v, mask, scale, softcap):
    return torch.empty_like(q.transpose(1, 2).contiguous()).transpose(1, 2)


@dataclass
class Fake:
    speed: float | None = 2.0
    fits: bool = True
    calls: list = field(default_factory=list)
    name = "attention"
    targets = {"attention": 0}  # noqa: RUF012
    parameters = ("query", "key", "value", "attn_mask", "scale", "softcap")
    op = torch.ops.template_test.attend.default

    def matches(self, call):
        self.calls.append(call)
        return self.fits

    def speedup(self, call):
        return self.speed


def randn(*size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(size[-1])).to(HALF)


Q, K, V = randn(2, 4, 6, 16), randn(2, 4, 5, 16), randn(2, 4, 5, 16)
FEW = randn(2, 2, 5, 16)
MASK = torch.zeros(2, 1, 6, 5, dtype=HALF)
MASK[0, :, :3, 2:] = -math.inf
MASK[1, :, :, 0] = torch.finfo(HALF).min
NOTHING = MASK.clone()
NOTHING[0, :, 1] = -math.inf  # rows that see no key: NaN
NOTHING[1, :, 2] = torch.finfo(HALF).min  # and every key alike


def gemma(q, k, v, mask):
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.25
    scores = torch.tanh(scores / 3.0) * 3.0 + mask
    weights = softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def grouped(q, k, v, mask):
    k, v = (x[:, :, None].expand(2, 2, 2, 5, 16).reshape(2, 4, 5, 16) for x in (k, v))
    return gemma(q, k, v, mask)


def biased(q, k, v, mask):
    return torch.softmax(mask.float() + q @ k.mT, -1).to(q.dtype) @ v, mask + 1


def plain(q, k, v, mask):
    return torch.softmax(q @ k.mT / 4 + mask, -1) @ v


def twice(q, k, v, mask):
    return gemma(gemma(q, k, v, mask).view(2, 6, 4, 16).transpose(1, 2), k, v, mask)


TAKEN = {
    "capped": (gemma, (Q, K, V, MASK), 1),
    "rows that see nothing": (gemma, (Q, K, V, NOTHING), 1),
    "fewer heads": (grouped, (Q, FEW, FEW * 2, MASK), 1),
    "bias of float32, first": (biased, (Q, K, V, MASK.expand(2, 4, 6, 5)), 1),
    "plain": (plain, (Q, K, V, MASK), 1),
    "plain rows that see nothing": (plain, (Q, K, V, NOTHING), 1),
    "plain, full mask": (plain, (Q, K, V, MASK.expand(2, 4, 6, 5)), 1),
    "no mask": (lambda q, k, v, _: torch.softmax(q @ k.mT / 4, -1) @ v, (Q, K, V, MASK), 1),
    "one mask for two": (twice, (Q, K, V, MASK), 2),
}
LEFT = {
    "scores that are returned": lambda q, k, v, m: ((s := q @ k.mT), torch.softmax(s, -1) @ v),
    "weights that are returned": lambda q, k, v, m: ((w := torch.softmax(q @ k.mT, -1)), w @ v),
    "another dimension": lambda q, k, v, m: torch.softmax(q @ k.mT, -2) @ v,
    "a number added": lambda q, k, v, m: torch.softmax(q @ k.mT + 1.5, -1) @ v,
    "keys that are not turned": lambda q, k, v, m: torch.softmax(q[..., :5] @ k[..., :5], -1) @ v,
    "a mask scaled by alpha": lambda q, k, v, m: (
        torch.softmax(torch.add(q @ k.mT, m, alpha=2), -1) @ v
    ),
    "float32": lambda q, k, v, m: torch.softmax(q.float() @ k.float().mT, -1) @ v.float(),
}


def rewritten(fn, inputs, offer, op=None, **more):
    library = LibraryKernels(device="cpu", templates=lambda: (offer,), **more)

    def transform(module):
        run_passes(module.graph, [library, DeadCode()], check=True)
        module.recompile()

    graph = check(fn, *inputs, transform=transform, rtol=3e-2, atol=3e-2)
    return [n for n in graph.module.graph.nodes if n.target is (op or offer.op)]


@pytest.mark.parametrize("name", TAKEN)
def test_attention_that_is_written_out(name):
    fn, inputs, count = TAKEN[name]
    calls = rewritten(fn, inputs, Fake())
    assert len(calls) == count
    assert len({node.args[3] for node in calls}) == 1
    heads = 2 if name == "fewer heads" else 4
    assert all(node.args[1].meta["val"].shape[1] == heads for node in calls)


@pytest.mark.parametrize("name", TAKEN)
def test_torchs_own_kernels_take_what_no_template_does(name):
    fn, inputs, count = TAKEN[name]
    asked = []

    def choose(*operands, **options):
        asked.append((*operands, options))
        return 2

    options = {"op": templates.TORCHS, "fewest": 5}
    calls = rewritten(fn, inputs, Fake(0.5), choose=choose, **options)
    count = 0 if name not in ("plain", "no mask", "plain rows that see nothing") else count
    assert len(calls) == count == len(asked)
    for none in (0, None):
        assert not rewritten(fn, inputs, Fake(0.5), choose=lambda *_, n=none, **__: n, **options)
    few = rewritten(fn, inputs, Fake(0.5), choose=choose, op=templates.TORCHS)
    assert len(few) == (name == "no mask")


@pytest.mark.parametrize("name", LEFT)
def test_what_is_none_stays(name):
    assert not rewritten(LEFT[name], (Q, K, V, MASK), Fake())


@pytest.mark.parametrize(
    "offer, unmeasured, taken",
    [
        (Fake(None), False, 0),
        (Fake(None), True, 1),
        (Fake(0.9), True, 0),
        (Fake(1.1), False, 1),
        (Fake(2.0, fits=False), True, 0),
    ],
)
def test_only_what_is_faster_is_taken(offer, unmeasured, taken):
    calls = rewritten(gemma, (Q, K, V, MASK), offer, unmeasured=unmeasured)
    assert len(calls) == taken
    assert (offer.calls[0]["scale"], offer.calls[0]["softcap"]) == (0.25, 3.0)


def test_sums_of_rows_are_rewritten_where_kernels_make_no_loop_of_them(monkeypatch):
    seen = []

    def rewrite(graph, calls, insert, late):
        seen.append([(str(node.target), late) for node in calls])
        for node in calls:
            with graph.inserting_before(node):
                yield node, insert(aten._index_put_impl.default, *node.args, True)

    kinds = ("index_put", "index_add", "scatter_add", "embedding_dense_backward")
    every = SimpleNamespace(targets={f"aten.{n}.default": 0 for n in kinds}, rewrite=rewrite)
    others = [SimpleNamespace(targets=t, rewrite=r) for t, r in ((every.targets, None), ({}, 1))]
    library = SummedRows(device="cpu", templates=lambda: (*others, every))

    def fn(x, index):
        chained = x.new_zeros(4, 3).index_put((index,), x, accumulate=True)
        return x.new_zeros(5, 3).index_put((index[:4],), chained, accumulate=True)

    def transform(module):
        run_passes(module.graph, [library, DeadCode()], check=True)
        module.recompile()

    inputs = torch.randn(6, 3), torch.tensor([0, 3, 3, 1, -1, 2])
    check(fn, *inputs, transform=transform)
    assert not seen
    monkeypatch.setattr(templates, "rule_for", lambda node: None)
    graph = check(fn, *inputs, transform=transform).module.graph
    assert seen == [[("aten.index_put.default", False)] * 2]
    assert len(graph.find_nodes(op="call_function", target=aten._index_put_impl.default)) == 2


def test_entry_points_are_looked_up_once_and_may_be_broken(monkeypatch, caplog):
    class Entry:
        value = "nowhere:template"

        def load(self):
            raise ImportError("no such package")

    found = [Entry()]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)
    templates.offered.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, logger="torchsmith.backend"):
            assert templates.offered() == templates.offered() == ()
    finally:
        templates.offered.cache_clear()
    assert [r.message for r in caplog.records if "nowhere:template" in r.message]


def test_the_option():
    (usual,) = [p for p in switches.passes(Settings()) if p.name == "library-kernels"]
    (every,) = [p for p in switches.passes(Settings(kernels="all")) if p.name == usual.name]
    assert not usual.unmeasured and every.unmeasured and usual.device == "cuda"
    off = Settings(disable=(usual.name,))
    assert usual.name not in {p.name for p in switches.passes(off)}
    with pytest.raises(SettingError, match="kernels='measured'"):
        Settings(kernels="some")
