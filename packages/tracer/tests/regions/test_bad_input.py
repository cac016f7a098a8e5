"""Hostile objects, endless recursion, huge constants, backends that return nonsense: eager's own
result or exception, at most one warning, and nothing left half done."""

import os
import time
import warnings

import pytest
import torch
import torchsmith_tracer
from torch import nn
from torchsmith_tracer import errors


class Raises:
    """Every special method that an implementation may call in passing raises."""

    def __eq__(self, other):
        raise ValueError("eq")

    def __hash__(self):
        raise ValueError("hash")

    def __repr__(self):
        raise ValueError("repr")

    def __bool__(self):
        raise ValueError("bool")

    def __len__(self):
        raise ValueError("len")

    def __iter__(self):
        raise ValueError("iter")

    def __getattr__(self, name):
        raise ValueError(f"getattr {name}")

    def __call__(self):
        raise ValueError("call")


class NoClass:
    @property
    def __class__(self):
        raise ValueError("class")


class Refuses:
    def __getattribute__(self, name):
        raise ValueError(name)


class Poses:
    """Says that it is a tensor, as mock objects with a specification do."""

    @property
    def __class__(self):
        return torch.Tensor


class RaisingDict(dict):
    def __iter__(self):
        raise ValueError("iter")

    def __len__(self):
        raise ValueError("len")

    def __getitem__(self, key):
        raise ValueError("getitem")

    keys = values = items = __iter__


class RaisingList(list):
    def __iter__(self):
        raise ValueError("iter")

    def __len__(self):
        raise ValueError("len")

    def __getitem__(self, key):
        raise ValueError("getitem")


class Tensors:
    """Special methods that return tensors where Python wants something else."""

    def __len__(self):
        return torch.ones(())

    def __bool__(self):
        return torch.ones(()) > 0

    def __eq__(self, other):
        return torch.ones(2)

    __hash__ = None


def attempt(fn, *args):
    try:
        return fn(*args)
    except Exception as e:
        return type(e), str(e)


def gb():
    """A graph break."""
    return os.getpid()


def passes(x, o):
    return x + 1, o


def keeps(x, o):
    y = x + 1
    gb()
    return y, [o, y][0] is o


def compares(x, o):
    return x + 1, attempt(lambda: bool(o == 3))


def truth(x, o):
    return x + 1, attempt(lambda: bool(o))


def measures(x, o):
    return x + 1, attempt(lambda: len(o)), attempt(lambda: list(o))


def reads(x, o):
    return x + 1, attempt(lambda: o.k)


def asks(x, o):
    return x + 1, attempt(lambda: isinstance(o, torch.Tensor)), attempt(lambda: type(o).__name__)


def hashes(x, o):
    return x + 1, attempt(lambda: {o: 1}[o])


def plain(result):
    """A result with tensors as lists and other objects by identity."""
    values = (int, bool, str, tuple)
    kinds = [type(r) for r in result]
    return [
        r.tolist() if kind is torch.Tensor else r if kind in values else id(r)
        for kind, r in zip(kinds, result)
    ]


# Classes, since the test runner looks at objects that are parameters.
HOSTILE = {Raises: (), NoClass: (), Refuses: (), Poses: (), Tensors: ()}
HOSTILE |= {RaisingDict: ({"a": 1},), RaisingList: ([1],)}


@pytest.mark.parametrize("use", [passes, keeps, compares, truth, measures, reads, asks, hashes])
@pytest.mark.parametrize("cls", HOSTILE)
def test_hostile_objects_are_what_they_are_in_eager(cls, use):
    hostile = cls(*HOSTILE[cls])
    run = torchsmith_tracer.compile(use)
    x = torch.ones(2)
    for _ in range(2):
        assert plain(run(x, hostile)) == plain(use(x, hostile))


def test_recursion_without_end_is_pythons_own_error():
    def forever(x, n=0):
        return forever(x, n + 1)

    def caught(x):
        try:
            return forever(x)
        except RecursionError:
            return x + 1

    run = torchsmith_tracer.compile(forever)
    for _ in range(2):
        with pytest.raises(RecursionError):
            run(torch.ones(1))
    assert torchsmith_tracer.compile(caught)(torch.ones(1)).item() == 2


def nested(depth):
    found = [3]
    for _ in range(depth):
        found = [found]
    return found


def test_a_thousand_nested_containers():
    def unnest(x, deep):
        count = 0
        while isinstance(deep, list):
            deep, count = deep[0], count + 1
        return x + count

    x = torch.ones(1)
    made = torchsmith_tracer.compile(lambda x: unnest(x, nested(1000)), fullgraph=True)
    assert made(x).item() == 1002
    passed = torchsmith_tracer.compile(lambda x, deep: (x + 1, deep), fullgraph=True)
    deep = nested(1000)
    assert passed(x, deep)[1] is deep


HUGE_INT = 10**5000
HUGE_TEXT = "text" * 1_000_000


def test_huge_constants():
    def fn(x, more):
        return x + HUGE_INT % 7 + len(HUGE_TEXT) + more % 11, HUGE_INT, HUGE_TEXT

    run = torchsmith_tracer.compile(fn, fullgraph=True, dynamic=False)
    for more in (10**6000, 10**6000 + 1):
        result, number, text = run(torch.ones(1), more)
        assert result.item() == fn(torch.ones(1), more)[0].item()
        assert number is HUGE_INT and text is HUGE_TEXT
    assert all(len(f.guards) < 5000 for f in run._torchsmith_region.log.frames)


class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity()])

    def forward(self, x):
        self.layers.append(nn.Identity())
        self.extra = nn.Identity()
        del self.extra
        self.count = len(self.layers)
        for layer in self.layers:
            x = layer(x) + 1
        return x * self.count


def test_a_module_that_changes_itself():
    own, other = Grows(), Grows()
    run = torchsmith_tracer.compile(own)
    for _ in range(4):
        assert run(torch.ones(1)).item() == other(torch.ones(1)).item()
    assert own.count == other.count == 5 and not hasattr(own, "extra")


def returns(what):
    def backend(gm, example_inputs):
        return what

    return backend


@pytest.mark.parametrize("what", [None, 3, "gm"])
def test_a_backend_that_returns_nothing_callable(what):
    seen = []

    def fn(x):
        seen.append(1)
        return x + 1

    run = torchsmith_tracer.compile(fn, backend=returns(what))
    for _ in range(2):
        with pytest.raises(errors.BackendError, match="not callable"):
            run(torch.ones(1))
    assert seen == []


@pytest.mark.parametrize("result", [None, (), (1, 2, 3), torch.ones(1), 7])
def test_a_backend_whose_graph_returns_nonsense(result):
    seen = []

    def fn(x, y):
        seen.append(1)
        return x + y, x - y

    run = torchsmith_tracer.compile(fn, backend=returns(lambda *args: result))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one, two = run(torch.ones(1), torch.ones(1))
    assert (one.item(), two.item(), seen) == (2, 0, [1])
    assert len(caught) == 1 and "TS-T905" in str(caught[0].message)


class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_backend_that_fails_within_a_context_leaves_it(number):
    compiles = []
    left = []

    class Context:
        def __enter__(self):
            return self

        def __exit__(self, *exc):
            left.append(exc[0])

    def backend(gm, example_inputs):
        compiles.append(gm)
        if len(compiles) == number:
            raise ValueError("no")
        return gm.forward

    @torchsmith_tracer.compile(backend=backend)
    def run(x):
        x = x + 1
        with Context(), torch.no_grad():
            gb()
            x = x * 2
            gb()
            x = x + 3
        return x

    with pytest.raises(errors.BackendError, match="ValueError: no"):
        run(torch.ones(1))
    assert left == [errors.BackendError] * (number > 1)
    assert torch.is_grad_enabled()


def test_a_mode_that_the_program_enters_is_left():
    def fn(x):
        with Mode():
            x = x * 2
            time.sleep(0)
            x = x + 1
        raise KeyError("after")

    with pytest.raises(KeyError):
        torchsmith_tracer.compile(fn)(torch.ones(1))
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_transform_whose_function_fails_leaves_no_level():
    def inner(y):
        gb()
        raise KeyError("inside")

    def fn(x):
        return torch.func.grad(inner)(x)

    for call in (torchsmith_tracer.compile(fn), torchsmith_tracer.compile(torch.vmap(inner))):
        with pytest.raises(KeyError):
            call(torch.ones(2))
        assert torch._C._functorch.peek_interpreter_stack() is None


class OfItsClass(torch.nn.Module):
    scale = torch.full((1,), 4.0)

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def forward(self, x):
        return self.linear(x) * self.scale


def test_a_graph_that_fails_may_read_a_tensor_of_a_class():
    """The error is the operator's own; the tensor is bound in the compiled code, not passed."""
    model = OfItsClass()
    compiled = torchsmith_tracer.compile(model, backend="eager")
    x = torch.ones(2, 1)
    assert torch.equal(compiled(x), model(x))
    model.linear.double()
    with pytest.raises(RuntimeError, match="must have the same dtype"):
        compiled(x)
    model.linear.float()
    assert torch.equal(compiled(x), model(x))
