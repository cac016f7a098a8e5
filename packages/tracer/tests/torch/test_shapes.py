"""Symbolic sizes and numbers in traced code."""

import pytest
import torch
import torchsmith_tracer


def compiles(fn, rows, capture, **options):
    """Call the compiled ``fn`` for each row of arguments and compare with eager."""
    compiled = torchsmith_tracer.compile(fn, backend=capture, fullgraph=True, **options)
    for row in rows:
        expected, got = fn(*row), compiled(*row)
        if isinstance(expected, tuple):
            for a, b in zip(got, expected, strict=True):
                assert type(a) is type(b)
                assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        else:
            assert torch.equal(got, expected)
    return capture.n


def rows(*sizes):
    return [(torch.randn(n, 4),) for n in sizes]


def test_a_size_that_changes_becomes_symbolic(capture):
    assert compiles(lambda a: a * 2, rows(3, 5, 9), capture) == 2


def test_sizes_in_arithmetic(capture):
    def f(a):
        n = a.shape[0]
        m = (n * 2 + 1) // 2 - n % 3
        return a.reshape(n * 4), n, m, -n, a.numel(), torch.zeros(n + 1, 2), a.sum() / n, n / 2

    assert compiles(f, rows(3, 5, 9, 12), capture) == 2


def test_size_as_a_result_is_an_int(capture):
    compiled = torchsmith_tracer.compile(lambda a: (a.shape, a.shape[0], a + 1), backend=capture)
    for n in (3, 5, 7):
        shape, size, _ = compiled(torch.ones(n, 2))
        assert type(size) is int
        assert type(shape) is torch.Size
        assert shape == (n, 2)
        assert size == n


def test_branch_on_a_size_is_guarded(capture):
    def f(a):
        return a + 1 if a.shape[0] > 6 else a - 1

    assert compiles(f, rows(3, 4, 5, 8, 9, 3), capture) == 3


def test_rank_change(capture):
    args = [(torch.ones(3),), (torch.ones(3, 4),), (torch.ones(5, 6),)]
    assert compiles(lambda a: a + 1, args, capture) == 2


def test_dynamic_true_and_false(capture):
    assert compiles(lambda a: a + 1, rows(3, 5, 9), capture, dynamic=True) == 1
    assert compiles(lambda a: a + 2, rows(3, 5, 9), capture, dynamic=False) == 4


def test_zero_and_one_are_specialised(capture):
    assert compiles(lambda a: a + 1, rows(3, 1, 7, 0), capture, dynamic=True) == 3


def test_equal_sizes_share_a_symbol(capture):
    args = [(torch.ones(n), torch.ones(m)) for n, m in ((4, 4), (5, 5), (6, 6))]
    assert compiles(lambda a, b: a + b, args, capture, dynamic=True) == 1
    compiled = torchsmith_tracer.compile(lambda a, b: (a + 1, b + 1), dynamic=True)
    out = compiled(torch.ones(5), torch.ones(6))
    assert [len(t) for t in out] == [5, 6]


def test_int_arguments(capture):
    args = [(torch.ones(3), k) for k in (3, 4, 5, 6)]
    assert compiles(lambda a, k: a * k, args, capture) == 2
    assert any(isinstance(x, int | torch.SymInt) for x in capture.inputs[-1])


def test_int_used_as_a_size_and_index(capture):
    def f(a, k):
        return a[:k], a[k - 1], a.new_zeros(k), a[:, -k:], list(range(2))

    args = [(torch.arange(40.0).reshape(10, 4), k) for k in (2, 3, 4)]
    compiled = torchsmith_tracer.compile(f, backend=capture, fullgraph=True)
    for a, k in args:
        for x, y in zip(compiled(a, k), f(a, k), strict=True):
            assert x == y if isinstance(x, list) else torch.equal(x, y)
    assert capture.n == 2


def test_loops_over_a_size_specialise(capture):
    def f(a):
        total = a[0]
        for i in range(a.shape[0]):
            total = total + a[i] * i
        return total

    assert compiles(f, rows(3, 4, 5), capture) == 3


def test_slices_and_views(capture):
    def f(a):
        b, s, h = a.shape
        q = a.view(b, s, 2, h // 2).transpose(1, 2)
        w = (q @ q.transpose(-1, -2)).softmax(-1)
        o = (w @ q).transpose(1, 2).reshape(b, s, h)
        return o + a[:, -1:, :], a[:, : s // 2].flatten(1)

    args = [(torch.randn(b, s, 8),) for b, s in ((2, 6), (3, 6), (3, 10), (4, 14))]
    assert compiles(f, args, capture) <= 3


def test_sizes_as_keys_and_in_text(capture):
    def f(a):
        table = {a.shape[0]: "x"}
        return a + 1, table[a.shape[0]], f"{a.shape[0]} rows", max(a.shape[0], 2), str(a.shape)

    assert compiles(f, rows(3, 4, 5), capture) >= 2


def test_modules_with_a_varying_batch(capture):
    m = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 4)
    ).eval()
    with torch.no_grad():
        assert compiles(lambda a: m(a), rows(2, 3, 5, 8), capture) == 2


@pytest.mark.parametrize("mark", ["mark_dynamic", "maybe_mark_dynamic"])
def test_marked_sizes_are_symbolic_at_once(capture, mark):
    import torch._dynamo

    x = torch.ones(3, 4)
    getattr(torch._dynamo, mark)(x, 0)
    compiled = torchsmith_tracer.compile(lambda a: a + 1, backend=capture, fullgraph=True)
    compiled(x)
    compiled(torch.ones(8, 4))
    assert capture.n == 1


def test_bool_and_float_arguments_are_constants(capture):
    args = [(torch.ones(3), v) for v in (True, False, 0.5, 1.5, 0.5)]
    assert compiles(lambda a, k: a * k, args, capture) == 4


def test_nan_does_not_loop(capture):
    compiled = torchsmith_tracer.compile(lambda a, k: a * k, backend=capture)
    for _ in range(3):
        compiled(torch.ones(2), float("nan"))
    assert capture.n == 1


def test_floats_can_be_symbolic(capture):
    compiled = torchsmith_tracer.compile(
        lambda a, k: (a * k + k, k * 2 > 9.0),
        backend=capture,
        fullgraph=True,
        options={"specialize_float": False},
    )
    for value in (0.5, 1.5, 2.5, 4.0):
        out, large = compiled(torch.ones(3), value)
        assert torch.equal(out, torch.ones(3) * value + value)
        assert large is (value * 2 > 9.0)
    assert capture.n == 2


def test_marked_static_stays_static(capture):
    import torch._dynamo

    compiled = torchsmith_tracer.compile(lambda a: a + 1, backend=capture, fullgraph=True)
    for n in (3, 4, 5):
        x = torch.ones(n, 2)
        torch._dynamo.mark_static(x, 0)
        compiled(x)
    assert capture.n == 3
