"""Plans through the real runtime: the same graphs, compiled."""

import pytest
import torch
import torch.nn.functional as F
from plans import trace
from torchsmith_fx_backend._src.runtime.build import build
from torchsmith_fx_backend._src.schedule import schedule_graph


def rope(q, cos, sin):
    q = q.view(2, 5, 2, 8).transpose(1, 2)
    turned = torch.cat((-q[..., 4:], q[..., :4]), -1)
    return q * cos + turned * sin


def block(x, w, n):
    h = x + torch.mm(F.layer_norm(x, (16,), n, n), w)
    return h + torch.mm(F.gelu(torch.mm(h * torch.rsqrt(h.pow(2).mean(-1, True) + 1e-6), w)), w)


def windows(x):
    h = F.layer_norm(x, (16,)).view(1, 4, 4, 16).roll((-1, -1), (1, 2))
    return h.view(1, 2, 2, 2, 2, 16).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 4, 16)


CASES = {
    "softmax": (lambda x, m: F.softmax(x / 3 + m, -1), (2, 3, 6, 6), (2, 1, 6, 6)),
    "rope": (rope, (2, 5, 16), (5, 8), (5, 8)),
    "block": (block, (8, 16), (16, 16), (16,)),
    "windows": (windows, (1, 16, 16)),
    "pad": (lambda x: F.pad(torch.cat([x, x * 2], 1), (1, 1, 1, 1)), (3, 4, 6)),
    "argmax": (lambda x: (x * 3).argmax(1), (4, 5, 6)),
    "outer": (lambda x: (F.softmax(x, 0), x.sum((0, 2))), (4, 5, 6)),
}


@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_eager(name):
    fn, *shapes = CASES[name]
    torch.manual_seed(0)
    args = [torch.randn(s) for s in shapes]

    def unused(*_):
        raise AssertionError("the graph ran through aten")

    built = build(schedule_graph(trace(fn, *args), check=True), fallback=unused, name=name)
    with torch.no_grad():
        got = built(*args)
    want = fn(*args)
    want = want if isinstance(want, tuple) else (want,)
    got = got if isinstance(got, (tuple, list)) else (got,)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        assert mine.stride() == theirs.stride()
