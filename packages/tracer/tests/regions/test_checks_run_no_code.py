"""A check of guards runs none of the user's code, whatever has become of what it reads."""

import functools
import weakref

import pytest
import torch
import torchsmith_tracer

SETUP = """
ran = []
class Hooked:
    def __getattr__(self, name):
        ran.append(name)
        return 7.0
class Cached:
    n = 1.0
    @functools.cached_property
    def v(self):
        ran.append("v")
        return self.n
class Getter:
    def __get__(self, instance, owner):
        ran.append("get")
        return 4.0
class Described: v = Getter()
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.v = 2.0
    def __getattr__(self, name):
        if name == "v":
            ran.append(name)
            return 9.0
        return super().__getattr__(name)
class List(list): pass
class Dict(dict): pass
def note(result): return lambda *args: ran.append(1) or result
"""
OBJECTS = {
    "Hooked()": "a.v = 2.0",
    "Cached()": "a.v",
    "Described()": "vars(a)['v'] = 2.0",
    "Net()": "",
}
ATTRIBUTES = ["del vars(a)['v']", "vars(a)['v'] = 5.0", "a = type(a)()", "vars(a)['v'] = 1.0"]
CONTENTS = {
    "List([1.0, 2.0])": ("x * a[0] * len(a)", ["__len__", "__getitem__", "__iter__"]),
    "Dict(k=1.0, j=2.0)": (
        "x * a['k'] + sum(a.values()) + len(a)",
        ["__getitem__", "__len__", "__iter__", "keys", "__contains__"],
    ),
}


def run(expression, made, changes, compiled):
    space = {"torch": torch, "functools": functools}
    exec(SETUP + f"a = {made}\n{OBJECTS.get(made, '')}\ndef f(x): return {expression}", space)
    f = torchsmith_tracer.compile(space["f"], backend="eager") if compiled else space["f"]
    results = []
    for change in ("", *changes, ""):
        exec(change, space)
        results.append((f(torch.ones(1)).item(), len(space["ran"])))
    return results


@pytest.mark.parametrize("made", OBJECTS)
def test_attributes_that_come_and_go(made):
    assert run("x * a.v", made, ATTRIBUTES, True) == run("x * a.v", made, ATTRIBUTES, False)


@pytest.mark.parametrize("made", CONTENTS)
def test_methods_that_a_subclass_of_a_container_gains(made):
    expression, names = CONTENTS[made]
    kind = made.partition("(")[0]
    results = {"__iter__": "iter([])", "keys": "[]", "__len__": "5", "__contains__": "True"}
    changes = [f"{kind}.{name} = note({results.get(name, 3.0)})" for name in names]
    changes += [f"del {kind}.{name}" for name in names]
    assert run(expression, made, changes, True) == run(expression, made, changes, False)


def test_a_descriptor_that_only_sets_does_not_hide_an_entry():
    class Setter:
        def __set__(self, instance, value):
            instance.__dict__["v"] = value * 2

    class Plain:
        v = Setter()

    class Net(torch.nn.Module):
        v = Setter()

    def f(x, a):
        a.v = 3.0
        return x * a.v

    compiled = torchsmith_tracer.compile(f, backend="eager")
    for made in (Plain(), Net(), Plain()):
        assert compiled(torch.ones(1), made).item() == 6.0


def test_finalizers_are_made_and_asked_natively():
    class Held:
        pass

    kept, log = [Held()], []

    def f(x):
        fin = weakref.finalize(kept[0], log.append, "late")
        log.append(fin.alive)
        fin.detach()
        log.append(fin.alive)
        weakref.finalize(kept[0], log.append, "end").atexit = False
        return x + 1

    compiled = torchsmith_tracer.compile(f, backend="eager")
    assert compiled(torch.ones(1)).item() == 2
    assert compiled(torch.ones(1)).item() == 2
    kept.clear()
    assert log == [True, False, True, False, "end", "end"]


def test_entries_that_are_missing_and_keys_that_are_hashed():
    def results(compiled):
        space = {"torch": torch, "functools": functools}
        exec(
            SETUP + "class Missing(dict):\n"
            "    def __missing__(self, key): return note(4.0)()\n"
            "class Key:\n"
            "    def __hash__(self): return note(3)()\n"
            "    def __eq__(self, other): return note(True)()\n"
            "import collections\n"
            "a, d = Missing(k=1.0), collections.defaultdict(note(2.0), k=1.0)\n"
            "keys = {Key(): 2.0}\n"
            "def f(x): return x * a['k'] + d['k'] + keys[Key()]",
            space,
        )
        f = torchsmith_tracer.compile(space["f"], backend="eager") if compiled else space["f"]
        out = []
        for change in ("", "del a['k']", "del d['k']", "a['k'] = 5.0", "del a['k'], d['k']"):
            exec(change, space)
            out.append((f(torch.ones(1)).item(), len(space["ran"]), list(space["d"])))
        return out

    assert results(True) == results(False)


def test_why_a_check_failed_is_told_without_code_of_another_class():
    ran = []

    class Plain:
        v = 2.0

    class Noisy:
        def __getitem__(self, key):
            ran.append(key)
            return 3.0

        def __len__(self):
            ran.append("len")
            return 2

        def __getattr__(self, name):
            ran.append(name)
            return 3.0

    class Loud(Noisy):
        @property
        def v(self):
            ran.append("property")
            return 4.0

    def f(x, a):
        if type(a) is dict:
            return x * a["k"]["j"] + len(a["k"])
        if type(a) is list:
            return x * a[0][1] + len(a)
        if type(a) is Plain:
            return x * a.v
        return x

    compiled = torchsmith_tracer.compile(f, backend="eager", options={"recompile_limit": 30})
    given = [
        {"k": {"j": 2.0}},
        [[1.0, 2.0]],
        Plain(),
        Noisy(),
        Loud(),
        torch.ones(2),
        {"k": Loud()},
    ]
    for a in [*given[:-1], [Loud()], *given]:
        ran.clear()
        expected, found = f(torch.ones(2), a), ran.copy()
        ran.clear()
        assert torch.equal(compiled(torch.ones(2), a), expected)
        assert ran == found


def test_compiling_asks_no_object_for_its_class():
    class Asked:
        def __getattribute__(self, name):
            asked.append(name)
            return object.__getattribute__(self, name)

    def f(x, a):
        a.k = 3
        shared.last = a
        y = x * a.k
        del a.k
        return y

    asked, shared = [], Asked()
    compiled = torchsmith_tracer.compile(f, backend="eager")
    for _ in range(3):
        compiled(torch.ones(2), Asked())
    assert asked == ["k"] * 3
