"""Lookups that are small beside their readers are done there, and still raise what eager raises."""

import pytest
import torch
from plans import run_plan, trace
from torch import fx
from torchsmith_fx_backend import smith
from torchsmith_fx_backend._src.schedule.facts import Facts
from torchsmith_fx_backend._src.schedule.plan import Allocate
from torchsmith_fx_backend._src.schedule.scheduler import POLICIES, plan_with

EDGES, HEADS, WIDTH = 40, 4, 16


def given(seed=0):
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(10, (EDGES,), generator=generator)
    wide = torch.randn(EDGES, HEADS, WIDTH, generator=generator)
    return [wide, torch.rand(10, HEADS, generator=generator) + 1, ends]


def weights(wide, total, ends):
    return wide * (wide.sum(-1) / total[ends])[..., None]


def gathered(wide, total, ends):
    found = total.gather(0, ends[:, None].expand(-1, HEADS))
    return wide - (found * 3).unsqueeze(-1)


def permuted(wide, total, ends):
    return wide.transpose(0, 1) + total[ends].t()[..., None]


def for_two(wide, total, ends):
    scale = total[ends][..., None] * 2
    return wide * scale, (wide + scale).exp()


def repeated(wide, total, ends):
    return (total[ends].view(EDGES, HEADS, 1).expand(-1, -1, WIDTH) * wide).relu()


INSIDE = [weights, gathered, permuted, for_two, repeated]


def partly(wide, total, ends):
    """Only some points of what is looked up are needed."""
    return wide[:20] * total[ends][:20][..., None]


def flipped(wide, total, ends):
    return wide * (total[ends].flip(0) + 1)[..., None]


def padded(wide, total, ends):
    return wide[:30] * torch.nn.functional.pad(total[ends] * 2, (0, 0, -5, -5))[..., None]


def behind_a_product(wide, total, ends):
    found = total[ends]
    y = wide.flatten(1) @ wide.flatten(1).t()
    return wide * found[..., None] + y.sum()


def also_returned(wide, total, ends):
    found = total[ends]
    return wide * found[..., None], found


def summed(wide, total, ends):
    return wide * total[ends].sum(-1)[:, None, None]


def to_nothing(wide, total, ends):
    return wide[:0] * total[ends[:1]][..., None]


OTHERS = [partly, flipped, padded, behind_a_product, also_returned, summed, to_nothing]


def listed(result):
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("fn", [*INSIDE, *OTHERS])
def test_values_and_peaks(fn, monkeypatch):
    gm = trace(fn, *given())
    peak, plan = plan_with(Facts(gm), POLICIES[0])
    monkeypatch.setattr(Facts, "_seen_whole", lambda self, node: False)
    assert peak <= plan_with(Facts(gm), POLICIES[0])[0]
    for seed in (0, 1):
        got, wanted = run_plan(plan, given(seed)), listed(fn(*given(seed)))
        torch.testing.assert_close(got, wanted)
        assert [t.stride() for t in got] == [t.stride() for t in wanted]


@pytest.mark.parametrize("fn", INSIDE)
def test_nothing_small_is_stored(fn):
    _, plan = plan_with(Facts(trace(fn, *given())), POLICIES[0])
    sizes = [len(s.layout.size) for s in plan.steps if isinstance(s, Allocate)]
    assert sizes and all(size == 3 for size in sizes) or fn is weights and sizes.count(2) == 1


@pytest.mark.parametrize("fn", [*INSIDE, *OTHERS])
def test_what_is_not_there_raises_and_nothing_is_written(fn):
    def written(wide, total, ends):
        result = fn(wide, total, ends)
        total.add_(1)
        return result

    compiled = smith(fx.symbolic_trace(written), given())
    assert hasattr(compiled, "source")
    for place in (0, EDGES - 1):
        bad = given(2)
        bad[2][place] = 10
        before, told = [t.clone() for t in bad], []
        for call in (compiled, written):
            try:
                call(*bad)
                told.append(None)
                bad[1].sub_(1)
            except (IndexError, RuntimeError) as error:
                told.append((type(error), str(error).split("\n")[0]))
            torch.testing.assert_close(bad, before)
        assert told[0] == told[1]
    good, theirs = given(3), given(3)
    torch.testing.assert_close(listed(compiled(*good)), listed(written(*theirs)))
    torch.testing.assert_close(good, theirs)
