"""What a backend is given: calls as the program makes them, and the modes that they are made in."""

import traceback

import pytest
import torch
import torchsmith_tracer as tracer

X = torch.arange(12.0).reshape(2, 2, 3)


def names(gm):
    return [getattr(n.target, "__name__", n.target) for n in gm.graph.nodes if "call" in n.op]


def product(a):
    return a @ a.mT


def without_gradient(a):
    with torch.no_grad():
        b = a * 2
    return b + a


def in_low_precision(a):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        b = torch.matmul(a, a.mT)
    return b, torch.matmul(a, a.mT)


CASES = [
    (product, ["getattr", "matmul"]),
    (without_gradient, ["_set_grad_enabled", "mul", "_set_grad_enabled", "add"]),
    (
        in_low_precision,
        ["_enter_autocast", "getattr", "matmul", "_exit_autocast", "getattr", "matmul"],
    ),
]


@pytest.mark.parametrize(("fn", "wanted"), CASES, ids=[case[0].__name__ for case in CASES])
def test_composites_and_modes_are_nodes(fn, wanted, capture):
    """What stock records with ``make_fx(..., pre_dispatch=True)``."""
    compiled = tracer.compile(fn, backend=capture, fullgraph=True)
    for grad in (True, False, True):
        x = (X + grad).requires_grad_(grad)
        with torch.set_grad_enabled(grad):
            got, want = compiled(x), fn(x)
            assert torch.is_grad_enabled() is grad and not torch.is_autocast_enabled("cpu")
        torch.testing.assert_close(got, want)
        results = [t if isinstance(t, tuple) else (t,) for t in (got, want)]
        assert [t.requires_grad for t in results[0]] == [t.requires_grad for t in results[1]]
    assert names(capture.graphs[0]) == wanted


def test_shape_errors_are_eagers_at_the_users_call():
    def wrong(a, b):
        c = a + 1
        return torch.matmul(c, b)

    for fullgraph in (True, False):
        compiled = tracer.compile(wrong, fullgraph=fullgraph)
        for a, b in ((torch.ones(3, 4),) * 2, (torch.ones(2, 5),) * 2):
            with pytest.raises(RuntimeError) as theirs:
                wrong(a, b)
            with pytest.raises(RuntimeError, match=r"3x4 and 3x4|2x5 and 2x5") as mine:
                compiled(a, b)
            assert type(mine.value) is type(theirs.value) and str(mine.value) == str(theirs.value)
            frames = traceback.extract_tb(mine.value.__traceback__)
            assert [f.line for f in frames if f.name == "wrong"] == ["return torch.matmul(c, b)"]
        torch.testing.assert_close(
            compiled(torch.ones(3, 4), torch.ones(4, 3)), torch.full((3, 3), 8.0)
        )
