"""Functions that change settings of torch are in the graph: in order with its operators, left after
the call as eager leaves them, put back when something raises, and facts where they are asked."""

import warnings

import pytest
import torch

BACKENDS = torch.backends
READS = {
    "dtype": torch.get_default_dtype,
    "deterministic": torch.get_deterministic_debug_mode,
    "grad": torch.is_grad_enabled,
    "precision": torch.get_float32_matmul_precision,
    "threads": torch.get_num_threads,
    "anomaly": lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
    "cudnn": lambda: (BACKENDS.cudnn.enabled, BACKENDS.cudnn.benchmark),
    "mkldnn": lambda: BACKENDS.mkldnn.enabled,
    "tf32": lambda: BACKENDS.cuda.matmul.allow_tf32,
}
_threads = torch.get_num_threads()


def reads():
    return {name: read() for name, read in READS.items()}


def restore():
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_grad_enabled(True)
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(_threads)
    torch.autograd.set_detect_anomaly(False)
    BACKENDS.cudnn.enabled = BACKENDS.mkldnn.enabled = True
    BACKENDS.cudnn.benchmark = BACKENDS.cuda.matmul.allow_tf32 = False


@pytest.fixture(autouse=True)
def settings():
    restore()
    yield
    restore()


def dtype(x, i):
    a = torch.zeros(2)
    torch.set_default_dtype(torch.float64)
    return a, torch.zeros(2), x[i] * 2, torch.get_default_dtype()


def dtype_for_a_while(x, i):
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return torch.ones(3), x[i] + 1
    finally:
        torch.set_default_dtype(old)


def no_dtype(x, i):
    torch.set_default_dtype(torch.int64)


def determinism(x, i):
    torch.use_deterministic_algorithms(True, warn_only=True)
    inside = reads()
    torch.set_deterministic_debug_mode("error")
    return inside, x[i] * 2, torch.are_deterministic_algorithms_enabled()


def anomalies(x, i):
    with torch.autograd.set_detect_anomaly(True, False):
        y, inside = x[i] * 2, reads()
    return y, inside


def anomalies_found(x, i):
    with torch.autograd.detect_anomaly():
        torch.sqrt(x[i] - 9).sum().backward()
    return x.grad


def precision(x, i):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    return before, torch.get_float32_matmul_precision(), x @ x, x[i]


def flags(x, i):
    with BACKENDS.cudnn.flags(enabled=True, benchmark=True, deterministic=True):
        with BACKENDS.mkldnn.flags(enabled=False):
            y, inside = x[i] * 2, reads()
        middle = reads()
    return inside, middle, y, reads()


def attributes(x, i):
    BACKENDS.cudnn.benchmark = True
    y = x[i] * 2
    BACKENDS.cudnn.enabled = False
    BACKENDS.cuda.matmul.allow_tf32 = True
    return y, reads()


def threads(x, i):
    torch.set_num_threads(_threads + 1)
    y = x[i] + 1
    return y, torch.get_num_threads()


def grad(x, i):
    torch.set_grad_enabled(False)
    y = x[i] * 2
    torch.set_grad_enabled(True)
    return y, x * 3


@torch.set_grad_enabled(False)
def _decorated(y):
    return y * 2, torch.is_grad_enabled()


def grad_decorators(x, i):
    @torch.set_grad_enabled(False)
    def inner(y):
        return y[i] * 2, torch.is_grad_enabled()

    outside = torch.is_grad_enabled(), x * 3
    with torch.no_grad():
        within = _decorated(x), torch.is_grad_enabled()
    return outside, within, inner(x), _decorated(x), torch.is_grad_enabled()


def raises_after(x, i):
    torch.set_default_dtype(torch.float64)
    with BACKENDS.cudnn.flags(enabled=False):
        raise ValueError(f"out of it {torch.ones(1).dtype}")


def handled(x, i):
    torch.set_default_dtype(torch.float64)
    try:
        torch.set_float32_matmul_precision("high")
        y = x[i + 7]
    except IndexError:
        y = torch.zeros(1)
    return y, torch.ones(1)


ONE_GRAPH = [
    *(dtype, dtype_for_a_while, no_dtype, determinism, anomalies, anomalies_found, precision),
    *(flags, attributes, threads, grad, grad_decorators, raises_after, handled),
]


def call(fn, x, i):
    """Result or error, and the settings afterwards."""
    try:
        result = fn(x, i)
    except (ValueError, TypeError, IndexError, RuntimeError) as e:
        result = type(e), str(e)
    return result, reads()


@pytest.mark.parametrize("fn", ONE_GRAPH)
def test_a_change_is_in_the_graph(program, fn):
    def body(C):
        run, seen = C(fn), []
        for index in (0, 9, 0, 0):  # the graph fails with the second
            x = torch.arange(4.0).requires_grad_()
            seen.append(call(run, x, torch.tensor([index])))
            if len(seen) != 3:  # the last call finds what the third has left
                restore()
        return seen

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anomaly mode, and flags that a build lacks
        assert program(body) <= 2


def test_a_failing_graph_leaves_what_it_did_not_change(program):
    def back_and_forth(x, i):
        torch.set_default_dtype(torch.float64)
        y = x * 2
        torch.set_default_dtype(torch.float32)
        return y[i]

    def body(C):
        restore()
        run, seen = C(back_and_forth), []
        for index in (0, 9, 0, 9):
            seen.append(call(run, torch.ones(3), torch.tensor([index])))
            torch.set_float32_matmul_precision("medium")
            BACKENDS.cudnn.benchmark = True
        return seen

    assert program(body) == 1


def test_what_is_asked_beside_a_change_is_still_a_fact(program):
    def asks(x):
        torch.use_deterministic_algorithms(True, warn_only=True)
        found = reads()
        torch.set_float32_matmul_precision("high")
        more = reads()
        torch.use_deterministic_algorithms(False)
        return found, more, x * 2

    def body(C):
        restore()
        run, seen = C(asks), []
        for change in (
            lambda: None,
            lambda: torch.set_num_threads(_threads + 1),
            lambda: setattr(BACKENDS.cudnn, "benchmark", True),
            lambda: setattr(BACKENDS.cuda.matmul, "allow_tf32", True),
            lambda: torch.autograd.set_detect_anomaly(True, False),
        ):
            change()
            seen.append((run(torch.ones(2)), reads()))
        return seen

    assert program(body) > 1


def test_changes_around_a_break(program):
    def broken(x):
        torch.set_default_dtype(torch.float64)
        a = torch.ones(1)
        print(end="", flush=True)
        b = torch.ones(1)
        torch.set_default_dtype(torch.float32)
        print(end="", flush=True)
        return a, b, torch.ones(1), x * 2

    def body(C):
        restore()
        run = C(broken)
        return [(run(torch.ones(3)), reads()) for _ in range(3)]

    assert program(body, broken=True) == 3


def test_a_setting_that_is_refused_with_a_warning_is_a_break(program):
    def refused(x):
        torch.set_float32_matmul_precision("middling")
        return x @ x

    def body(C):
        restore()
        run = C(refused)
        return [(run(torch.ones(3)), reads()) for _ in range(2)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program(body, broken=True)
