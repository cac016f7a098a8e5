"""Numbers and sizes that only the data determines: captured under an option, else a break."""

import warnings

import pytest
import torch
import torchsmith_tracer
from torchsmith_tracer.errors import TracerWarning

OPTIONS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
X = torch.arange(6.0).reshape(2, 3)
Y = torch.arange(10.0)


def scalar(*values):
    return [(Y, torch.tensor(v)) for v in values]


def scaled(*factors):
    return [(X * k,) for k in factors]


def sizes_of(a, n):
    k = n.item()
    torch._check(k >= 0)
    torch._check(k <= 10)
    return a[:k] * 2, a[k:] + 1, torch.ones(k), a.narrow(0, 0, k), k


def split(a, n):
    p, q = n.tolist()
    torch._check_is_size(p)
    torch._check_is_size(q)
    return [t * 2 for t in torch.split(a, [p, q])]


def arithmetic(a):
    n = a.sum().item()
    k = int(a[0, 1]) + 2
    return a * n + 2**0.5 * n, n * 2 - 1, k // 2, k % 3, n / k, -n, abs(n), int(n), float(k), k**2


def logic(a, n):
    k = n.item()
    torch._check((k > 0) & (k < 9))
    torch._check(not k > 20)
    return a[:k] + 1


def writes(a, n):
    out = a.clone()
    out[n.item()] = 5.0
    out += n.item()
    return out


def masks(a):
    kept = a[a > 2]
    return kept * 2, kept.sum(), kept.shape, kept.numel(), (a > 2).nonzero(), a.nonzero().shape[0]


def uniques(a):
    many = torch.repeat_interleave(a, torch.tensor([1, 2]), 0)
    return torch.unique(a) + 1, torch.masked_select(a, a > 1) * 2, many, len(torch.unique(a))


def together(a):
    return a[a > 1] * a[a > 1] + a[a > 1]


# (program, calls with other data, graphs)
CAPTURED = [
    (sizes_of, scalar(1, 2, 3, 0, 10), 1),
    (split, scalar([3, 7], [4, 6], [0, 10]), 1),
    (arithmetic, scaled(1, 2, 3, 0.5), 1),
    (logic, scalar(1, 8, 3), 1),
    (writes, scalar(1, 8, -3), 1),
    (masks, scaled(1, 2, 0, -1), 1),
    (uniques, scaled(1, 2, 0, -1), 1),
    (together, scaled(1, 2, 0, -1), 1),
    (lambda a, n: [a * k for k in n.tolist()], scalar([1, 2], [3, 0]), 1),
    (lambda a, n: (a * n.item(), n.item() > 0.5), scalar(0.25, 1.5, float("nan")), 1),
    (lambda a, n: (a + 1, n.item(), n.tolist(), n.item() is True), scalar(True, False), 2),
]


@pytest.mark.parametrize(("fn", "calls", "graphs"), CAPTURED)
@pytest.mark.parametrize("options", [OPTIONS, {}], ids=["captured", "broken"])
def test_same_as_eager(fn, calls, graphs, options, capture):
    compiled = torchsmith_tracer.compile(fn, backend=capture, options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for args in calls:
            assert repr(compiled(*args)) == repr(fn(*args))
    breaks = {b.category.name for b in compiled._torchsmith_region.log.breaks}
    if options:
        assert capture.n <= graphs
        assert graphs > 1 or not breaks
    else:
        assert breaks == {"DATA_DEPENDENT"}
        advice = " ".join(b.advice for b in compiled._torchsmith_region.log.breaks)
        assert "capture_" in advice


@pytest.mark.parametrize(
    ("fn", "calls"),
    [
        (sizes_of, scalar(3, 11, 4, -1)),
        (split, scalar([3, 7], [4, 5], [-1, 11])),
        (logic, scalar(1, 0, 9, 2)),
        (writes, scalar(1, 10, 2)),
        (lambda a, n: 7 // n.item(), scalar(2, 0, 3)),
    ],
)
def test_violations_raise_as_in_eager(fn, calls, capture):
    compiled = torchsmith_tracer.compile(fn, backend=capture, fullgraph=True, options=OPTIONS)
    raised = 0
    for args in calls:
        try:
            want = fn(*args)
        except Exception as e:
            raised += 1
            with pytest.raises(type(e)) as own:
                compiled(*args)
            assert str(own.value) == str(e)
        else:
            assert repr(compiled(*args)) == repr(want)
    assert raised
    assert capture.n == 1


def test_what_was_assumed_is_checked():
    """The sizes are taken to be equal while tracing; eager broadcasts where one is 1."""

    def fn(a, b):
        total = a[a > 0] + b[b > 0]
        return total, total.shape[0], a[a > 0].shape[0]

    compiled = torchsmith_tracer.compile(fn, fullgraph=True, options=OPTIONS)
    for a, b in (([1, 2, 0], [3, 4, 0]), ([1, 1, 1], [1, 1, 1]), ([1, 2, 3], [0, 0, 1])):
        args = torch.tensor(a), torch.tensor(b)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TracerWarning)
            assert repr(compiled(*args)) == repr(fn(*args))


@pytest.mark.parametrize("options", [OPTIONS, {}], ids=["captured", "broken"])
def test_both_sides_of_a_branch_on_data_are_compiled(options, capture):
    def fn(a, n):
        b = a * n.item() + 1
        if b.sum() > 100:
            return b * 2
        return b - 1 if n.item() > 0 else b * 5

    compiled = torchsmith_tracer.compile(fn, backend=capture, options=options)
    for k in (1, 2, 3, 0, -1, 2, 4, -3):
        assert torch.equal(compiled(Y, torch.tensor(k)), fn(Y, torch.tensor(k)))
    made = capture.n
    for k in (5, 6, -6, 1):
        assert torch.equal(compiled(Y, torch.tensor(k)), fn(Y, torch.tensor(k)))
    assert capture.n == made
    targets = {str(t) for i in range(made) for t in capture.targets(i)}
    assert {"<built-in function mul>", "<built-in function sub>"} <= targets


def test_a_size_that_must_be_known_says_what_to_do():
    def fn(a, n):
        return a + 1, list(range(n.item()))

    compiled = torchsmith_tracer.compile(fn, options=OPTIONS)
    for k in (2, 3):
        assert repr(compiled(Y, torch.tensor(k))) == repr(fn(Y, torch.tensor(k)))
    assert {b.id for b in compiled._torchsmith_region.log.breaks} <= {"TS-T012", "TS-T013"}
