"""Writes to inference tensors outside of inference mode raise, after the effects that eager has."""

import pytest
import torch
import torchsmith_tracer


def inference(value):
    with torch.inference_mode():
        return torch.full((3,), value)


def add(a, x, log):
    a.add_(1)
    log.append(1)
    x.add_(1)
    return a * 2


def item(a, x, log):
    a.mul_(2)
    x[0] = 5.0
    return a + x


def view(a, x, log):
    log.append(2)
    x.view(-1)[1:].add_(a.add_(3).sum())
    return a


def out(a, x, log):
    torch.add(a, 1, out=x)
    return a.sub_(1)


def several(a, x, log):
    a.neg_()
    torch._foreach_add_([a, x], 1.0)
    return a


def handled(a, x, log):
    a.add_(1)
    try:
        x.add_(1)
    except RuntimeError as error:
        log.append(str(error)[:20])
    return a * x


def inside(a, x, log):
    with torch.inference_mode():
        x.add_(1)
        y = x * 2
        y.add_(a)
    return a + x


def made_inside(a, x, log):
    with torch.inference_mode():
        y = a * 2
        view = a.view(-1)
    view.add_(1)
    log.append(3)
    y.add_(1)
    return y


def only_read(a, x, log):
    a.add_(x)
    return a * x, x.is_inference()


PROGRAMS = [add, item, view, out, several, handled, inside, made_inside, only_read]


def course(f, order):
    """What calls give and leave behind; ``i``: with an inference tensor, ``I``: in its mode."""
    kept, seen = {"i": inference(1.0), "n": torch.full((3,), 1.0)}, []
    for kind in order:
        a, x, log = torch.ones(3), kept[kind.lower()], []
        error = result = None
        try:
            with torch.inference_mode(kind == "I"):
                result = f(a, x, log)
        except RuntimeError as e:
            error = str(e)
        seen.append((a.tolist(), x.tolist(), log, str(result), error))
    return seen


@pytest.mark.parametrize("order", ["ii", "niIn", "Iinin"])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_each_effect_happens_once(fn, order, capture):
    assert course(torchsmith_tracer.compile(fn, backend=capture), order) == course(fn, order)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_a_backend_that_does_not_notice(fn, capture):
    """The graph is not run for an inference tensor that it would write to."""

    def careless(gm, example_inputs):
        def run(*args):
            with torch.inference_mode():
                return gm(*args)

        return run

    if fn is made_inside:
        pytest.skip("eager checks what the backend has made")
    values = [
        [entry[:3] + entry[4:] for entry in course(f, "ninin")]
        for f in (torchsmith_tracer.compile(fn, backend=careless), fn)
    ]
    assert values[0] == values[1]


def test_ordinary_writes_stay_in_one_graph(check):
    def f(a):
        a.add_(1)
        return a * 2

    check(f, torch.ones(3), graphs=1)


def test_tensors_that_become_inference_tensors(capture):
    held = {"t": torch.zeros(3)}

    def f(x):
        held["t"].add_(1)
        return held["t"] * x

    compiled = torchsmith_tracer.compile(f, backend=capture)
    for _ in range(50):  # long enough for the check of what has not changed
        compiled(torch.ones(3))
    assert capture.n == 1
    torch.utils.swap_tensors(held["t"], inference(5.0))
    for n in range(2):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            compiled(torch.ones(3))
        assert held["t"].tolist() == [6.0 + n] * 3  # eager writes, then raises


def test_views_are_what_their_bases_are(capture):
    def f(x):
        v = x.view(-1)
        return v.is_inference(), x[:1].t().is_inference(), (x * 2)[:1].is_inference()

    compiled = torchsmith_tracer.compile(f, backend=capture)
    for _ in range(2):
        for mode in (False, True):
            for x in (torch.ones(2), inference(1.0)):
                with torch.inference_mode(mode):
                    assert compiled(x) == f(x)


@pytest.mark.parametrize("order", ["nin", "ini", "iin"])
def test_tensors_saved_after_a_write(order):
    rows = []
    for compile in (lambda f: f, lambda f: torchsmith_tracer.compile(f, backend="eager")):
        steps, w, seen = torch.zeros(1), torch.ones(3, requires_grad=True), []

        def f(x):
            steps.add_(1)
            return (w * x).sum() + (w.exp() * x.view(-1)).sum()

        run = compile(f)
        for kind in order:
            x = inference(2.0) if kind == "i" else torch.full((3,), 2.0)
            for gradients in (True, False):
                try:
                    with torch.set_grad_enabled(gradients):
                        result = str(run(x))
                except RuntimeError as e:
                    result = str(e)
                seen.append((result, steps.tolist(), steps._version))
        rows.append(seen)
    assert rows[0] == rows[1]
