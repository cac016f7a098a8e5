"""Numbers of NumPy are constants with NumPy's own arithmetic."""

import math

import numpy as np
import pytest
import torch
import torchsmith_tracer

SCALE = np.float32(0.5)


class Settings:
    def __init__(self, **values):
        self.__dict__.update(values)


def x():
    return torch.arange(4.0)


def test_functions_of_known_numbers_are_computed_while_tracing(check):
    def f(t):
        return t * np.sqrt(16), np.prod((2, 3)), np.ceil(2.5), np.maximum(2, np.int64(3)) - t

    check(f, x(), fullgraph=True, graphs=1)


def test_arithmetic_types_and_text_are_numpys(check):
    n, s = np.int64(3), np.float64(2.0)

    def f(t):
        made = [n / 2, 2 * n, 2**s, np.float32(1) + 1.5, -n, n == 3, s > 1, abs(-s), n.astype("f2")]
        text = ["%d" % n, f"{s} {n!r}", str(s), round(s), s.item(), int(n), float(n), math.sqrt(s)]
        used = [[1, 2, 3, 4][n], list(range(n)), n in (3, 4), {3: 1}[n], isinstance(s, float)]
        return t + 1, made, [type(v) for v in made], text, used, bool(n > 2), max(n, 1)

    check(f, x(), fullgraph=True)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int64, np.uint8])
def test_a_tensor_takes_a_number_of_numpy_as_eager_does(check, kind):
    n = kind(2)

    def f(t):
        whole = t.long()
        out = [t * n, n * t, n - t, t / n, n**t, t > n, n < t, whole * n, n + whole, whole // n]
        return out, torch.full((2,), n), torch.where(t > n, t, n), t.clamp(n)

    check(f, x(), fullgraph=True, graphs=1)


def test_integers_of_numpy_are_sizes_and_indices(check):
    n = np.int64(2)

    def f(t):
        return t[n], t.view(n, n), torch.zeros(n, 3), t[n:], t.view(2, -1).sum(n - 1)

    check(f, x(), fullgraph=True, graphs=1)


def test_what_takes_its_dtype_from_a_number_of_numpy_stays_eager(check):
    def f(t):
        return torch.tensor(np.float64(2)) + t, torch.tensor([np.uint8(3)])

    compiled = torchsmith_tracer.compile(f, backend="eager")
    for got, want in zip(compiled(x()), f(x()), strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


def test_booleans_of_numpy_give_eagers_result():
    def f(t):
        return t.long() * np.bool_(True)

    compiled = torchsmith_tracer.compile(f, backend="eager")
    assert compiled(x()).dtype == f(x()).dtype == torch.float32


def test_arguments_attributes_and_globals_are_guarded_by_type_and_value(capture):
    settings = Settings(scale=np.float64(2.0))

    def f(t, n):
        return t * settings.scale + n * SCALE

    compiled = torchsmith_tracer.compile(f, backend=capture)
    for scale in (0.0, 0.0, math.nan, math.nan, -0.0):
        settings.scale = np.float64(scale)
        for n in (np.int64(1), np.float32(1)):
            torch.testing.assert_close(compiled(x(), n), f(x(), n), equal_nan=True, rtol=0, atol=0)
    assert capture.n == 2 * 3  # one for each type of ``n`` and each value of ``scale``


def test_a_warning_of_numpy_is_left_to_numpy():
    def f(t):
        return t + 1, np.float64(1) / np.int64(0), np.log(0.0)

    compiled = torchsmith_tracer.compile(f, backend="eager")
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="divide by zero"):
            assert compiled(x())[1:] == (math.inf, -math.inf)


def test_a_ufunc_of_the_users_own_is_called_each_time():
    calls = []
    own = np.frompyfunc(lambda n: calls.append(n) or n + 1, 1, 1)

    def f(t):
        return t * own(2)

    compiled = torchsmith_tracer.compile(f, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(x()), x() * 3)
    assert calls == [2, 2, 2]


def test_an_array_made_in_a_call_is_a_new_one_each_time():
    def f(t):
        return t + 1, np.sqrt([4.0, 9.0]), np.float64(1).reshape(1)

    compiled = torchsmith_tracer.compile(f, backend="eager")
    first = compiled(x())
    first[1][:] = 0
    first[2][:] = 0
    again = compiled(x())
    assert again[1].tolist() == [2.0, 3.0]
    assert again[2].tolist() == [1.0]
