"""Objects that share one ``__dict__``: what is stored through one is read through the other."""

import copy
import functools

import pytest
import torch
import torchsmith_tracer
from torch import nn

SETUP = """
class Plain: pass
class Other: pass
class Borg:
    shared = {"v": 1.0}
    def __init__(self): self.__dict__ = Borg.shared
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = 2.0
def pair(first, second):
    second.__dict__ = first.__dict__
    first.v = 2.0
    return first, second
"""
SHARED = {
    "plain": "a, b = pair(Plain(), Plain())",
    "classes": "a, b = pair(Plain(), Other())",
    "borg": "a, b = Borg(), Borg()",
    "modules": "a, b = pair(Net(), Net())",
}
BODIES = {
    "store": "b.v = b.v + 1.0\nreturn x * a.v",
    "between": "y = x * a.v\nb.v = b.v + 1.0\nreturn y * a.v",
    "new": "b.w = a.v\na.w = a.w + 1\nreturn x * b.w, sorted(vars(a)) == sorted(vars(b))",
    "delete": "b.w = 1.0\ndel a.w\nreturn x, hasattr(b, 'w')",
    "vars": "vars(a)['v'] = b.v + 1\nreturn x * b.v * vars(b)['v']",
    "table": "d = vars(a)\nb.v = b.v + 1\nreturn x * d['v']",
    "replaced": "c = Plain()\nc.__dict__ = a.__dict__\nc.v = c.v + 1\nreturn x * a.v * b.v",
    "born": "d = {'v': 1.0}\nc = Plain()\nc.__dict__ = d\nd['v'] = 3.0\nreturn x * c.v",
    "left": "d = {'v': b.v}\nc = Plain()\nc.__dict__ = d\nd['w'] = 3.0\nreturn x, vars(c), [d]",
    "born view": "c = Plain()\nc.__dict__ = a.__dict__\nc.w = c.v + b.v\n"
    "x = x * a.w, c.__dict__ is b.__dict__, vars(c) is vars(Plain()), hasattr(c, 'gone')\n"
    "del c.w\nreturn x, sorted(vars(b))",
    "both born": "c, d = Plain(), Plain()\nc.v = x\nd.__dict__ = c.__dict__\nd.w = 2\n"
    "e = Plain()\ne.__dict__ = d.__dict__\nreturn x * c.w, vars(c) is vars(d) is vars(e),\\\n"
    "  d.v is x, e.w, vars(d)",
    "loaded": "table['v'] = table['v'] + 1\nreturn x * a.v * b.v",
    "loaded last": "a.v = a.v + 1\nreturn x * table['v'] * b.v",
}


@pytest.mark.parametrize("how", SHARED)
@pytest.mark.parametrize("body", BODIES)
def test_stores_through_one_are_seen_through_the_other(how, body):
    runs = []
    for compiled in (False, True):
        space = {"nn": nn, "torch": torch, "types": __import__("types")}
        exec(SETUP + SHARED[how] + "\ntable = vars(a)\n", space)
        lines = "".join(f"    {line}\n" for line in BODIES[body].splitlines())
        exec("def f(x):\n" + lines, space)
        f = torchsmith_tracer.compile(space["f"], backend="eager") if compiled else space["f"]
        results = []
        for _ in range(3):
            result = f(torch.ones(2))
            results.append([r.tolist() if hasattr(r, "tolist") else r for r in (result,)])
        numbers = {k: v for k, v in vars(space["a"]).items() if isinstance(v, float)}
        runs.append((str(results), numbers))
    assert runs[0] == runs[1]


def test_dicts_that_are_shared_later():
    class Plain:
        pass

    def f(x, a, b):
        b.v = b.v + 1.0
        return x * a.v

    def results(fn):
        a, b = Plain(), Plain()
        a.v, b.v = 2.0, 5.0
        out = [fn(torch.ones(1), a, b).item()]
        b.__dict__ = a.__dict__
        out.append(fn(torch.ones(1), a, b).item())
        b.__dict__ = dict(a.__dict__)
        out.append(fn(torch.ones(1), a, b).item())
        return out

    assert results(torchsmith_tracer.compile(f, backend="eager")) == results(f)


@pytest.mark.parametrize("born", [True, False])
def test_a_copied_partial_shares_its_dict(born, agree):
    def copied(made):
        again = copy.copy(made)
        again.other = 2
        return hasattr(made, "other"), vars(made) is vars(again), sorted(vars(again)), again()

    def f(x, add):
        if born:
            add, bare = functools.partial(torch.neg, x), functools.partial(torch.neg, x)
        add.note = [x]
        return copied(add), add, copied(bare) if born else None

    log = agree(f, torch.ones(2), functools.partial(torch.add, torch.ones(2), torch.ones(2)))
    assert not (born and log.breaks)
