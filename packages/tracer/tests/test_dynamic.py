"""Recompiles and automatic dynamic sizes, numbered as in the spec."""

import itertools

import pytest
import torch
import torchsmith_tracer
from torchsmith_tracer.errors import RecompileLimitWarning


def ones(*shape):
    return torch.ones(*shape)


def run(fn, inputs, capture, **options):
    compiled = torchsmith_tracer.compile(fn, backend=capture, **options)
    for args in inputs:
        args = args if isinstance(args, tuple) else (args,)
        assert torch.equal(torch.as_tensor(compiled(*args)), torch.as_tensor(fn(*args)))
    return capture.n


def test_05_automatic_dynamic(capture):
    assert run(lambda a: a + 1, [ones(k, 4) for k in (3, 5, 9)], capture) == 2


def test_the_version_of_one_size_is_tried_first():
    ran = []

    def backend(gm, inputs):
        number = len({*ran})
        ran.append(number)

        def graph(*args):
            ran.append(number)
            return gm(*args)

        return graph

    fn = torchsmith_tracer.compile(lambda x: x * x.shape[0], backend=backend)
    for n in (8, 3, 5, 8, 4):
        torch.testing.assert_close(fn(ones(n)), ones(n) * n)
    assert ran == [0, 0, 1, 1, 1, 0, 1]


def test_06_rank_change(capture):
    inputs = [ones(3), ones(3, 4), ones(5, 6)]
    assert run(lambda a: a + 1, inputs, capture) == 2


@pytest.mark.parametrize(("dynamic", "count"), [(True, 1), (False, 3)])
def test_07_dynamic_option(dynamic, count, capture):
    inputs = [ones(k, 4) for k in (3, 5, 9)]
    assert run(lambda a: a * 2, inputs, capture, dynamic=dynamic) == count


def test_08_zero_one_rule(capture):
    assert run(lambda a: a * 2, [ones(k) for k in (3, 1, 7, 0)], capture, dynamic=True) == 3


def test_sizes_0_and_1_leave_the_limit_to_others(capture):
    def fn(a, b, c, name):
        return (a.sum() + b.sum()) * c.sum() * len(name)

    sizes = [(4, 5, 6), *itertools.product((1, 7), (1, 8), (1, 9)), (0, 7, 8), (2, 3, 4)]
    inputs = [(*map(ones, each), "a") for each in sizes]
    others = [(ones(4), ones(5), ones(6), "b" * n) for n in range(2, 10)]
    with pytest.warns(RecompileLimitWarning):
        assert run(fn, [*inputs, *others], capture) == 8 + 8


def test_sizes_0_and_1_have_a_limit_too(capture):
    inputs = [(ones(2), ones(2)), *((ones(a), ones(b)) for a in (3, 1, 0) for b in (4, 1, 0))]
    with pytest.warns(RecompileLimitWarning):
        made = run(lambda a, b: a.sum() + b.sum(), inputs, capture, options={"recompile_limit": 3})
    assert made == 2 * 3


def test_09_duck_sharing(capture):
    inputs = [(ones(4), ones(4)), (ones(5), ones(5)), (ones(5), ones(6))]
    assert run(lambda a, b: a.sum() + b.sum(), inputs, capture) >= 2


def test_14_int_arguments(capture):
    assert run(lambda a, k: a * k, [(ones(2), k) for k in (3, 4, 5, 6)], capture) == 2


def test_truth_values_are_numbers_beside_those_that_vary(capture):
    def f(a, k):
        t = k != 0
        return a * (k + t) + a * (t - k) * (k // t) + a / (k / t) + a * (k**t) * (t / k)

    for numbers in ((3, 4, 5, 6), (2.5, 3.5, 4.5)):
        run(f, [(ones(2), k) for k in numbers], capture)
        called = [n for n in capture.graphs[-1].graph.nodes if n.op == "call_function"]
        assert len(called) > 10
        assert not [n for n in called if any(type(arg) is bool for arg in n.args)]


def test_15_int_arguments_never_duck(capture):
    inputs = [(ones(5), 5), (ones(5), 6), (ones(7), 6)]
    assert run(lambda a, k: a * k, inputs, capture, dynamic=True) == 1


@pytest.mark.parametrize(("specialize", "count"), [(True, 3), (False, 2)])
def test_16_float_arguments(specialize, count, capture):
    inputs = [(ones(2), k) for k in (3.5, 4.5, 5.5)]
    options = {"specialize_float": specialize}
    assert run(lambda a, k: a * k, inputs, capture, options=options) == count


@pytest.mark.parametrize(
    "same",
    [
        lambda a: a.shape == (a.size(0), 4),
        lambda a: [a.size(0), 4] != list(a.shape),
        lambda a: a.size() == (a + 1).t().contiguous().t().size(),
        lambda a: (a.size(0) * 2, 4) in [(0, 0), torch.cat([a, a]).shape],
        lambda a: {a.dim(): a.size(0)} == {2: a.shape[0]},
    ],
)
def test_sizes_in_containers_are_compared_as_numbers(same, capture):
    inputs = [ones(k, 4) for k in (3, 5, 9)]
    assert run(lambda a: a * 2 if same(a) else a * 3, inputs, capture) == 2


def test_33_a_size_can_be_the_only_input(capture):
    inputs = [ones(3), ones(5)]
    assert run(lambda a: a.shape[0] * torch.ones(2), inputs, capture, dynamic=True) == 1


def test_branch_on_a_size_is_a_guard(capture):
    def f(a):
        if a.shape[0] > 4:
            return a + 1
        return a - 1

    assert run(f, [ones(k) for k in (3, 5, 9, 2, 7)], capture, dynamic=True) == 2


def test_sizes_returned_are_real_ints():
    compiled = torchsmith_tracer.compile(lambda a: (a.shape, a.shape[0] * 2), dynamic=True)
    for k in (3, 5):
        shape, twice = compiled(ones(k, 4))
        assert type(shape) is torch.Size and shape == (k, 4)
        assert type(twice) is int and twice == 2 * k


def test_recompile_reason_and_advice():
    compiled = torchsmith_tracer.compile(lambda a: a + 1)
    compiled(ones(3))
    compiled(ones(3).double())
    (note,) = compiled._torchsmith_region.log.recompiles
    assert "float32" in str(note) and "float64" in str(note)


def test_a_recompile_is_told_in_a_line_for_each_version():
    fn = torchsmith_tracer.compile(lambda xs: torch.cat(xs).sum(), fullgraph=True)
    for n in range(1, 7):
        fn([ones(1)] * n)
    head, why, hint, *older = str(fn._torchsmith_region.log.recompiles[-1]).splitlines()
    assert f"xs: expected list of 5, got list of 6 ({__file__}:" in head
    assert "length of a list" in why and "keep it fixed" in hint
    assert [line.partition(" (")[0] for line in older] == [
        *(f"  an older version: xs: expected list of {n}, got list of 6" for n in (4, 3, 2)),
        "  and 1 more",
    ]


def test_72_recompile_limit():
    with pytest.warns(torchsmith_tracer.errors.RecompileLimitWarning):
        compiled = torchsmith_tracer.compile(
            lambda a: a + 1, dynamic=False, options={"recompile_limit": 2}
        )
        for k in (2, 3, 4):
            assert compiled(ones(k)).shape == (k,)
    assert len(compiled._torchsmith_region.log.frames) == 2


def test_iterating_over_a_dimension_that_varies():
    run = torchsmith_tracer.compile(lambda x: [row * 2 for row in x], fullgraph=True)
    for n in (2, 3, 4):
        x = torch.arange(float(2 * n)).reshape(n, 2)
        for got, row in zip(run(x), x, strict=True):
            assert torch.equal(got, row * 2)


def _written(write):
    def fn(a, i):
        made = a * 1
        write(made, i)
        return made

    return fn


_BLOCK = torch.arange(2.0 * 9 * 9).view(2, 9, 9)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, i: a[:, i] + 1,
        lambda a, i: a[..., -i, :] + 1,
        lambda a, i: a[i % 2, ..., i, None] + 1,
        lambda a, i: a[None, :, i, ::2] + 1,
        lambda a, i: a[:, torch.arange(3), i] + 1,
        lambda a, i: a[0, True, i] + 1,
        _written(lambda a, i: a.__setitem__((slice(None), i), 5.0)),
        _written(lambda a, i: a.__setitem__((0, i), a[1, i - 1])),
        _written(lambda a, i: a.__setitem__((1, i, i), i)),
        _written(lambda a, i: a.__setitem__((a[..., 0] > 9, i), 1.0)),
        _written(lambda a, i: a[..., i].add_(1)),
        _written(lambda a, i: a.__setitem__((..., i, slice(i)), a[:, 0, :i])),
    ],
)
def test_a_subscript_that_varies_is_compiled_once(fn, capture):
    inputs = [(_BLOCK, i) for i in (2, 3, 4, 5, 7)]
    assert run(fn, inputs, capture) == 2


def test_a_subscript_out_of_range_raises_as_in_eager(capture):
    compiled = torchsmith_tracer.compile(lambda a, i: a[:, i], backend=capture, dynamic=True)
    for i in (3, 8, -9):
        assert torch.equal(compiled(_BLOCK, i), _BLOCK[:, i])
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 1 with size 9"):
        compiled(_BLOCK, 9)


def test_numbers_and_sizes_that_live_over_a_break_stay_symbolic(capture):
    @torchsmith_tracer.disable
    def stop():
        pass

    def by_rows(a, out):
        shape = a.shape
        flat = a.reshape(-1)
        stop()
        for i in range(8):
            stop()
            out[:, i] = flat.view(shape).sum() * i + shape.numel() + len(shape)
        return out.view(shape[0], -1)

    inputs = [(ones(n, n + 1), torch.zeros(n, 8)) for n in (2, 3, 4, 5, 6)]
    compiled = torchsmith_tracer.compile(by_rows, backend=capture)
    counts = []
    for args in inputs:
        assert torch.equal(compiled(*args), by_rows(*args))
        counts.append(capture.n)
    assert counts[1] == counts[-1] <= 10, counts


@pytest.mark.parametrize(
    "cut",
    [
        lambda n: torch.arange(8.0 * n).view(8, n)[:, :6],
        lambda n: torch.arange(8.0 * n).view(8, n).t()[1:7],
        lambda n: torch.arange(4.0 * n * 6).view(4, n, 6)[:, -1],
        lambda n: torch.arange(4.0 * n * 6).view(1, 4, n * 6)[..., :6],
        lambda n: torch.arange(8.0 * n * 6).view(4, 2, n * 6)[:, :, 3:9],
        lambda n: torch.arange(4.0 * n * 3).view(4, n, 3)[:, : n - 2],
    ],
)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 2 + x.sum(), x.stride(0) + 1),
        lambda x: (x.reshape(-1), x.is_contiguous()),
        lambda x: (x.transpose(0, 1)[0], x.contiguous().stride()),
        lambda x: x.as_strided((1, 3), (x.stride(0), 1)) + 1,
        lambda x: x.clone().add_(x),
    ],
)
def test_a_stride_that_varies_is_compiled_once(fn, cut, capture):
    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for n in (7, 9, 8, 12, 10):
        x = cut(n)
        for got, expected in zip(compiled(x), fn(x), strict=True):
            assert torch.equal(torch.as_tensor(got), torch.as_tensor(expected))
    assert capture.n == 2


def test_strides_that_make_elements_overlap_have_their_own_code(capture):
    inputs = [torch.arange(64.0).as_strided((3, 4), (n, 1)) for n in (6, 8, 5, 3, 2, 4)]
    assert run(lambda x: x + x.stride(0), inputs, capture) == 5


_WORDS = torch.arange(24).view(2, 12) % 3


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, i: a[0, 0, :1] + torch.tensor(i),
        lambda a, i: torch.tensor([i, 3, i + 1]) * 2,
        lambda a, i: torch.tensor((i / 2, 1)),
        lambda a, i: torch.tensor([i, 1.5], dtype=torch.float64),
        lambda a, i: torch.tensor([[i, 1.0], (2, i * 3)]) * torch.tensor([[[i]]]),
        lambda a, i: a.new_tensor(i) + a.long().new_tensor([i, 3]),
        lambda a, i: a.new_tensor(i, dtype=torch.int64),
        lambda a, i: a[:, [i, 0, -i]],
        lambda a, i: a[1, [i, 2], [0, i]],
        _written(lambda a, i: a.__setitem__((slice(None), [i, 1]), 5.0)),
        lambda a, i: torch.nn.functional.one_hot(_WORDS, i + 1),
        lambda a, i: a.sum() * (i << 2) + (i >> 1) + (i ^ 5) + (i & 6) + (i | 8) + ~i,
        lambda a, i: torch.take_along_dim(a[:, :i], a[:, :1].long() % i, dim=1),
        lambda a, i: a[0, :i].take_along_dim(a[0, :i].argsort(-1), dim=-1),
        lambda a, i: torch.kron(a[0, :i], a[1, 0, :2]),
    ],
)
def test_what_takes_plain_numbers_in_torch_is_compiled_once(fn, capture):
    inputs = [(_BLOCK, i) for i in (2, 3, 4, 5, 7)]
    assert run(fn, inputs, capture) == 2


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: torch.tensor([a[0, 0, 0], 1.0]),
        lambda a: torch.as_tensor((a.sum(), a.mean().double(), 2)),
        lambda a: torch.tensor([[a.half().max(), 1], [a.argmax(), 2]]),
        lambda a: torch.tensor([a.max()], dtype=torch.float64),
        lambda a: a.new_tensor([a.min(), a.argmin()]),
        lambda a: torch.tensor([a.max() > 0, a.min() > 0]).long().add_(1),
    ],
)
def test_tensors_of_lists_of_tensors_are_part_of_the_graph(fn):
    compiled = torchsmith_tracer.compile(fn, backend="eager", fullgraph=True)
    for sign in (1, -1):
        torch.testing.assert_close(compiled(_BLOCK * sign), fn(_BLOCK * sign), rtol=0, atol=0)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: torch.tensor([a[0, 0, :1], a[0, 0, :1]]),
        lambda a: torch.tensor([a.max().clone().requires_grad_(), 1.0]),
        lambda a: torch.tensor([a.max()], dtype=torch.int64),
        lambda a: torch.tensor([[a.max()], [1, 2]]),
        lambda a: torch.tensor([a.max(), []]),
        lambda a: a.new_tensor([a.max(), 1], requires_grad=True),
    ],
)
def test_other_lists_of_tensors_are_eagers(agree, fn):
    agree(fn, _BLOCK)


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (lambda a, i: torch.nn.functional.one_hot(_WORDS, i), "Class values must be smaller"),
        (lambda a, i: torch.nn.functional.one_hot(a, i), "index tensor"),
        (
            lambda a, i: torch.take_along_dim(a[:, :i], a.int(), 1),
            "dtype of indices should be Long",
        ),
        (lambda a, i: a[:, [i + 9]], "out of bounds"),
        (lambda a, i: a.sum() * (1 << -i), "negative shift count"),
        (lambda a, i: a.sum() * (i << 0.5), "unsupported operand"),
    ],
)
def test_errors_of_calls_with_symbols_are_eagers(fn, error):
    compiled = torchsmith_tracer.compile(fn, backend="eager", dynamic=True)
    with pytest.raises(Exception) as expected:
        fn(_BLOCK, 2)
    with pytest.raises(type(expected.value), match=error):
        compiled(_BLOCK, 2)


@pytest.mark.parametrize("last", [(3, 0), (2, 1), (1, 4)])
@pytest.mark.parametrize("first", [(0, 3), (5, 4), (3, 0), (1, 4)])
def test_empty_tensors_among_sizes_that_vary(first, last, capture):
    inputs = [torch.randn(size) for size in (first, (3, 0), last, (6, 3), (3, 0), (0, 0))]
    run(lambda x: x.sum(0) * 2 + x.stride(0), inputs, capture)


def test_strides_of_new_dimensions_beside_numbers_that_vary():
    def f(x, k):
        return x[..., None, k], x[None, k], x[k, None], x[:, None, k, None], x[None, ..., None, k]

    compiled = torchsmith_tracer.compile(f, backend="eager")
    x = torch.arange(12.0).view(3, 4)
    for k in (0, 2, 1, -1, -2):
        for got, expected in zip(compiled(x, k), f(x, k)):
            assert got.stride() == expected.stride() and torch.equal(got, expected)


def test_methods_of_numbers_take_numbers_that_vary():
    def f(a, b, x):
        numbers = a.__add__(b), b.__sub__(a), a.__radd__(b), (2.5).__mul__(b), True.__add__(b)
        fixed = (2).__rsub__(b), (5).__floordiv__(b), (7).__mod__(b), (2).__pow__(b)
        return numbers, fixed, (2).__lt__(b), (7).__ge__(b), (2.5).__le__(b), (2).__ne__(b), x * b

    compiled = torchsmith_tracer.compile(f, backend="eager")
    x = torch.ones(2)
    for a, b in ((7, 2), (-7, 3), (7.5, -2), (0, 4), (1, 5), (9, 2.5), (1.5, 3.5)):
        assert repr(compiled(a, b, x)) == repr(f(a, b, x))
