"""torch's contexts entered through their classes, as ``contextlib.ExitStack`` does it."""

import contextlib

import pytest
import torch
import torchsmith_tracer


class Logged(torch.no_grad):
    """A derived class, whose methods run."""

    log = []

    def __enter__(self):
        self.log.append("enter")
        super().__enter__()

    def __exit__(self, *error):
        self.log.append("exit")
        super().__exit__(*error)


OUTSIDE = torch.no_grad()
CONTEXTS = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "cpu.amp": lambda: torch.cpu.amp.autocast(dtype=torch.bfloat16),
    "inference_mode": torch.inference_mode,
    "record_function": lambda: torch.profiler.record_function("named"),
    "existing": lambda: OUTSIDE,
    "derived": Logged,
}


def state():
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
    )


def nested(x, make):
    states = [state()]
    with contextlib.ExitStack() as stack:
        given = stack.enter_context(make())
        y = x @ x
        states.append(state())
        stack.enter_context(torch.enable_grad())
        stack.callback(lambda: states.append(state()))
        z = x @ x
    states.append(state())
    return y, z, states, given is None


def raised(x, make):
    states = []
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(make())
            states.append(state())
            raise KeyError("inside")
    except KeyError as e:
        states.append((state(), e.args, e.__context__))
    return x @ x, states


def by_class(x, make):
    manager = make()
    kind = type(manager)
    kind.__enter__(manager)
    y, states = x @ x, [state()]
    kind.__exit__(manager, None, None, None)
    return y, [*states, state()]


def moved(x, make):
    with contextlib.ExitStack() as stack:
        stack.enter_context(make())
        kept = stack.pop_all()
        states = [state()]
    with kept:
        return x @ x, [*states, state()]


def broken(x, make):
    with contextlib.ExitStack() as stack:
        stack.enter_context(make())
        y = x @ x
        print("", end="", flush=True)
        states = [state()]
        z = x @ x
    return y, z, [*states, state()]


@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.parametrize("fn", [nested, raised, by_class, moved, broken])
def test_contexts_entered_through_their_classes(fn, name):
    whole = fn is not broken and name != "derived"
    compiled = torchsmith_tracer.compile(fn, backend="eager", fullgraph=whole)
    x = torch.linspace(-1, 1, 4).view(2, 2).requires_grad_()
    for _ in range(2):
        Logged.log.clear()
        expected, log = fn(x, CONTEXTS[name]), [*Logged.log]
        Logged.log.clear()
        found = compiled(x, CONTEXTS[name])
        assert (Logged.log, state()) == (log, (True, False, False))
        for a, b in zip(found, expected, strict=True):
            if isinstance(b, torch.Tensor):
                assert torch.equal(a, b)
                flags = [(t.dtype, t.requires_grad, t.is_inference()) for t in (a, b)]
                assert flags[0] == flags[1]
            else:
                assert a == b
