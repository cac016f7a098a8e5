"""Compiled functions follow the defaults and code of the function they were made from."""

import builtins
import sys
import types

import pytest
import torch
from torchsmith_tracer import compile


class _Method:
    def run(self, x, y=2, *, z=3):
        return x * y + z


class _Forward(torch.nn.Module):
    def forward(self, x, y=2, *, z=3):
        return x * y + z


def _kinds_of_functions():
    plain = types.FunctionType(_Method.run.__code__, {}, "run", (2,), None)
    plain.__kwdefaults__ = {"z": 3}

    def free(x, y=2, *, z=3):
        return x * y + z

    obj, module = _Method(), _Forward()
    return {
        "function": (free, free, ()),
        "unbound": (plain, plain, (None,)),
        "method": (_Method.run, obj.run, ()),
        "forward": (_Forward.forward, module.forward, ()),
        "module": (_Forward.forward, module, ()),
    }


@pytest.mark.parametrize("kind", _kinds_of_functions())
def test_changed_defaults_and_code_of_a_compiled_function_are_seen(kind, monkeypatch):
    fn, target, first = _kinds_of_functions()[kind]
    for name in ("__defaults__", "__kwdefaults__", "__code__"):
        monkeypatch.setattr(fn, name, getattr(fn, name))  # restored in the end
    g, x = compile(target, backend="eager", options={"recompile_limit": 64}), torch.ones(2)
    calls = [((), {}), ((7,), {}), ((), {"z": 9}), ((), {"y": 5, "z": 1}), ((1, 2, 3), {})]

    def outcome(f, args, kwargs):
        try:
            return f(*first, x, *args, **kwargs).tolist()
        except TypeError as e:
            return str(e) if kind == "function" and len(args) < 2 else TypeError

    def agree():
        for args, kwargs in calls:
            assert outcome(g, args, kwargs) == outcome(target, args, kwargs)

    agree()
    fn.__defaults__ = (10,)
    agree()
    fn.__kwdefaults__ = {"z": 30}
    agree()
    fn.__kwdefaults__["z"] = 40
    agree()
    fn.__kwdefaults__ = None
    agree()
    fn.__kwdefaults__, fn.__defaults__ = {"z": 3}, None
    agree()
    fn.__defaults__ = (2,)
    agree()
    if kind == "function":
        fn.__code__ = (lambda x, y, *, z: x * 100 + y - z).__code__
    else:
        fn.__code__ = (lambda self, x, y, *, z: x * 100 + y - z).__code__
    agree()
    fn.__defaults__ = (4,)
    agree()


def test_arguments_left_out_of_a_compiled_function_get_its_defaults_whatever_their_kind():
    def f(a, b=2, /, c=3, *rest, d=4, MISSING=5, **more):
        return a * b + c + sum(rest) + d * MISSING + len(more)

    g, x = compile(f, backend="eager"), torch.ones(2)
    for args, kwargs in (((), {}), ((7,), {"d": 1}), ((7, 8, 9), {"e": 1}), ((), {"c": 0})):
        assert g(x, *args, **kwargs).tolist() == f(x, *args, **kwargs).tolist()
    f.__defaults__ = (3,)
    with pytest.raises(TypeError) as want:
        f(x)
    with pytest.raises(TypeError) as got:
        g(x)
    assert str(got.value) == str(want.value)
    f.__code__ = (lambda a, b, /, c=3, *rest, d=4, MISSING=5, **more: a * b).__code__
    assert g(x, 5, d=1, e=2).tolist() == f(x, 5, d=1, e=2).tolist()


@pytest.mark.parametrize("place", ["__defaults__", "__kwdefaults__"])
def test_an_error_about_missing_arguments_has_no_context(place):
    def f(y=1, *, z=2):
        return sys.exc_info(), y, z

    compiled = compile(f, backend="eager")
    assert compiled() == f()
    setattr(f, place, None)
    for fn in (f, compiled):
        with pytest.raises(TypeError, match="missing 1 required") as caught:
            fn()
        assert caught.value.__context__ is None


MODULE = """
a: int = 3
b = a + len(x)
print(x.sum().item())
c: str = b * x
del b
"""


def test_the_code_of_a_module():
    def results(C):
        space = {"x": torch.ones(2)}
        run = C(types.FunctionType(builtins.compile(MODULE, "module.py", "exec"), space))
        found = []
        for value in (torch.ones(2), torch.zeros(3)):
            space["x"] = value
            run()
            found.append((space["a"], space["c"].tolist(), "b" in space))
            found.append((list(space["__annotations__"].items()), list(space)))
            del space["a"]
        return found

    assert results(lambda fn: compile(fn, backend="eager")) == results(lambda fn: fn)
