"""``flex_attention`` in one graph: values, strides and dtypes are exactly eager's."""

import pytest
import torch
import torchsmith_tracer
from torch.nn.attention.flex_attention import (
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
)

torch.manual_seed(0)
BIAS = torch.randn(4, 32, 32)
SLOPE = 0.1


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q - k).abs() <= 5


def block_mask(mask=causal):
    return create_block_mask(mask, None, None, 32, 32, device="cpu", BLOCK_SIZE=16)


MASK = block_mask()


def sloped(score, b, h, q, k):
    return score + (q - k) * SLOPE


def capped(score, b, h, q, k):
    return 20 * torch.tanh(score / 20)


def with_bias(q, k, v):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, m, n: s + BIAS[h, m, n])


def documents(q, k, v):
    owner = torch.arange(32) // 10

    def same(b, h, m, n):
        return owner[m] == owner[n]

    mask = create_block_mask(and_masks(causal, same), None, None, 32, 32, "cpu", BLOCK_SIZE=16)
    return flex_attention(q * 2, k, v, block_mask=mask) + 1


PROGRAMS = {
    "plain": lambda q, k, v: flex_attention(q, k, v),
    "score": lambda q, k, v: flex_attention(q, k, v, score_mod=sloped),
    "mask": lambda q, k, v: flex_attention(q, k, v, block_mask=MASK),
    "both": lambda q, k, v: flex_attention(q, k, v, score_mod=capped, block_mask=MASK),
    "bias": with_bias,
    "documents": documents,
    "dense mask": lambda q, k, v: create_mask(window, 1, 1, 32, 32, "cpu"),
    "sums": lambda q, k, v: flex_attention(q, k, v, return_lse=True),
    "groups": lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
    "scale": lambda q, k, v: flex_attention(q, k, v, scale=0.3),
    "one key": lambda q, k, v: flex_attention(q[:, :, :1], k[:, :, :1], v[:, :, :1]),
}


def inputs(dtype=torch.float32, heads_last=False):
    torch.manual_seed(1)
    shape = (2, 32, 4, 8) if heads_last else (2, 4, 32, 8)
    found = [torch.randn(shape).to(dtype) for _ in range(3)]
    return [t.transpose(1, 2) for t in found] if heads_last else found


def shown(result):
    parts = result if isinstance(result, tuple) else (result,)
    return [(p.dtype, p.stride(), p.tolist()) for p in parts]


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_is_eagers(name, capture):
    compiled = torchsmith_tracer.compile(PROGRAMS[name], backend=capture, fullgraph=True)
    args = inputs()
    assert shown(compiled(*args)) == shown(PROGRAMS[name](*args))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_layout_and_dtype_are_the_querys(dtype):
    program = PROGRAMS["both"]
    compiled = torchsmith_tracer.compile(program, backend="eager", fullgraph=True)
    args = inputs(dtype, heads_last=True)
    assert shown(compiled(*args)) == shown(program(*args))


def test_what_the_functions_read_may_change(monkeypatch):
    program = PROGRAMS["both"]
    compiled = torchsmith_tracer.compile(program, backend="eager", fullgraph=True)
    biased = torchsmith_tracer.compile(with_bias, backend="eager", fullgraph=True)
    scored = torchsmith_tracer.compile(PROGRAMS["score"], backend="eager", fullgraph=True)
    for change in (
        lambda: None,
        lambda: monkeypatch.setitem(globals(), "MASK", block_mask(window)),
        lambda: monkeypatch.setitem(globals(), "capped", lambda s, *where: s * 3),
        lambda: monkeypatch.setitem(globals(), "BIAS", BIAS + 1),
        lambda: monkeypatch.setitem(globals(), "SLOPE", 0.7),
    ):
        change()
        args = inputs()
        assert shown(compiled(*args)) == shown(program(*args))
        assert shown(biased(*args)) == shown(with_bias(*args))
        assert shown(scored(*args)) == shown(PROGRAMS["score"](*args))


@pytest.mark.parametrize(
    "program",
    [
        lambda q, k, v: flex_attention(q, k[:, :3], v[:, :3]),
        lambda q, k, v: flex_attention(q[:, :, :8], k, v, block_mask=MASK),
        lambda q, k, v: flex_attention(q.requires_grad_(), k, v),
        lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, *where: s.item()),
    ],
)
def test_misuse_raises_what_eager_raises(program):
    def run(function):
        with pytest.raises(Exception) as found:  # noqa: PT011 - compared below
            function(*inputs())
        return found.type

    assert run(torchsmith_tracer.compile(program, backend="eager")) is run(program)
