"""What planning a graph costs: steps are not repeated, and do not grow with what came before."""

import pytest
import torch
from plans import trace
from torchsmith_fx_backend._src.schedule import fuse, schedule_graph, scheduler


def counted(monkeypatch, owner, name):
    calls = []
    made = getattr(owner, name)

    def call(*args, **kwargs):
        calls.append(args)
        return made(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.mark.parametrize(("quick", "plans"), [(True, 4), (False, 5)])
def test_no_plan_is_made_twice(monkeypatch, quick, plans):
    monkeypatch.setattr(scheduler, "eager_peak", lambda facts: -scheduler.SLACK)
    if not quick:
        monkeypatch.setattr(fuse, "QUICK_LAUNCH", frozenset())
    made = counted(monkeypatch, scheduler, "plan_with")
    known = counted(monkeypatch, scheduler, "Facts")
    x = torch.randn(4, 4)
    schedule_graph(trace(lambda x: (x @ x).sin() @ x, x))
    assert len({policy for _, policy, _ in made}) == len(made) == plans
    assert len(known) == 1


def test_facts_are_found_again_after_a_walk_that_changed_them(monkeypatch):
    monkeypatch.setattr(scheduler, "eager_peak", lambda facts: -scheduler.SLACK)
    known = counted(monkeypatch, scheduler, "Facts")
    made = counted(monkeypatch, scheduler, "plan_with")

    def fn(x, y):
        x.copy_(y.long())  # into strides that a kernel does not write: aten needs it in memory

    x = torch.zeros(4, 8, dtype=torch.int64)[:, ::2]
    schedule_graph(trace(fn, x, torch.randn(4, 4)))
    assert len(known) == len(made)


def test_units_that_others_took_in_are_not_walked_again(monkeypatch):
    def fn(x, n):
        for _ in range(n):
            x = x.sin() @ x.cos()
            y = (x + 1).softmax(-1)
            x = x * y.sum(-1, keepdim=True)
        return x

    fusers = counted(monkeypatch, fuse.Fuser, "run")
    schedule_graph(trace(lambda x: fn(x, 6), torch.randn(4, 4)))
    fuser = fusers[0][0]
    assert fuser._numbered > len(fuser.units)
    assert all(unit.nest or unit.node for unit in fuser.units)
    assert set(fuser.unit_of.values()) <= set(fuser.units)


def test_nothing_is_asked_who_depends_on_what_nothing_depends_on(monkeypatch):
    """Else each node of a long graph looks at all units before it."""

    class Units(list):
        walks = 0

        def __iter__(self):
            type(self).walks += 1
            return super().__iter__()

    made = fuse.Fuser.__init__

    def init(self, *args):
        made(self, *args)
        self.units = Units()

    def fn(x):
        return [(x * float(i)).sum() for i in range(40)]

    monkeypatch.setattr(fuse.Fuser, "__init__", init)
    schedule_graph(trace(fn, torch.randn(64)), policies=[scheduler.Policy(-1, share=False)])
    assert 0 < Units.walks < 20
