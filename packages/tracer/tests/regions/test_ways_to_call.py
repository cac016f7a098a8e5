"""However a compiled function is called, what it was called with is freed at once afterwards:
without help of the garbage collector, though the compiled function lives on."""

import gc
import weakref

import pytest
import torch
import torchsmith_tracer
from torch import nn


class Box:
    k = 2


def compiled(fn, **options):
    return torchsmith_tracer.compile(fn, backend=options.pop("backend", "eager"), **options)


def keywords():
    fn = compiled(lambda x, *, y, **kw: x + y + kw["z"])
    x, y, z = (torch.ones(2) for _ in range(3))
    fn(x, y=y, z=z)
    return fn, (x, y, z)


def nested_containers():
    fn = compiled(lambda d: d["a"][0] + d["b"][1]["c"])
    x, y, box = torch.ones(2), torch.ones(2), Box()
    fn({"a": [x, box], "b": (1, {"c": y})})
    return fn, (x, y, box)


def stores():
    def store(box, x):
        box.y = x + box.k
        return box.y

    fn, box, x = compiled(store), Box(), torch.ones(2)
    fn(box, x)
    return fn, (box, x, box.y)


def gradients():
    fn, x = compiled(lambda x: (x * 2).sum()), torch.ones(3, requires_grad=True)
    y = fn(x)
    y.backward()
    return fn, (x, x.grad, y)


def modules_with_hooks():
    fn, m, box, x = compiled(lambda m, x: m(x)), nn.Linear(2, 2), Box(), torch.ones(2)
    m.register_forward_hook(lambda m, args, out, box=box: out + box.k)
    fn(m, x).sum().backward()
    return fn, (m, x, box, m.weight, m.weight.grad)


def functions_with_cells():
    held, x = torch.ones(2), torch.ones(2)
    fn, called = compiled(lambda x, g: g(x)), lambda x: x + held
    fn(x, called)
    return fn, (called, x)


def what_escapes():
    def escape(x):
        return lambda y: y + x

    fn, x = compiled(escape), torch.ones(2)
    inner = fn(x)
    inner(x)
    return fn, (x, inner)


def breaks():
    def breaking(x, box):
        y = x + 1
        gc.isenabled()
        return y * x.tolist()[0] + box.k

    fn, x, box = compiled(breaking), torch.ones(2), Box()
    fn(x, box)
    return fn, (x, box)


class OwnError(Exception):
    pass


def raises():
    def fail(x, box):
        raise OwnError(x + 1, box)

    fn, x, box = compiled(fail), torch.ones(2), Box()
    try:
        fn(x, box)
    except OwnError as e:  # its traceback leads here: weakly, or it would keep itself alive
        refs = [weakref.ref(obj) for obj in (x, box, e, e.args[0])]
    return fn, refs


def a_failed_compile():
    def refuse(gm, inputs):
        raise RuntimeError("no")

    fn, x = compiled(lambda x: x + 1, backend=refuse), torch.ones(2)
    with pytest.raises(torchsmith_tracer.errors.BackendError) as info:
        fn(x)
    del info
    return fn, (x,)


def recompiles_past_the_limit():
    fn, refs = compiled(lambda x, box: x + box.k, options={"recompile_limit": 3}), []
    for n in range(8):
        x, box = torch.ones(n + 2), type("Fresh", (Box,), {"k": n})()
        fn(x, box)
        refs += [x, box]
    return fn, refs


def generators():
    def items(x, box):
        yield x
        try:
            yield x + box.k
        finally:
            box.k = 4

    def consume(x, box):
        it = items(x, box)
        return sum(items(x, box)) + next(it) + next(it), it

    fn, x, box = compiled(consume), torch.ones(2), Box()
    fn(x, box)
    return fn, (x, box)


def modes():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, fn, types, args=(), kwargs=None):
            return fn(*args, **(kwargs or {}))

    fn, x, mode = compiled(lambda x: x + 1), torch.ones(2), Mode()
    with mode:
        fn(x)
    return fn, (x, mode)


def autocast():
    def cast(x, m):
        with torch.autocast("cpu", torch.bfloat16):
            return m(x)

    fn, m, x = compiled(cast), nn.Linear(2, 2), torch.ones(1, 2)
    fn(x, m)
    return fn, (m, x)


def keys_and_elements():
    fn = compiled(lambda x, table, s, box: x + table[box] + len({box}) + (x in s))
    x, box = torch.ones(2), Box()
    fn(x, {box: 1}, {x}, box)
    return fn, (x, box)


def keys_with_hashes_of_their_own():
    class Key:
        def __hash__(self):
            return 3

        def __eq__(self, other):
            return type(other) is Key

    fn, key, x = compiled(lambda x, table, key: x + table[key]), Key(), torch.ones(2)
    fn(x, {key: 1}, Key())
    return fn, (x, key)


def weak_containers():
    fn = compiled(lambda x, box, table, s: x + table[box] + (box in s))
    x, box = torch.ones(2), Box()
    fn(x, box, weakref.WeakKeyDictionary({box: 1}), weakref.WeakSet([box]))
    return fn, (x, box)


WAYS = [
    *(keywords, nested_containers, stores, gradients, modules_with_hooks, functions_with_cells),
    *(what_escapes, breaks, raises, a_failed_compile, recompiles_past_the_limit, generators),
    *(modes, autocast, keys_and_elements, keys_with_hashes_of_their_own, weak_containers),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_of_the_call_is_alive_after_it(way):
    gc.collect()
    gc.disable()
    try:
        fn, objects = way()
        refs = [obj if type(obj) is weakref.ref else weakref.ref(obj) for obj in objects]
        del objects
        assert [type(obj).__name__ for ref in refs if (obj := ref()) is not None] == []
        assert callable(fn)
    finally:
        gc.enable()
