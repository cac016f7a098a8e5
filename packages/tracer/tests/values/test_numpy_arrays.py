"""Arrays of NumPy as arguments, globals and results: guards, memory, writes, breaks."""

import weakref

import numpy as np
import pytest
import torch
import torchsmith_tracer

WEIGHTS = np.linspace(0.0, 1.0, 3)


def arr(*shape, dtype="float64"):
    return np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype)


def frames(compiled):
    return len(compiled._torchsmith_region.log.frames)


def test_arrays_in_and_out_are_one_graph(check):
    def f(a, box):
        out = {"a": np.sin(a) + a.sum(), "b": [box["x"][0].mean(), (a > 2).any()]}
        return out, box["x"][0] @ a.T, a.dtype, a.shape, isinstance(a, np.ndarray)

    check(f, arr(2, 3), {"x": [arr(4, 3), "untouched"]}, fullgraph=True, graphs=1)


def test_globals_and_closures_are_read_again_when_they_change(check):
    bias = arr(3)

    def f(a):
        return a * WEIGHTS + bias

    compiled = torchsmith_tracer.compile(f, fullgraph=True)
    np.testing.assert_array_equal(compiled(arr(3)), f(arr(3)))
    bias[1] = 50.0  # the same array with other content
    np.testing.assert_array_equal(compiled(arr(3)), f(arr(3)))
    bias = arr(3, dtype="float32")
    np.testing.assert_array_equal(compiled(arr(3)), f(arr(3)))
    assert frames(compiled) == 2


@pytest.mark.parametrize(
    ("other", "compiles"),
    [
        (arr(2, 3) + 1, 1),
        (arr(2, 3, dtype="float32"), 2),
        (arr(3, 2).T, 2),
        (arr(2, 3).astype(">f8"), 2),
        (arr(2, 3)[::-1], 2),
        (arr(5), 2),
        (np.array(list("abcdef")).reshape(2, 3), 2),
        (arr(2, 3).view(np.recarray), 2),
        (torch.ones(2, 3), 2),
        (2.5, 2),
    ],
)
def test_what_changes_between_calls(other, compiles):
    def f(a):
        return a + a

    compiled = torchsmith_tracer.compile(f)
    for a in (arr(2, 3), other, arr(2, 3)):
        try:
            expected = f(a)
        except Exception as e:
            with pytest.raises(type(e)):
                compiled(a)
            continue
        found = compiled(a)
        assert type(found) is type(expected)
        assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)
        assert np.array_equal(found, expected)
    assert frames(compiled) == compiles


def test_sizes_that_change_become_symbolic(capture):
    def f(a):
        b = np.exp(a) * 2 + a.mean(axis=0)
        b[0] = 1.0
        return np.concatenate([b, a]).reshape(-1, 4).sum(axis=1), a.shape[0], len(a)

    compiled = torchsmith_tracer.compile(f, backend=capture, fullgraph=True)
    for n in (3, 4, 5, 9):
        a = arr(n, 4)
        for x, y in zip(compiled(a), f(a)):
            np.testing.assert_allclose(x, y)
    assert capture.n == 2


def test_numbers_of_numpy_that_change_share_one_compile(capture):
    def f(a, s):
        return a * s + s

    compiled = torchsmith_tracer.compile(f, backend=capture, fullgraph=True)
    for s in (1.5, 2.5, 3.5, -4.0):
        found, expected = compiled(arr(3), np.float64(s)), f(arr(3), np.float64(s))
        np.testing.assert_array_equal(found, expected)
    assert capture.n == 2
    assert type(compiled(np.float64(1), np.float64(7.0))) is np.float64


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8"])
def test_arrays_are_indices_of_tensors(check, dtype):
    def f(x, at, mask):
        x = x * 2
        x[at] = 0.0
        x[1:, at - 1] += x[at[:, None], 0]
        x[mask] = 0.5
        return x[:, at], x[at, ..., None], x[at * 1, at - 1]

    at, mask = np.array([2, -1], dtype), np.array([True, False, True])
    check(f, torch.arange(9.0).reshape(3, 3), at, mask, fullgraph=True, graphs=1)


def test_other_arrays_as_indices_break_and_are_right(agree):
    x = torch.arange(6.0).reshape(2, 3)
    for index in (np.array([0.5, 1.2]), np.array([1, 0], "uint8"), np.array(1), np.array([7])):
        agree(lambda x, index: x[index] + 1, x, index)


def test_writes_are_seen_by_the_caller(check):
    def f(a, b):
        a += 1
        a[0] = 7
        a[:, 1] *= b[:, 1]
        view = a[1:]
        view[0, 0] = 9.5
        a[1:] = a[:-1]
        a[a > 8] = 0
        a.T[2] -= 1
        b[...] = a.sum()
        return a, view, a[0], b.max()

    check(f, arr(3, 3), arr(3, 3, dtype="float32"), fullgraph=True, graphs=1)
    check(f, arr(3, 3, dtype="int64"), arr(3, 3, dtype="int64"))


def test_results_are_in_the_memory_that_numpy_says():
    cases = {
        "view": (lambda a: a[1:], True),
        "transposed": (lambda a: a.T, True),
        "reshaped": (lambda a: a.reshape(-1), True),
        "diagonal": (lambda a: np.diagonal(a), True),
        "same": (lambda a: np.asarray(a), True),
        "copied": (lambda a: np.array(a), False),
        "raveled": (lambda a: a.T.ravel(), False),
        "astype": (lambda a: a.astype(a.dtype), False),
        "plus": (lambda a: +a, False),
        "squeezed": (lambda a: np.squeeze(a), True),
        "broadcast": (lambda a: np.broadcast_to(a, (2, 3, 3)), True),
        "split": (lambda a: np.split(a, 3)[1], True),
    }
    for name, (fn, shared) in cases.items():
        a = arr(3, 3)
        found = torchsmith_tracer.compile(fn, fullgraph=True)(a)
        assert np.shares_memory(found, a) is shared, name
        assert np.shares_memory(fn(a), a) is shared, name
        assert found.strides == fn(a).strides, name
        assert found.flags.writeable == fn(a).flags.writeable, name
        if shared and found.flags.writeable:
            found[...] = -1.0
            assert (a == -1.0).any(), name
    a = arr(3)
    assert torchsmith_tracer.compile(lambda a: (a + 1, a), fullgraph=True)(a)[1] is a


def test_tensors_and_arrays_share_memory(check):
    def f(a, x):
        t, b = torch.from_numpy(a), x.numpy()
        t.add_(1)
        first = a.sum()
        b[0] = 5.0
        a[1] = -3.0
        c = torch.as_tensor(a)
        c[2] = 8.0
        copied = torch.tensor(a)
        copied.zero_()
        y = x.numpy(force=True)
        return t, b, first, t.sum(), x * 2, a, c, copied, y, np.asarray(x), np.array(x)

    check(f, arr(4), torch.ones(3), fullgraph=True, graphs=1)

    a, x = arr(3), torch.zeros(3)
    t, b = torchsmith_tracer.compile(lambda a, x: (torch.from_numpy(a), x.numpy()))(a, x)
    a[0], x[1] = 40.0, 41.0
    assert t[0] == 40 and b[1] == 41
    assert t.is_leaf and t._version == 0 and not t._is_view()


def test_arguments_in_one_memory_run_as_numpy_runs_them():
    def f(a, b):
        a[...] = b + 1
        return b * 2

    def g(a, t):
        t.add_(1)
        return a * 2

    a = arr(5)
    for args in (
        lambda a: (a[1:], a[:-1]),
        lambda a: (a[:-1], a[1:]),
        lambda a: (a[:4], a[:4]),
        lambda a: (a[:4], a[1:].copy()),
    ):
        compiled = torchsmith_tracer.compile(f)
        for order in (args, lambda a: (a[:4].copy(), a[1:].copy()), args):
            one, two = a.copy(), a.copy()
            np.testing.assert_array_equal(compiled(*order(one)), f(*order(two)))
            np.testing.assert_array_equal(one, two)
    compiled = torchsmith_tracer.compile(g)
    for shared in (False, True, False, True):
        one = arr(3)
        t = torch.from_numpy(one if shared else one.copy())
        expected = (one + 1 if shared else one) * 2
        np.testing.assert_array_equal(compiled(one, t), expected)


def test_a_read_only_array_stays_read_only(check):
    frozen = arr(2, 3)
    frozen.flags.writeable = False

    def read(a):
        return a + 1, a[0], a.T, a

    def write(a):
        a[0] = 1
        return a

    compiled = torchsmith_tracer.compile(read, fullgraph=True)
    for x in (frozen, arr(2, 3), frozen):
        for found, expected in zip(compiled(x), read(x)):
            np.testing.assert_array_equal(found, expected)
            assert found.flags.writeable == expected.flags.writeable
    assert frames(compiled) == 1 and not frozen.flags.writeable
    compiled = torchsmith_tracer.compile(write)
    for x in (arr(2, 3), frozen, arr(2, 3)):
        if x is frozen:
            with pytest.raises(ValueError, match="read-only"):
                compiled(x)
        else:
            np.testing.assert_array_equal(compiled(x), write(x.copy()))
    np.testing.assert_array_equal(frozen, arr(2, 3))


@pytest.mark.parametrize(
    ("fn", "breaks"),
    [
        (lambda a: np.char.upper(a), None),
        (lambda a: a[::-1] + a, ["numpy", "unsupported-slot"]),
        (lambda a: np.random.default_rng(0).normal() + a, None),
        (lambda a: a if a.sum() > 0 else -a, ["data-dependent-branch"]),
        (lambda a: a * float(a[0]), None),
        (lambda a: a[a > 1].sum(), ["data-dependent-op"]),
        (lambda a: a.astype(object), None),
        (lambda a: torch.ones(3) * torch.from_numpy(a), []),
        (lambda a: np.unique(a), None),
        (lambda a: np.sin(a, out=a), ["numpy"]),
        (lambda a: f"{a} {a[0]!r}", None),
        (lambda a: a.reshape(2, 2), None),
        (lambda a: np.concatenate([a, a.reshape(3, 1)]), None),
        (lambda a: {a: 1}, None),
        (lambda a: a.nothing, None),
    ],
)
def test_what_has_no_form_in_the_graph_breaks_and_is_right(agree, fn, breaks):
    log = agree(fn, arr(3))
    if breaks is not None:
        assert [b.name for b in log.breaks] == breaks


def test_arrays_of_other_elements_run_eagerly(agree):
    for a in (
        np.array(["x", "yy"]),
        np.array([1, None], dtype=object),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        arr(3, dtype="uint32"),
        arr(3, dtype="longdouble"),
    ):
        log = agree(lambda a: (np.concatenate([a, a]), len(a), a[0], a.dtype), a)
        assert log.breaks and log.breaks[0].name != "internal-error"


def test_gradients_go_as_in_eager(agree):
    x = torch.ones(3, requires_grad=True)

    def f(x):
        return x.numpy() + 1

    with pytest.raises(RuntimeError, match="requires grad"):
        torchsmith_tracer.compile(f)(x)

    def g(x, a):
        y = x * torch.from_numpy(a)
        return y.sum(), x.detach().numpy() + a

    log = agree(g, x, arr(3))
    assert not log.breaks
    total, _ = torchsmith_tracer.compile(g)(x, arr(3))
    total.backward()
    assert x.grad.tolist() == [1.0, 2.0, 3.0]


def test_errors_are_numpys(agree):
    for fn in (
        lambda a: a.sum(axis=4),
        lambda a: a @ np.ones((5, 2)),
        lambda a: a[9],
        lambda a: np.zeros(-1) + a,
        lambda a: np.subtract(a > 1, a > 2),
    ):
        agree(fn, arr(2, 3))
    ints = arr(3, dtype="int64")

    def inplace(a):
        a += 0.5

    agree(inplace, ints)
    agree(lambda a: a[np.array([0, 7])], arr(3))
    with np.errstate(divide="raise"):
        agree(lambda a: a / 0, arr(3))


def test_an_array_lives_through_a_break(check):
    def f(a):
        b = a * 2
        print(end="", flush=True)
        b[0] = a.sum()
        return b, a.mean()

    check(f, arr(4), breaks=["print"])


def test_no_array_outlives_its_call():
    def f(a, x):
        a += 1
        return np.sin(a)[1:] + x.numpy()[1:], torch.from_numpy(a)

    compiled = torchsmith_tracer.compile(f)
    a, x = arr(3), torch.ones(3)
    alive = [weakref.ref(a), weakref.ref(x)]
    for _ in range(2):
        compiled(a, x)
    del a, x
    assert [r() for r in alive] == [None, None]


def test_an_array_is_printed_as_it_was(capsys):
    def f(a):
        print(a, a.sum())
        a[0] = 9
        print(a)

    f(arr(3))
    expected = capsys.readouterr().out
    torchsmith_tracer.compile(f, fullgraph=True)(arr(3))
    assert capsys.readouterr().out == expected


def test_the_functions_that_a_program_replaces_are_its_own(monkeypatch, agree):
    def f(a):
        return np.exp(a)

    compiled = torchsmith_tracer.compile(f)
    np.testing.assert_allclose(compiled(arr(3)), f(arr(3)))
    monkeypatch.setattr(np, "exp", lambda a: a - 1)
    np.testing.assert_array_equal(compiled(arr(3)), arr(3) - 1)


@pytest.mark.parametrize("name", ["ones", "zeros", "empty", "array", "asarray"])
def test_what_the_program_replaces_is_not_used_to_trace(monkeypatch, name):
    def f(a):
        return a.sum() + a[0] + a.size + (a * 2).max()

    monkeypatch.setattr(np, name, lambda n: None)
    np.testing.assert_array_equal(torchsmith_tracer.compile(f)(arr(3)), f(arr(3)))
