"""Constant attention masks leave the calls that they do not change, and only those."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "aot"))

import pytest
import torch
from differential import assert_metadata, capture, check
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention
from torchsmith_fx_backend._src.passes import AttentionMasks, CommonSubexpressions, DeadCode
from torchsmith_fx_backend._src.passes import constants as constants_module
from torchsmith_fx_backend._src.passes.base import run_passes
from torchsmith_fx_backend._src.passes.constants import Constants

aten = torch.ops.aten
INF = float("inf")
PASSES = [CommonSubexpressions(), AttentionMasks(), DeadCode()]


def qkv(queries=6, keys=6, heads=4, kv_heads=4, batch=2):
    generator = torch.Generator().manual_seed(0)
    sizes = (heads, queries), (kv_heads, keys), (kv_heads, keys)
    return [torch.randn(batch, *size, 8, generator=generator) for size in sizes]


def calls(fn, *inputs):
    """The attention calls after the pass, once it is known to keep values and layouts."""

    def transform(module):
        run_passes(module.graph, PASSES, check=True)
        module.recompile()

    graph = check(fn, *inputs, transform=transform, rtol=1e-5, atol=1e-6)
    assert_metadata(graph, inputs)
    return [n for n in graph.module.graph.nodes if "attention" in str(n.target)], graph


def outcome(fn, *inputs):
    (call,), graph = calls(fn, *inputs)
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, call.args)) | dict(call.kwargs)
    if given.get("attn_mask") is not None:
        return "mask"
    others = [n for n in graph.module.graph.nodes if n.op == "call_function" and n is not call]
    assert not [n for n in others if n.target in (aten.arange.start_step, aten.full.default)]
    return "causal" if given.get("is_causal") else "none"


def lower(n=6, m=6):
    return torch.ones(n, m, dtype=torch.bool).tril()


def floats(visible):
    return torch.zeros(visible.shape).masked_fill(visible.logical_not(), -INF)


def like_transformers(batch=2, length=6, window=None, packed=False):
    """The mask that ``masking_utils`` builds: functions of indices, over broadcast indices."""
    position = torch.arange(length).unsqueeze(0).expand(batch, -1)
    step = torch.diff(position, prepend=position[:, :1] - 1, dim=-1)
    document = (step != 1).cumsum(-1)
    if packed:
        document = torch.arange(length).unsqueeze(0).expand(batch, -1) // 3
    b = torch.arange(batch)[:, None, None, None]
    q = torch.arange(length)[None, None, :, None]
    k = torch.arange(length)[None, None, None, :]
    mask = document[b, q] == document[b, k]
    mask = torch.ones((), dtype=torch.bool) & mask & (k <= q)
    return mask if window is None else mask & (k > q - window)


def bidirectional(batch=2, length=6):
    q = torch.arange(length)[None, None, :, None]
    mask = torch.ones((), dtype=torch.bool) & (q >= 0)
    return mask.expand(batch, -1, length, length)


MASKS = {
    "bidirectional": ("none", bidirectional),
    "ones": ("none", lambda: torch.ones(6, 6, dtype=torch.bool)),
    "zeros": ("none", lambda: torch.zeros(6, 6)),
    "minus zeros": ("none", lambda: -torch.zeros(6, 6)),
    "expanded ones": ("none", lambda: torch.ones(1, 1, 1, 6, dtype=torch.bool).expand(2, 1, 6, 6)),
    "one row": ("none", lambda: torch.arange(6)[None, None, None, :] >= 0),
    "three dimensions": ("none", lambda: torch.ones(4, 6, 6, dtype=torch.bool)),
    "tril": ("causal", lower),
    "tril for each head": ("causal", lambda: lower().expand(2, 4, 6, 6)),
    "compared positions": ("causal", lambda: torch.arange(6)[None, :] <= torch.arange(6)[:, None]),
    "float tril": ("causal", lambda: floats(lower())),
    "where": ("causal", lambda: torch.where(lower(), 0.0, -INF)),
    "triu of infinity": ("causal", lambda: torch.full((6, 6), -INF).triu(1)),
    "transformers": ("causal", like_transformers),
    "wide window": ("causal", lambda: like_transformers(window=6)),
    "cat": ("causal", lambda: torch.cat([lower()[:2], lower()[2:]])),
    "mod": ("none", lambda: (torch.arange(36) % 6).view(6, 6) < 6),
    "narrow window": ("mask", lambda: like_transformers(window=3)),
    "packed": ("mask", lambda: like_transformers(packed=True)),
    "no diagonal": ("mask", lambda: lower() & (torch.ones(6, 6, dtype=torch.bool).triu(0) == 0)),
    "upper": ("mask", lambda: torch.ones(6, 6, dtype=torch.bool).triu()),
    "one hole": ("mask", lambda: torch.arange(36).view(6, 6) != 7),
    "hidden row": ("mask", lambda: (torch.arange(6)[:, None] > 0).expand(6, 6)),
    "nothing": ("mask", lambda: torch.zeros(6, 6, dtype=torch.bool)),
    "all minus infinity": ("mask", lambda: torch.full((6, 6), -INF)),
    "bias": ("mask", lambda: torch.ones(6, 6) * 0.5),
    "large negative": ("mask", lambda: lower().logical_not() * -1e9),
    "differs between heads": ("mask", lambda: lower() | (torch.arange(4)[:, None, None] == 0)),
}


@pytest.mark.parametrize("name", MASKS)
def test_pattern(name):
    expected, mask = MASKS[name]
    assert outcome(lambda q, k, v: attention(q, k, v, attn_mask=mask()), *qkv()) == expected


def test_causal_needs_as_many_queries_as_keys():
    fn = lambda q, k, v: attention(q, k, v, lower(4, 6))
    assert outcome(fn, *qkv(queries=4)) == "mask"
    bottom = lambda q, k, v: attention(q, k, v, torch.ones(4, 6, dtype=torch.bool).tril(2))
    assert outcome(bottom, *qkv(queries=4)) == "mask"
    full = lambda q, k, v: attention(q, k, v, torch.ones(4, 6, dtype=torch.bool))
    assert outcome(full, *qkv(queries=4)) == "none"


def test_other_arguments_stay():
    fn = lambda q, k, v: attention(q, k, v, lower(), scale=0.5, enable_gqa=True)
    inputs = qkv(kv_heads=2)
    assert outcome(fn, *inputs) == "causal"
    (call,), _ = calls(fn, *inputs)
    assert dict(call.kwargs) == {"scale": 0.5, "enable_gqa": True}


def stays(graph):
    before = str(graph)
    AttentionMasks().run(graph)
    return str(graph) == before


def test_dropout_keeps_the_mask():
    graph = capture(lambda q, k, v: attention(q, k, v, lower(), dropout_p=0.5), qkv()).module.graph
    assert stays(graph)


def test_masks_from_inputs_stay():
    q, k, v = qkv()
    fn = lambda q, k, v, m: attention(q, k, v, lower() & m)
    assert outcome(fn, q, k, v, torch.ones(6, 6, dtype=torch.bool)) == "mask"
    like = lambda q, k, v, m: attention(q, k, v, torch.zeros_like(m))
    assert outcome(like, q, k, v, torch.randn(6, 6)) == "none"  # only the sizes are an input's


def test_random_masks_stay():
    graph = capture(lambda q, k, v: attention(q, k, v, torch.rand(6, 6) >= 0), qkv()).module.graph
    assert stays(graph)


def test_attributes_are_no_constants():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", lower())

        def forward(self, q, k, v):
            return attention(q, k, v, self.mask)

    graph = capture(torch.fx.symbolic_trace(Model()), qkv()).module.graph
    assert stays(graph)


def test_strides_are_those_of_the_call_with_a_mask():
    """On the CPU a mask of three dimensions takes the path whose result is contiguous."""
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv())
    fn = lambda q, k, v: attention(q, k, v, torch.ones(4, 6, 6, dtype=torch.bool))
    assert fn(q, k, v).is_contiguous() and not attention(q, k, v).is_contiguous()
    assert outcome(fn, q, k, v) == "none"
    viewed = lambda q, k, v: fn(q, k, v).view(8, 48)
    assert outcome(viewed, q, k, v) == "none"


def test_layers_share_one_evaluation(monkeypatch):
    evaluated = []
    original = Constants._evaluate
    monkeypatch.setattr(
        Constants, "_evaluate", lambda self, n: evaluated.append(n) or original(self, n)
    )

    def fn(q, k, v):
        for _ in range(4):
            q = attention(q, k, v, torch.arange(6)[None, :] <= torch.arange(6)[:, None])
        return q

    found, _ = calls(fn, *qkv())
    assert [call.args[3:] for call in found] == [(None, 0.0, True)] * 4
    assert 0 < len(evaluated) == len(set(evaluated)) < 10


def test_batch_is_not_evaluated():
    mask = capture(lambda: like_transformers(batch=512, length=8), []).module.graph
    constant = Constants().of(mask.output_node().args[0][0])
    assert constant.shape == (512, 1, 8, 8)
    assert constant.kept.shape == (1, 1, 8, 8)
    assert torch.equal(constant.kept.expand(constant.shape), like_transformers(512, 8))


def test_large_masks_stay(monkeypatch):
    monkeypatch.setattr(constants_module, "LARGEST", 35)
    assert outcome(lambda q, k, v: attention(q, k, v, lower()), *qkv()) == "mask"


def test_many_values_stay(monkeypatch):
    monkeypatch.setattr(constants_module, "TOTAL", 60)
    assert outcome(lambda q, k, v: attention(q, k, v, lower() & lower()), *qkv()) == "mask"


PROGRAMS = {
    "where": lambda a, b: torch.where(a < b, a + 1, b * 2),
    "mod": lambda a, b: a % (b + 1) + (a // (b + 2)),
    "cat": lambda a, b: torch.cat([a.expand(3, 4), b.expand(3, 4)], -1),
    "cat with repetition": lambda a, b: torch.cat([b.expand(3, 4), b.expand(2, 4)], 0),
    "cumsum": lambda a, b: (a.expand(3, 4).cumsum(0), b.expand(3, 4).cumsum(0)),
    "slice": lambda a, b: a.expand(3, 4)[1:, 1:3] - b.expand(3, 4)[:2, ::2],
    "slice of repetition": lambda a, b: b.expand(3, 4)[1:],
    "select": lambda a, b: a.expand(3, 4)[2] + b.expand(3, 4)[-1],
    "squeeze": lambda a, b: a.squeeze(0).squeeze(1) + b.expand(3, 4).squeeze(0)[0, 1],
    "transpose": lambda a, b: b.expand(3, 4).t() - a.expand(3, 4).permute(1, 0),
    "reshape": lambda a, b: a.expand(3, 4).reshape(2, 6) + b.expand(3, 4).reshape(2, 6),
    "cast": lambda a, b: (a.to(torch.float32) * 0.5).to(torch.bfloat16) + b.to(torch.bool),
    "index": lambda a, b: b.expand(3, 4)[a, (b - 4)],
    "negative index": lambda a, b: a.expand(3, 4)[a - 3, b - 4],
    "numbers": lambda a, b: (2 - a) * 3 + torch.rsub(b, a, alpha=2),
    "logic": lambda a, b: ((a > 1) | (b > 2)) ^ (a == b) & ~(a >= 2),
    "extremes": lambda a, b: torch.minimum(a, b) - torch.maximum(a, b).abs().neg(),
    "scalars": lambda a, b: torch.ones(()) * torch.tensor(3) + (a > 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_evaluation_agrees_with_torch(name):
    """``a`` is a column and ``b`` a row, so that each repeats along one dimension."""
    fn = lambda: PROGRAMS[name](torch.arange(3)[:, None], torch.arange(4)[None, :])
    expected = fn()
    expected = expected if isinstance(expected, tuple) else (expected,)
    graph = capture(fn, []).module.graph
    constants = Constants()
    for node, value in zip(graph.output_node().args[0], expected, strict=True):
        found = constants.of(node)
        assert found is not None
        assert found.kept.dtype == value.dtype
        assert torch.equal(found.kept.expand(found.shape), value)


NOT_EXACT = {
    "sine": lambda: torch.arange(6).sin(),
    "sum of floats": lambda: torch.arange(6).to(torch.float32).cumsum(0),
    "float arange": lambda: torch.arange(0, 1, 0.1),
    "float to integer": lambda: (torch.ones(3) * INF).to(torch.int64),
    "fused multiply-add": lambda: torch.add(torch.ones(3), torch.ones(3), alpha=0.1),
    "float remainder": lambda: torch.ones(3) % 0.3,
    "index out of range": lambda: torch.arange(6)[torch.arange(7)],
    "division by zero": lambda: torch.arange(6) // torch.zeros(6, dtype=torch.int64),
}


@pytest.mark.parametrize("name", NOT_EXACT)
def test_what_devices_may_disagree_on_is_not_evaluated(name):
    graph = capture(NOT_EXACT[name], []).module.graph
    assert Constants().of(graph.output_node().args[0][0]) is None


@pytest.mark.parametrize("backend", [None, SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_attention_that_may_take_some_kernels_only_is_decided_at_once(backend):
    def program(x):
        if backend is None:
            return attention(x, x, x)
        with sdpa_kernel(backend):
            return attention(x, x, x)

    (x, _, _) = qkv()
    found = [
        str(n.target) for n in capture(program, [x]).module.graph.nodes if "attention" in n.name
    ]
    assert (
        found
        == {
            None: ["aten.scaled_dot_product_attention.default"],
            SDPBackend.MATH: [],
            SDPBackend.FLASH_ATTENTION: [
                "aten._scaled_dot_product_flash_attention_for_cpu.default"
            ],
        }[backend]
    )
    check(program, x, rtol=1e-5, atol=1e-6)
