"""What a call's own effects make false of its guards: numbers that it changes are inputs at once,
and a backend hears of a version that is not likely to be called again."""

import types

import pytest
import torch
import torchsmith_tracer


class Recorder(torch.nn.Module):
    """Whatever a call may leave behind."""

    def __init__(self):
        super().__init__()
        self.cache = None
        self.n = 0
        self.scale = 1.5
        self.found = []
        self.table = {}
        self.numbers = {"calls": 3, "rate": 0.5}
        self.row = [1, 2]
        self.flag = False


def fill(m, x):
    if m.cache is None:
        m.cache = x + 1
    return x * m.cache


def add_attribute(m, x):
    if not hasattr(m, "late"):
        m.late = x.sum()
    return x * m.late


def grow_list(m, x):
    if len(m.found) < 1:
        m.found.append(x * 2)
    return x + m.found[0]


def grow_dict(m, x):
    for key in ("a", "b"):
        if key not in m.table:
            m.table[key] = x + 1
    return x + m.table["a"]


def flip(m, x):
    scaled = x * 2 if m.flag else x * 3
    m.flag = True
    return scaled


def put_back(m, x):
    before = m.cache
    m.cache = x + 1
    result = x * m.cache
    m.cache = before
    return result


def read_only(m, x):
    return x * 2 if m.cache is None and not m.found and not m.table else x


def count(m, x):
    m.n += 1
    return x * m.n


def decay(m, x):
    m.scale *= 0.9
    return x * m.scale


def count_in_dict(m, x):
    m.numbers["calls"] += 2
    m.numbers["rate"] *= 1.1
    return x * m.numbers["calls"] + m.numbers["rate"]


def count_in_list(m, x):
    m.row[1] += 1
    return x * m.row[1] + m.row[0]


def draw(m, x):
    if m.cache is None:
        m.cache = torch.rand(3)
    return x * m.cache


TOLD = {
    fill: "m.cache", add_attribute: "m.__dict__", grow_list: "m.found", grow_dict: "m.table",
    flip: "m.flag", put_back: None, read_only: None, draw: None,
}  # fmt: skip


class Told:
    """A backend that keeps what it is told of each graph."""

    def __init__(self):
        self.undoes = []

    def __call__(self, gm, inputs):
        self.undoes.append(gm.meta.get("undoes"))
        return gm.forward


@pytest.mark.parametrize("fn", TOLD, ids=lambda fn: fn.__name__)
def test_the_backend_hears_of_what_is_undone(fn):
    told = Told()
    compiled = torchsmith_tracer.compile(fn, backend=told)
    expected, found = Recorder(), Recorder()
    for call in range(4):
        x = torch.full((3,), call + 1.0)
        torch.manual_seed(0)
        wanted = fn(expected, x)
        torch.manual_seed(0)
        assert torch.equal(compiled(found, x), wanted)
    assert told.undoes[0] == TOLD[fn]
    assert not any(told.undoes[1:])
    assert len(told.undoes) == 1 + (fn not in (put_back, read_only))


@pytest.mark.parametrize("fn", [count, decay, count_in_dict, count_in_list])
def test_numbers_that_a_call_changes_are_inputs_at_once(fn, capture):
    compiled = torchsmith_tracer.compile(fn, backend=capture)
    expected, found = Recorder(), Recorder()
    for call in range(4):
        x = torch.full((3,), call + 1.0)
        assert torch.equal(compiled(found, x), fn(expected, x))
    assert capture.n == 1


def test_globals_and_captured_variables_that_a_call_changes(capture):
    source = "calls = 0\ndef fn(x):\n    global calls\n    calls += 1\n    return x * calls\n"
    module = types.ModuleType("counting")
    exec(source, module.__dict__)
    calls = 0

    def inner(x):
        nonlocal calls
        calls += 2
        return x * calls

    for step, fn in ((1, module.fn), (2, inner)):
        before = capture.n
        compiled = torchsmith_tracer.compile(fn, backend=capture)
        for call in range(1, 4):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), float(step * call)))
        assert capture.n == before + 1


def test_a_number_that_stays_as_it_is_remains_a_constant(capture):
    def once(m, x):
        m.n = 0
        return x * (m.n + 1)

    compiled = torchsmith_tracer.compile(once, backend=capture)
    m = Recorder()
    for _ in range(3):
        assert torch.equal(compiled(m, torch.ones(3)), torch.ones(3))
    assert capture.n == 1
    assert len(capture.inputs[0]) == 1


def test_constants_stay_where_the_program_wants_no_dynamic_ones(capture):
    compiled = torchsmith_tracer.compile(count, backend=capture, dynamic=False)
    expected, found = Recorder(), Recorder()
    for _ in range(3):
        assert torch.equal(compiled(found, torch.ones(3)), count(expected, torch.ones(3)))
    assert capture.n == 3


def test_a_number_that_cannot_be_an_input_stays_a_constant_in_a_whole_graph():
    def seeded(m, x):
        m.n += 1
        return x * torch.Generator().manual_seed(m.n).initial_seed()

    compiled = torchsmith_tracer.compile(seeded, backend="eager", fullgraph=True)
    assert torch.equal(compiled(Recorder(), torch.ones(3)), torch.ones(3))
