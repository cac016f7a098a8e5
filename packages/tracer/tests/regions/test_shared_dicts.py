"""Objects that share one ``__dict__``: what is stored through one is read through the other."""

import collections
import copy
import functools
import re

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


BORG = """
class Plain: pass
class Table(dict): pass
class Slotted: __slots__ = ("s", "__dict__")
class Borg:
    shared = {"v": 1.0}
    def __init__(self): self.__dict__ = self.shared
    @property
    def known(self): return self.shared != {}
class Attributes(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self
options = Attributes(v=2.0, n=3)
other = Plain()
other.__dict__ = Table(v=4.0)
old = Plain()
old.v = 5.0
seen = vars(old)
"""
WHOLE = {
    "made": "b = Borg()\nb.v = b.v + 1\nc = Borg()\nreturn x * c.v, b.known, vars(b) is vars(c)",
    "class first": "d = Borg.shared\nb = Borg()\nb.w = x\nd['v'] = b.v + 1\nreturn d['w'], b.v",
    "order": "b, c = Borg(), Borg()\nv = b.v\ndel c.v\nb.w = 1\nc.v = v + 1\nreturn list(vars(b))",
    "missing": "b = Borg()\ntry: b.gone\nexcept AttributeError as e: return e.args, x * b.v",
    "left": "b = Borg()\nb.w = 2\nreturn b.__dict__ is Borg.shared, vars(b), x",
    "left behind": "c = Plain()\nold = vars(c)\nc.a = 1\nc.__dict__ = Borg.shared\nold['z'] = 2\n"
    "return x * c.v, old, sorted(vars(c))",
    "twice": "c, d = Plain(), {'a': 1}\nc.__dict__ = d\nc.__dict__ = {'b': 2}\nc.e = 3\n"
    "return x, d, vars(c)",
    "raised": "c = Plain()\nc.a = 1\ntry:\n    c.__dict__ = Borg.shared\n    c.v = c.v + 1\n"
    "    c.a\nexcept AttributeError as e: return e.args, x * c.v, Borg.shared['v']",
    "options": "options.v = options.v + 1\noptions['n'] = options.v\noptions.w = 1\n"
    "return x * options.n, list(options), vars(options) is options",
    "made options": "o = Attributes(v=x)\no.w = 1\no['z'] = o.v + o.w\ndel o.v\n"
    "return o.z, list(o.items())[0], vars(o) is o, len(o)",
    "subclass": "c, d = Plain(), Table(a=1)\nc.__dict__ = d\nc.b = 2\n"
    "return x, sorted(d), type(vars(c)), vars(c) is d",
    "of another": "other.k = other.v + 1\nreturn x * other.k, type(vars(other)), len(vars(other))",
}
BROKEN = {
    "between": "b = Borg()\nb.w = x * 2\nprint('w', flush=True)\nc = Borg()\nc.u = c.w + b.v\n"
    "return c.u, sorted(vars(b))",
    "existing": "old.__dict__ = {'v': old.v + 1}\nold.w = 2\nreturn x * old.v, seen, vars(old)",
    "ordered": "c = Plain()\nc.__dict__ = collections.OrderedDict(a=1)\nc.b = 2\n"
    "return x, c.b, list(vars(c)), type(vars(c))",
    "slots": "c, a = Slotted(), Slotted()\na.s = 1\nc.__dict__ = a.__dict__\nc.s = a.w = 2\n"
    "return a.s, c.w, x",
}


@pytest.mark.parametrize("body", [*WHOLE, *BROKEN])
def test_dicts_that_become_attributes(body):
    runs = []
    lines = "".join(f"    {line}\n" for line in (WHOLE | BROKEN)[body].splitlines())
    for compiled in (False, True):
        space = {"collections": collections}
        exec(BORG + "def f(x):\n" + lines, space)
        f = space["f"]
        if compiled:
            f = torchsmith_tracer.compile(f, backend="eager", fullgraph=body in WHOLE)
        found = [str(f(torch.ones(2))) for _ in range(3)]
        space["Borg"].shared["v"] = 7.0
        found.append(str(f(torch.ones(2))))
        space["Borg"].shared = {"v": 3.0, "more": 1}
        found += [str(f(torch.ones(2))), dict(space["Borg"].shared)]
        found += [dict(vars(space[name])) for name in ("options", "other", "old")]
        runs.append(re.sub("0x[0-9a-f]+", "", str([*found, space["seen"]])))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("first", [True, False])
def test_a_dict_becomes_that_of_an_object_later(first):
    class Plain:
        pass

    def f(x, table, obj):
        if first:
            table["v"] = table["v"] + 1
            return x * obj.v
        obj.v = obj.v + 1
        return x * table["v"]

    def results(fn):
        obj, table = Plain(), {"v": 2.0}
        obj.v = 2.0
        out = [fn(torch.ones(1), table, obj).item()]
        obj.v = table["v"] = 2.0
        obj.__dict__ = table
        return [*out, fn(torch.ones(1), table, obj).item()]

    assert results(torchsmith_tracer.compile(f, backend="eager")) == results(f)
