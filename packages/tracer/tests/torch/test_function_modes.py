"""Torch-function modes in and around compiled functions, against eager."""

import pytest
import torch
import torch.nn.functional as F
import torchsmith_tracer
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode

BASE = torch.arange(6.0).reshape(2, 3)
SEEN = []


class Noting(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        SEEN.append((func.__name__, [t.__name__ for t in types], len(args), [*(kwargs or ())]))
        return func(*args, **(kwargs or {}))


class Scaling(TorchFunctionMode):
    """Multiplies what ``torch.add`` gives."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * self.by if func in (torch.add, torch.Tensor.add) else result


class Quiet(TorchFunctionMode):
    """Records no gradients while it is asked."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        with torch.no_grad():
            return func(*args, **(kwargs or {}))


class Refusing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return NotImplemented


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        SEEN.append(("class", func.__name__))
        return super().__torch_function__(func, types, args, kwargs or {})


KEPT = Scaling(3)


def scaled(x):
    y = x + 1
    with Scaling(3):
        y = torch.add(y, 2) + (y + 1)
    return y + 1


def noted(x, y):
    with Noting():
        z = x + y
        z = (1 - z, -z, z > 1, z[0], x.T, x.shape, x.view(-1), len(x), F.relu(x), torch.cat([x, y]))
        z += (torch.ones(2), F.linear(x, y), x.sum(dim=0), x.size(0), torch.ops.aten.mul(x, 2))
        x.add_(1)
        x[0] = 3
    return z, x


def nested(x):
    with Scaling(2) as outer, Scaling(5), Noting():
        y = torch.add(x, 1)
        with outer:
            y = y + 1
    return y, outer.by


def quiet(x):
    y = (x * 1.5).requires_grad_()
    with Quiet():
        z = y * 2
    return z, y * 2


def kept(x):
    with KEPT:
        return x + 1


def raising(x):
    try:
        with Scaling(2):
            y = x + 1
            raise ValueError
    except ValueError:
        return y + 1


def placed(x):
    with torch.device("meta"):
        a, b = torch.ones(3), torch.zeros(2, device="cpu")
        with torch.device("cpu"):
            c = torch.full((2,), 3)
    return a.device, b + 1, c, torch.ones(2), x + 1


def module_made(x):
    with torch.device("meta"):
        layer = torch.nn.Linear(3, 2)
    return layer.weight.device, x * 2


def default_device(x):
    return torch.ones(3).device, x + torch.ones(3, device=x.device)


def broken(x):
    with Scaling(2):
        y = x + 1
        if y.sum() > 3:
            y = y + 1
    return y + 1


def broken_device(x):
    with torch.device("meta"):
        print(end="")
        y = torch.ones(2)
    return y.device, torch.ones(2)


def state(x):
    with Noting(), torch.no_grad():
        return x * 2


def refused(x):
    with Refusing():
        return x + 1


def based(x):
    with BaseTorchFunctionMode():
        return (x + 1).relu()


def watched_subclass(x):
    with Noting():
        return x + 1, x.shape


def switched_off(x):
    with Noting(), torch._C.DisableTorchFunctionSubclass():
        return x + 1


def all_off(x):
    with Noting():
        with torch._C.DisableTorchFunction():
            y = x + 1
        return y * 2


def asked(x):
    with Noting():
        inside = torch.overrides.has_torch_function_unary(x), len(SEEN)
    return inside, torch.overrides.has_torch_function_unary(x), x * 2


WHOLE = {
    fn.__name__: (fn, args)
    for fn, args in [
        (scaled, (BASE,)), (noted, (BASE, BASE + 1)), (nested, (BASE,)), (kept, (BASE,)),
        (raising, (BASE,)), (placed, (BASE,)), (module_made, (BASE,)), (default_device, (BASE,)),
        (based, (BASE,)), (quiet, (BASE,)), (watched_subclass, (BASE.as_subclass(Tagged),)),
        (switched_off, (BASE.as_subclass(Tagged),)), (asked, (BASE,)),
        (all_off, (BASE.as_subclass(Tagged),)),
    ]
}  # fmt: skip
BROKEN = {
    fn.__name__: (fn, args)
    for fn, args in [
        (broken, (BASE,)), (broken_device, (BASE,)), (state, (BASE,)), (refused, (BASE,)),
    ]
}  # fmt: skip


def shown(value):
    with torch._C.DisableTorchFunctionSubclass():
        if isinstance(value, torch.Tensor):
            content = None if value.is_meta else value.detach().tolist()
            return type(value), value.dtype, value.shape, value.requires_grad, content
        if isinstance(value, tuple | list):
            return type(value), [shown(v) for v in value]
        return value


def run(fn, args):
    SEEN.clear()
    with torch._C.DisableTorchFunctionSubclass():
        args = [a.clone().as_subclass(type(a)) for a in args]
    try:
        result = shown(fn(*args))
    except Exception as e:
        result = type(e)
    return result, list(SEEN), shown(args)


@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name, capture):
    fn, args = WHOLE[name]
    compiled = torchsmith_tracer.compile(fn, backend=capture, fullgraph=True)
    for _ in range(2):
        assert run(compiled, args) == run(fn, args)
    assert torch._C._len_torch_function_stack() == 0
    assert capture.n <= 1


@pytest.mark.parametrize("name", BROKEN)
def test_breaks_are_right(name, capture):
    fn, args = BROKEN[name]
    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for _ in range(2):
        assert run(compiled, args) == run(fn, args)
    assert torch._C._len_torch_function_stack() == 0


def test_modes_around_the_call(capture):
    compiled = torchsmith_tracer.compile(scaled, backend=capture)
    for _ in range(2):
        for mode in (None, Scaling(7), Noting()):
            if mode is None:
                assert run(compiled, (BASE,)) == run(scaled, (BASE,))
                continue
            with mode:
                ours = compiled(BASE)
                seen = list(SEEN)
                SEEN.clear()
                theirs = scaled(BASE)
            assert torch.equal(ours, theirs)
            assert isinstance(mode, Scaling) or seen[-len(SEEN) :] == SEEN
            SEEN.clear()
    assert capture.n == 1


def test_a_device_around_the_call(capture):
    compiled = torchsmith_tracer.compile(lambda: torch.ones(3) + 1, backend=capture)
    for _ in range(2):
        for device in ("cpu", "meta"):
            with torch.device(device):
                assert compiled().device.type == device
        assert compiled().device.type == "cpu"
        torch.set_default_device("meta")
        try:
            assert compiled().device.type == "meta"
        finally:
            torch.set_default_device(None)


def test_what_a_mode_holds_changes_between_calls(monkeypatch, capture):
    compiled = torchsmith_tracer.compile(kept, backend=capture)
    for change in (
        lambda: monkeypatch.setattr(KEPT, "by", 4),
        lambda: monkeypatch.setattr(Scaling, "__torch_function__", Noting.__torch_function__),
        lambda: monkeypatch.setitem(globals(), "KEPT", Scaling(6)),
    ):
        assert run(compiled, (BASE,)) == run(kept, (BASE,))
        change()
        assert run(compiled, (BASE,)) == run(kept, (BASE,))
