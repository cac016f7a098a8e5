"""Values of low precision that are compared with others found among them, and their gradients."""

from __future__ import annotations

import pytest
import torch
import torchsmith

GROUPS = torch.arange(12) // 2


def spread(h):
    return GROUPS[: h.shape[0], None].expand(-1, h.shape[1])


def fresh(h, value=0.0):
    return torch.full((6, h.shape[1]), value, dtype=h.dtype)


FOUND = {
    "largest": lambda h: h.amax(0),
    "largest of all": lambda h: h.max(),
    "both ends": lambda h: torch.stack(h.aminmax(dim=0)),
    "largest magnitude": lambda h: h.norm(float("inf"), 0),
    "behind the largest": lambda h: (h - h.amax(0, keepdim=True)).exp(),
    "largest of groups": lambda h: fresh(h).scatter_reduce(
        0, spread(h), h, "amax", include_self=False
    ),
    "smallest of rows": lambda h: fresh(h, 9.0).index_reduce(0, GROUPS[: h.shape[0]], h, "amin"),
    "median": lambda h: h.nanmedian(),
    "where it is largest": lambda h: (h == h.amax(0, keepdim=True)) * h,
    "among the largest": lambda h: torch.where(h >= h.topk(2, 0)[0][-1], h, 0),
}
MADE = {
    "saved on the way": lambda x, w: (x @ w).tanh() * 1.1,
    "several steps": lambda x, w: (x @ w) * 1.37 - 0.2,
}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("found", FOUND)
def test_what_is_found_among_values_equals_them(found, made, wide):
    def program(x, w):
        h = MADE[made](x, w)
        return FOUND[found](h.float() if wide else h)

    compiled = torchsmith.compile(program)
    torch.manual_seed(0)
    for rows in (6, 6, 10, 4):
        x, w = torch.randn(rows, 4), torch.randn(4, 4)
        (expected, slope), (result, own) = (run(each, x, w) for each in (program, compiled))
        torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(own, slope, rtol=3e-2, atol=6e-2)


def run(program, x, w):
    w = w.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        result = program(x, w)
    result.float().sum().backward()
    return result.detach(), w.grad


def test_a_comparison_in_inference_is_eagers():
    def program(x):
        h = (x * 1.3).tanh() * 1.1
        return h == h.amax(-1, keepdim=True), h.float() >= h.float().amax(-1, keepdim=True)

    x = torch.randn(64, 33, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    for result, expected in zip(torchsmith.compile(program)(x), program(x), strict=True):
        assert torch.equal(result, expected)


HIDDEN = -1e5  # bfloat16 has no such number
HIDES = {
    "where": lambda d, m: torch.where(m, d, HIDDEN),
    "where, a tensor": lambda d, m: torch.where(m, d, torch.tensor(HIDDEN)),
    "masked_fill": lambda d, m: d.masked_fill(~m, HIDDEN),
    "full": lambda d, m: torch.where(m, d, torch.full_like(d, HIDDEN)),
    "clamp": lambda d, m: torch.where(m, d, HIDDEN * 8).clamp(min=HIDDEN),
    "pad": lambda d, m: torch.nn.functional.pad(d[..., :0], (0, d.shape[-1]), value=HIDDEN),
    "a mask that is added": lambda d, m: d + torch.where(m, 0.0, HIDDEN).to(d.dtype),
    "a mask that is subtracted": lambda d, m: d * m - -HIDDEN * (~m).to(d.dtype),
}


@pytest.mark.parametrize("hides", HIDES)
def test_rows_of_hidden_scores_have_eagers_weights(hides):
    def program(q, mask):
        scores = HIDES[hides](q @ q.mT, mask)
        weights = (scores - torch.logsumexp(scores, -1, keepdim=True)).exp()
        return weights, (scores - scores.amax(-1, keepdim=True)).exp()

    compiled = torchsmith.compile(program)
    torch.manual_seed(0)
    for rows in (5, 5, 7):
        q, mask = torch.randn(2, rows, 8), torch.zeros(2, rows, rows, dtype=torch.bool)
        mask[1, 2] = True
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            result, expected = compiled(q, mask), program(q, mask)
        torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
