"""Functions of NumPy in the graph: NumPy's own results, over element types and shapes.

A case that tensors have no exact form of is a break with a reason, and right all the same; what
must be in the graph for 64-bit floats is listed, so that the table cannot empty itself unseen.
"""

import warnings

import numpy as np
import pytest
import torchsmith_tracer

DTYPES = "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()
SHAPES = [(), (4,), (2, 3), (3, 1, 4), (0, 3)]

UNARY = (
    "negative positive absolute sign rint floor ceil trunc sqrt square exp exp2 expm1 log log2 "
    "log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh deg2rad "
    "rad2deg isnan isinf isfinite signbit conjugate fabs reciprocal logical_not invert"
).split()
BINARY = (
    "add subtract multiply divide floor_divide remainder power fmod arctan2 hypot logaddexp "
    "maximum minimum fmax fmin copysign nextafter bitwise_and bitwise_or bitwise_xor "
    "left_shift right_shift gcd lcm equal not_equal less less_equal greater greater_equal "
    "logical_and logical_or logical_xor float_power"
).split()
REDUCE = "sum prod mean std var min max any all argmin argmax count_nonzero".split()
OTHER = {
    "reshape": lambda a: np.reshape(a, -1),
    "transpose": lambda a: np.transpose(a),
    "T": lambda a: a.T,
    "ravel of T": lambda a: np.ravel(a.T),
    "flatten": lambda a: a.T.flatten(),
    "copy": lambda a: a.T.copy(),
    "expand_dims": lambda a: np.expand_dims(a, 0),
    "squeeze": lambda a: np.squeeze(a),
    "concatenate": lambda a: np.concatenate([a, a]),
    "concatenate flat": lambda a: np.concatenate([a, a], axis=None),
    "stack": lambda a: np.stack([a, a], axis=-1),
    "vstack": lambda a: np.vstack([a, a]),
    "hstack": lambda a: np.hstack((a, a)),
    "split": lambda a: np.split(a, [1]),
    "tile": lambda a: np.tile(a, 2),
    "repeat": lambda a: np.repeat(a, 2, axis=0),
    "roll": lambda a: np.roll(a, 1),
    "flip": lambda a: np.flip(a),
    "broadcast_to": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "atleast_2d": lambda a: np.atleast_2d(a),
    "swapaxes": lambda a: np.swapaxes(a, 0, -1),
    "moveaxis": lambda a: np.moveaxis(a, 0, -1),
    "sum of axes": lambda a: (a.sum(axis=0), a.sum(axis=-1, keepdims=True)),
    "sum as f8": lambda a: a.sum(dtype=np.float64),
    "mean of an axis": lambda a: a.mean(axis=0),
    "std of a sample": lambda a: a.std(axis=0, ddof=1),
    "max of an axis": lambda a: (a.max(axis=0), np.amin(a, axis=-1)),
    "argmax of an axis": lambda a: np.argmax(a, axis=0),
    "cumsum": lambda a: (np.cumsum(a), a.cumsum(axis=0)),
    "cumprod": lambda a: np.cumprod(a),
    "sort": lambda a: np.sort(a),
    "where": lambda a: np.where(a > 1, a, 0),
    "where of arrays": lambda a: (np.where(a == a, a, a + a), np.where(a > 1, 0.5, a), a > 1),
    "clip": lambda a: np.clip(a, 1, 2),
    "take": lambda a: np.take(a, [0, 0, 1], axis=0),
    "diff": lambda a: np.diff(a),
    "nan_to_num": lambda a: np.nan_to_num(a),
    "zeros_like": lambda a: (np.zeros_like(a), np.ones_like(a.T), np.full_like(a, 2)),
    "tril": lambda a: (np.tril(a), np.triu(a, 1)),
    "diag": lambda a: np.diag(a),
    "diagonal": lambda a: np.diagonal(a),
    "trace": lambda a: np.trace(a),
    "matmul": lambda a: a @ a.T,
    "dot": lambda a: np.dot(a, a.T),
    "outer": lambda a: np.outer(a, a),
    "inner": lambda a: np.inner(a, a),
    "tensordot": lambda a: np.tensordot(a, a, axes=a.ndim),
    "einsum": lambda a: np.einsum("...,...->...", a, a),
    "kron": lambda a: np.kron(a, a),
    "meshgrid": lambda a: np.meshgrid(a, a),
    "real": lambda a: (a.real, np.real(a), np.imag(a)),
    "round": lambda a: np.round(a),
    "isclose": lambda a: np.isclose(a, a),
    "astype": lambda a: (a.astype(np.float64), a.astype("float32"), a.astype(bool)),
    "array": lambda a: (np.array(a), np.asarray(a), np.array([1, 2.5]), np.array([a, a])),
    "items": lambda a: (a[0], a[..., -1], a[None], a[1:], a[0:1, ...]),
    "fancy": lambda a: (a[[0, 0]], a[np.array([0])]),
    "mask": lambda a: a[a > 0],
    "rows": lambda a: [row + 1 for row in a],
    "scalars": lambda a: (a + 1, 2.5 * a, a - np.float32(1), a / np.int8(2), 1 - a, a**2),
    "constants": lambda a: (np.zeros((2, 3)) + np.arange(3), np.eye(2), np.full(2, 7), a.dtype),
    "linspace": lambda a: (np.linspace(0, 1, 5), np.arange(0, 1, 0.25), np.arange(5, dtype="i2")),
    "compared": lambda a: (a == a, a != 1, a > a, 1 <= a, ~(a == a), -a, abs(a)),
    "floor": lambda a: (a // 2, a % 3, divmod(a, 2)),
    "norm": lambda a: np.linalg.norm(a),
    "norm of rows": lambda a: np.linalg.norm(a, axis=1, keepdims=True),
    "norm 1": lambda a: (np.linalg.norm(a, 1, axis=0), np.linalg.norm(a, np.inf, axis=-1)),
    "det": lambda a: np.linalg.det(a @ a.T),
    "matrix_power": lambda a: np.linalg.matrix_power(a @ a.T, 3),
    "fft": lambda a: (np.fft.fft(a), np.fft.ifft(a, axis=0), np.fft.fft(a, n=4, norm="ortho")),
    "rfft": lambda a: (np.fft.rfft(a), np.fft.irfft(a), np.fft.rfft(a, axis=0)),
    "fft2": lambda a: (np.fft.fft2(a), np.fft.ifft2(a), np.fft.rfft2(a), np.fft.irfft2(a)),
    "fftn": lambda a: (np.fft.fftn(a), np.fft.ifftn(a), np.fft.rfftn(a), np.fft.irfftn(a)),
    "hfft": lambda a: (np.fft.hfft(a), np.fft.ihfft(a)),
    "fftshift": lambda a: (np.fft.fftshift(a), np.fft.ifftshift(a, axes=0)),
    "cross": lambda a: np.cross(a, a[[1, 0]]),
    "gradient": lambda a: (np.gradient(a), np.gradient(a, axis=0)),
    "convolve": lambda a: np.convolve(a.ravel(), a[0], mode="same"),
    "correlate": lambda a: np.correlate(a.ravel(), a[0]),
    "sinc": lambda a: np.sinc(a),
    "isneginf": lambda a: (np.isneginf(a), np.isposinf(a)),
    "metadata": lambda a: (a.shape, a.ndim, a.size, a.itemsize, a.nbytes, np.shape(a), np.ndim(a)),
}
# Without a form in the graph, or none for these shapes.
BROKEN = {"flip", "mask", "floor"}


def make(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 4, shape) if np.dtype(dtype).kind in "bui" else rng.normal(1, 2, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.normal(0, 1, shape)
    return np.asarray(values).astype(dtype)


def cases(dtype):
    return SHAPES if dtype == "float64" else SHAPES[2::-2]


def alike(a, b, at="result"):
    assert type(a) is type(b), (at, type(a), type(b))
    if isinstance(a, (list, tuple)):
        assert len(a) == len(b), at
        for n, (x, y) in enumerate(zip(a, b)):
            alike(x, y, f"{at}[{n}]")
    elif isinstance(a, (np.ndarray, np.generic)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), (at, a, b)
        if isinstance(a, np.ndarray) and a.size:
            steps = [[s for s, n in zip(x.strides, x.shape) if n > 1] for x in (a, b)]
            assert steps[0] == steps[1], (at, a.strides, b.strides)
            assert a.flags.writeable == b.flags.writeable, at
        loose = {"float16": 2e-2, "float32": 1e-5, "complex64": 1e-5}.get(a.dtype.name, 1e-12)
        if a.dtype.kind in "fc":
            with np.errstate(all="ignore"):
                np.testing.assert_allclose(b, a, rtol=loose, atol=loose, err_msg=at)
        else:
            np.testing.assert_array_equal(b, a, err_msg=at)
    else:
        assert a == b, (at, a, b)


def outcome(fn, args):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return fn(*args), None
        except Exception as e:
            return None, (type(e), str(e))


def compare(fn, *args):
    """The breaks of ``fn``, which gives what eager NumPy gives."""
    compiled = torchsmith_tracer.compile(fn, backend="eager")
    expected, error = outcome(fn, [a.copy() for a in args])
    found, own = outcome(compiled, [a.copy() for a in args])
    assert own == error
    alike(expected, found)
    assert not any(b.name == "internal-error" for b in compiled._torchsmith_region.log.breaks)
    return [str(b) for b in compiled._torchsmith_region.log.breaks if b.name != "raises"]


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    fn = getattr(np, name)
    for dtype in DTYPES:
        for shape in cases(dtype)[: 5 if dtype == "float64" else 1]:
            breaks = compare(lambda a, fn=fn: fn(a), make(dtype, shape))
            if dtype == "float64" and name != "invert":
                assert not breaks, (shape, breaks)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    fn = getattr(np, name)
    pairs = [(d, d) for d in "bool uint8 int16 int64 float16 float32 float64 complex128".split()]
    pairs += [("float32", "int64"), ("float16", "float32"), ("int8", "uint8"), ("bool", "int32")]
    for first, second in pairs:
        every = (((2, 3), (3,)), ((), ()), ((3, 1), (1, 4)), ((0,), (1,)))
        for shapes in every[: 4 if first == "float64" else 2 if first == second else 1]:
            a, b = make(first, shapes[0]), make(second, shapes[1], 1)
            breaks = compare(lambda a, b, fn=fn: fn(a, b), a, b)
            if first == "float64" and not name.startswith(("bit", "left", "right", "gcd", "lcm")):
                assert not breaks, (shapes, breaks)


@pytest.mark.parametrize("name", REDUCE)
def test_reductions(name):
    fn = getattr(np, name)
    for dtype in DTYPES:
        for shape in cases(dtype):
            a = make(dtype, shape)
            breaks = compare(lambda a, fn=fn: fn(a), a)
            breaks += compare(lambda a, fn=fn: fn(a, axis=0), a)
            if dtype == "float64" and shape == (2, 3):
                assert not breaks, breaks


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 1e30, -1e30, 3e9]
ZEROS = {"fmax", "fmin", "maximum", "minimum", "min", "max"}  # NumPy takes either zero


@pytest.mark.parametrize("name", [*UNARY, *BINARY, *REDUCE])
def test_special_values(name):
    fn = getattr(np, name)
    if name == "invert" or name.startswith(("bit", "left", "right", "gcd", "lcm")):
        return
    for dtype in ("float64", "float32"):
        a = np.array(SPECIAL, dtype)
        args = (a, a[3:10]) if name in REDUCE else (np.tile(a, 2),)
        if name in BINARY:
            args = ((np.repeat(a, a.size), np.tile(a, a.size)),)
        for given in args:
            given = given if isinstance(given, tuple) else (given,)

            def signed(*given, fn=fn):
                result = fn(*given)
                if result.dtype.kind != "f":
                    return result
                # The sign of NaN says nothing.
                plain = np.where(result == result, result, 0.0)
                return result, plain if name in ZEROS else np.signbit(plain * 1.0)

            assert not compare(signed, *given)


OF_SPECIAL = {
    "norm": lambda a: [np.linalg.norm(a, p) for p in (None, 0, 0.5, 1, 2, 3, np.inf, -np.inf)],
    "norm of numbers": lambda a: [np.linalg.norm(a[3:10], p) for p in (None, 0.5, 3, -np.inf)],
    "gradient": lambda a: (np.gradient(a[3:10]), np.gradient(a[3:10], 2.0)),
    "cross": lambda a: np.cross(np.stack([a, a, -a], 1), np.array([1.0, 2, 3])),
    "convolve": lambda a: [np.convolve(a, [1.0, 0, 2], how) for how in ("full", "same", "valid")],
    "correlate": lambda a: (np.correlate(a, a[3:5]), np.correlate(a, a[3:5], "full")),
    "det": lambda a: np.linalg.det(np.stack([a, a * 2, a, a])[:, 3:7]),
    "fft": lambda a: (np.fft.fft(a[3:10], 16), np.fft.irfft(a[3:10], 9), np.fft.hfft(a[3:10])),
    "sinc": lambda a: (np.sinc(a), np.isneginf(a), np.isposinf(a)),
}


@pytest.mark.parametrize("name", OF_SPECIAL)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_composed_of_special_values(name, dtype):
    assert not compare(OF_SPECIAL[name], np.array(SPECIAL, dtype))


def test_special_integers():
    u, i, wide = np.arange(3, dtype="u1"), np.array([0, 5, -1, 127, -128], "i1"), 2**53 + 1
    cases = {
        "below": (lambda a: (a < -1, a >= -1, a == 300, a < 300, a != -1), u),
        "wrap": (lambda a: (a - 1, -a, ~a, a * 200, a // 2, a % 2, a << 1), u),
        "signed": (lambda a: (abs(a), -a, a + a, a * a, a**3, a // 3, a % -3, a >> 1), i),
        "sums": (lambda a: (a.sum(), a.mean(), a.prod(), a.cumsum(), np.take(a, [-1, 0])), i),
        "wide": (lambda a: (a == float(2**53), a < np.float32(2**24), a * 1.0), np.array([wide])),
        "ties": (lambda a: (a.argmax(), a.argmin()), np.tile(i, 60)),
        "where": (lambda a: (np.where(a, 1, 2), np.clip(a, 0, 5), np.clip(a, 5, 0)), i),
        "round": (lambda a: (np.round(a, 2), a.astype("i8")), np.array([2.675, 1.005, -1.115])),
    }
    for fn, a in cases.values():
        compare(fn, a)


def test_special_complex_numbers():
    a = np.array([1 + 1j, complex(np.inf, 0), complex(np.nan, 1), 0j, -1 - 0j])
    b, c = np.repeat(a, a.size), np.tile(a, a.size)
    for name in UNARY:
        if name not in ("expm1", "log2", "log10", "log1p", "sign", "rint"):
            compare(lambda a, fn=getattr(np, name): fn(a), a)
    for name in "add subtract multiply divide power equal not_equal less".split():
        compare(lambda a, b, fn=getattr(np, name): fn(a, b), b, c)


@pytest.mark.parametrize("name", OTHER)
def test_others(name):
    for dtype in "bool uint8 int32 float16 float32 float64 complex128".split():
        for shape in cases(dtype):
            breaks = compare(OTHER[name], make(dtype, shape))
            if dtype == "float64" and shape == (2, 3):
                assert bool(breaks) == (name in BROKEN), breaks


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: np.append(a, 2.1),
        lambda a: np.hstack([a, [2.1, 3.3]]),
        lambda a: np.outer(a, [1.1, 2]),
        lambda a: np.tile(np.float64(2.1), 2) + np.atleast_1d(np.float64(1.1)),
        lambda a: np.stack([a[0], 2.1]),
        lambda a: np.dot(a, [1.1, 2.0, 3.0, 4.0]),
        lambda a: np.linalg.norm(2.1) + np.kron(a, [1.1j, 2.0]),
    ],
)
def test_numbers_beside_arrays_keep_their_digits(fn):
    for dtype in ("float32", "float64", "int64"):
        compare(fn, make(dtype, (4,)))
