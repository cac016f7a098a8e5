"""``tensor.data`` in compiled code: read, written through and assigned, as momentum teachers and
masked convolutions do."""

import copy

import pytest
import torch
import torchsmith
from torch import nn


def _swap(p, q):
    p.data, q.data = q.data, p.data
    return p - q


def _alias(p, q):
    p.data = q.data
    p.add_(1)
    return p * 2, q + 0


def _written_after(p, q):
    made = q * 2
    p.data = made
    made.add_(1)
    p.data.mul_(3)
    return p + 1


def _twice(p, q):
    p.data = q * 2
    p.data = p.data + q
    return p * q


def _old_place(p, q):
    old, view = p.data, p.view(-1)
    p.data = q + 1
    old.add_(5)
    return old + p, view * 1


def _part(p, q):
    p.data = torch.cat([q, q])[:3]
    p[0] = 7
    return p + 1


def _same_place(p, q):
    p.data *= q
    return p + 1, p.data


def _given_on(p, q):
    p.data = q
    q.data = torch.zeros(2)
    q.add_(1)
    p.mul_(3)
    return p + 1, q * 2


def _returned(p, q):
    p.data = q * 2
    return p


def _tensors(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize(
    "fn",
    [_swap, _alias, _written_after, _twice, _old_place, _part, _same_place, _given_on, _returned],
)
def test_values_and_places(fn):
    def call(run):
        torch.manual_seed(0)
        p, q = torch.randn(3, 3), torch.randn(3, 3)
        kept = p.detach()
        found = _tensors(run(p, q))
        together = [[a.data_ptr() == b.data_ptr() for a in (p, q, kept)] for b in (p, q, *found)]
        return [p, q, kept, *found], together, [f is p for f in found], q._version

    mine, eager = call(torchsmith.compile(fn)), call(fn)
    assert all(torch.equal(a, b) for a, b in zip(mine[0], eager[0], strict=True))
    assert mine[1:] == eager[1:]


OTHERS = {
    "another type": lambda p: p.data.double(),
    "other sizes": lambda p: p.data[:2].clone(),
    "other strides": lambda p: p.data.t().contiguous().t(),
    "a smaller type": lambda p: p.data.bfloat16(),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_data_of_another_layout_or_type(name, grad):
    """What the graph is given is still told by what it was before: kernels read it so."""

    def fn(p):
        p.data = OTHERS[name](p)
        return p * 2, p.sum(0)

    def call(run):
        p = torch.arange(9.0).reshape(3, 3).requires_grad_(grad)
        return [p, *run(p), *run(p)] if name != "other sizes" else [p, *run(p)]

    mine, eager = call(torchsmith.compile(fn)), call(fn)
    for a, b in zip(mine, eager, strict=True):
        assert torch.equal(a, b) and (a.dtype, a.stride()) == (b.dtype, b.stride())


PLACES = {
    "every second": lambda: torch.arange(8.0)[::2],
    "a column": lambda: torch.arange(16.0).view(4, 4)[:, 1],
    "imaginary parts": lambda: (torch.arange(4.0) * 1j).imag,
    "the other order": lambda: torch.arange(4.0).view(2, 2).t(),
}


def _scaled(p, q):
    p.data = p.data * 2 + q
    return p + 1


def _old_and_new(p, q):
    old = p.data
    p.data = (old + q).contiguous()
    old.add_(5)
    return old + p, p


def _from_elsewhere(p, q):
    before = p * 3
    p.data = q + 0
    return before, p * before


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [_scaled, _old_and_new, _from_elsewhere])
@pytest.mark.parametrize("name", PLACES)
def test_what_is_read_lies_where_it_did(name, fn, dynamic):
    def call(run):
        found = []
        for _ in range(2):
            p = PLACES[name]()
            base, q = p._base, torch.ones(p.shape)
            found += [p, base, *_tensors(run(p, q))]
        return found

    for a, b in zip(call(torchsmith.compile(fn, dynamic=dynamic)), call(fn), strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()


def test_parts_of_a_graph_take_what_the_data_is_by_then():
    def fn(p):
        p.data = p.data.double()
        torch.use_deterministic_algorithms(True)  # the graph is cut here
        return p * 2

    compiled = torchsmith.compile(fn)
    try:
        for _ in range(2):
            found = compiled(torch.arange(3.0))
            torch.use_deterministic_algorithms(False)
            assert torch.equal(found, torch.arange(3.0).double() * 2)
    finally:
        torch.use_deterministic_algorithms(False)


def test_modules_that_are_moved_to_another_type_and_back():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    fn = lambda x: model.to(x.dtype)(x)  # noqa: E731
    compiled = torchsmith.compile(fn)
    for dtype in (torch.float32, torch.float64, torch.float32, torch.bfloat16):
        x = torch.ones(3, 4, dtype=dtype)
        found = compiled(x)
        assert model[0].weight.dtype is dtype
        torch.testing.assert_close(found, fn(x))


class _Momentum(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3)
        self.teacher.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for mine, its in zip(self.student.parameters(), self.teacher.parameters()):
                its.data = its.data * 0.9 + mine.data * 0.1
            target = self.teacher(x)
        return (self.student(x) - target).pow(2).mean()


def test_a_momentum_teacher_moves_before_it_is_asked():
    torch.manual_seed(0)
    eager = _Momentum()
    mine = copy.deepcopy(eager)
    compiled = torchsmith.compile(mine)
    for rows in (2, 3, 4):
        x = torch.randn(rows, 4)
        losses = []
        for model, run in ((eager, eager), (mine, compiled)):
            losses.append(run(x))
            losses[-1].backward()
            with torch.no_grad():
                for p in model.student.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
        torch.testing.assert_close(losses[1], losses[0])
        for name, value in eager.state_dict().items():
            torch.testing.assert_close(mine.state_dict()[name], value)


class _Masked(nn.Linear):
    def forward(self, x):
        self.weight.data *= 0.5
        return super().forward(x)


@pytest.mark.parametrize("together", [False, True])
def test_writes_through_data_do_not_spoil_an_earlier_backward_pass(together):
    torch.manual_seed(0)
    model = _Masked(3, 3)
    version = model.weight._version
    run = (lambda a, b: model(a) * model(b)) if together else model
    compiled = torchsmith.compile(run)
    pair = torch.randn(2, 3), torch.randn(2, 3)
    out = compiled(*pair) if together else compiled(pair[0]) + compiled(pair[1])
    out.sum().backward()
    assert model.weight._version == version and model.weight.grad is not None


def test_data_of_another_size_where_sizes_vary():
    def fn(p, q):
        p.data, q.data = q.data, p.data
        return p + 1, q * 2

    compiled = torchsmith.compile(fn)
    for n, m in ((3, 2), (2, 3), (4, 5), (5, 4)):
        p, q = nn.Parameter(torch.arange(n * 1.0)), torch.arange(m * 1.0)
        first, second = compiled(p, q)
        assert torch.equal(first, torch.arange(m * 1.0) + 1)
        assert torch.equal(second, torch.arange(n * 1.0) * 2)


def _step(layer, x, between, retain=False):
    loss = (layer(x) * layer.bias).tanh().sum()
    if not between:
        loss.backward(retain_graph=retain)
    for p in layer.parameters():
        p.data = p.data * 0.5 if p.grad is None else p.data - p.grad * 0.1
    if between:
        loss.backward(retain_graph=retain)
    return loss, (layer.bias * 3).sum()


def _gradient(layer, result):
    layer.zero_grad()
    try:
        result.backward()
    except RuntimeError:
        return []
    return [p.grad for p in layer.parameters() if p.grad is not None]


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_weights_are_given_new_data_in_a_step_whose_results_are_spent(between, retain, caplog):
    torch.manual_seed(0)
    layers = [nn.Linear(3, 3) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    steps = [_step, torchsmith.compile(_step, fullgraph=True)]
    for x in torch.randn(3, 2, 3):
        pairs = [(step(layer, x, between, retain), layer) for step, layer in zip(steps, layers)]
        found = [([_gradient(layer, r) for r in results], results) for results, layer in pairs]
        torch.testing.assert_close(found[1], found[0])
        torch.testing.assert_close(layers[1].state_dict(), layers[0].state_dict())
    assert retain or "not compiled" not in caplog.text
