"""Grad mode, inference mode and autocast while tracing."""

import pytest
import torch
import torchsmith_tracer
from torchsmith_tracer._src.torch_private import enter_autocast, exit_autocast, set_grad_enabled

X = torch.arange(4.0)


def test_no_grad_leaves_two_toggles(check, capture):
    w = torch.ones(4, requires_grad=True)

    def f(a, w):
        b = a * w
        with torch.no_grad():
            c = b * 2
        return c, c.requires_grad, torch.is_grad_enabled(), b * 3

    check(f, X, w, graphs=1, fullgraph=True)
    assert capture.targets().count(set_grad_enabled) == 2


def test_empty_context_leaves_nothing(check, capture):
    def f(a):
        with torch.no_grad():
            pass
        return a + 1

    check(f, X, fullgraph=True)
    assert set_grad_enabled not in capture.targets()


def test_toggle_to_the_mode_that_holds_is_dropped(capture):
    def f(a):
        with torch.no_grad():
            b = a * 2
        return b + 1

    with torch.no_grad():
        torchsmith_tracer.compile(f, backend=capture, fullgraph=True)(X)
    assert set_grad_enabled not in capture.targets()


def test_decorators_and_nesting(check):
    @torch.no_grad()
    def half(a):
        with torch.enable_grad():
            inside = torch.is_grad_enabled()
        return a / 2, inside, torch.is_grad_enabled()

    def f(a):
        return half(a), torch.is_grad_enabled()

    check(f, X, graphs=1, fullgraph=True)


def test_set_grad_enabled_as_function_and_context(check):
    def f(a):
        with torch.set_grad_enabled(False):
            inner = torch.is_grad_enabled()
        old = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        now = torch.is_grad_enabled()
        torch.set_grad_enabled(old)
        return inner, now, torch.is_grad_enabled(), a + 1

    check(f, X, graphs=1, fullgraph=True)


def test_mode_set_for_good_persists(capture):
    def f(a):
        torch.set_grad_enabled(False)
        return a + 1

    compiled = torchsmith_tracer.compile(f, backend=capture, fullgraph=True)
    try:
        compiled(X)
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_state_is_restored_after_tracing_and_after_errors(capture):
    def f(a):
        with torch.no_grad():
            raise ValueError("no")

    compiled = torchsmith_tracer.compile(f, backend=capture)
    try:
        compiled(X)
    except ValueError:
        pass
    assert torch.is_grad_enabled()


def test_break_inside_no_grad(check):
    def f(a):
        with torch.no_grad():
            b = a * 2
            print(end="", flush=True)
            c = b + 1
            inside = torch.is_grad_enabled()
        return c, c.requires_grad, inside, torch.is_grad_enabled()

    check(f, torch.ones(4, requires_grad=True), breaks=["print"])


def test_autocast(check, capture):
    w = torch.randn(4, 4)

    def f(a, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = a @ w
            inside = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
            with torch.autocast("cpu", enabled=False):
                c = a @ w
        return b, c, inside, torch.is_autocast_enabled("cpu")

    check(f, X, w, graphs=1, fullgraph=True)
    assert capture.targets().count(enter_autocast) == 2
    assert capture.targets().count(exit_autocast) == 2


def test_break_inside_autocast(check):
    w = torch.randn(4, 4)

    def f(a, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = a @ w
            print(end="", flush=True)
            c = a @ w
        return b, c, torch.is_autocast_enabled("cpu"), a @ w

    check(f, X, w, breaks=["print"])


def test_inference_mode(check):
    def f(a):
        with torch.inference_mode():
            b = a * 2
            inside = torch.is_inference_mode_enabled()
        return inside, torch.is_inference_mode_enabled(), a + 1

    check(f, X, graphs=1, fullgraph=True)


def test_call_under_inference_mode(capture):
    m = torch.nn.Linear(4, 4)
    compiled = torchsmith_tracer.compile(m, backend=capture, fullgraph=True)
    with torch.inference_mode():
        assert torch.equal(compiled(X), m(X))
    assert capture.n == 1


def test_global_state_is_guarded(capture):
    compiled = torchsmith_tracer.compile(
        lambda a: (torch.is_grad_enabled(), a + 1), backend=capture, fullgraph=True
    )
    assert compiled(X)[0] is True
    with torch.no_grad():
        assert compiled(X)[0] is False
    assert compiled(X)[0] is True
    assert capture.n == 2


def test_contexts_held_in_variables(check):
    quiet = torch.no_grad()

    def f(a, on):
        ctx = torch.no_grad() if on else torch.enable_grad()
        with ctx, quiet:
            b = a * 2
        return b, torch.is_grad_enabled()

    check(f, X, True, graphs=1, fullgraph=True)


def test_exception_leaves_the_context(check):
    def f(a):
        try:
            with torch.no_grad():
                raise KeyError("k")
        except KeyError:
            return torch.is_grad_enabled(), a + 1

    check(f, X, graphs=1, fullgraph=True)


def test_profiler_ranges_are_ignored(check):
    def f(a):
        with torch.profiler.record_function("part"):
            return a + 1

    check(f, X, graphs=1, fullgraph=True)


def test_uncaught_error_inside_a_context_keeps_its_line(check):
    import traceback

    def f(a, log):
        log.append(a + 1)
        try:
            with torch.no_grad():
                raise ValueError("no")
        finally:
            log.append(torch.is_grad_enabled())

    log = []
    try:
        torchsmith_tracer.compile(f)(X, log)
    except ValueError as e:
        lines = [entry.line for entry in traceback.extract_tb(e.__traceback__)]
        assert 'raise ValueError("no")' in lines
    assert torch.equal(log[0], X + 1)
    assert log[1] is True
    check(f, X, [], breaks=[])


def test_decorated_functions(check):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def low(a, w):
        return a @ w, torch.is_autocast_enabled("cpu")

    @torch.inference_mode()
    def quick(a):
        return torch.is_inference_mode_enabled()

    def f(a, w):
        return low(a, w), quick(a), a @ w

    check(f, X, torch.randn(4, 4), graphs=1, fullgraph=True)


@pytest.mark.parametrize(
    "context",
    [
        lambda: torch.autocast("cpu", torch.bfloat16),
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.profiler.record_function("g"),
    ],
)
def test_a_break_in_a_function_decorated_on_the_way(context):
    """The context is made again in code that runs natively, by what its class has for that."""

    def g(a, w):
        return float((a @ w).sum())

    def raising(a, w):
        raise ValueError(torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))

    def f(a, w, log):
        log.append(context()(g)(a, w))
        try:
            context()(raising)(a, w)
        except ValueError as error:
            log.append(error.args)
        return context()(raising)(a, w) if len(log) > 4 else a + 1

    compiled = torchsmith_tracer.compile(f, backend="eager")
    seen = []
    for fn in (f, compiled):
        log = []
        with pytest.raises(ValueError) as found:
            for _ in range(3):
                log.append(fn(X, torch.eye(4), log).tolist())
        seen.append((log, found.value.args, torch.is_autocast_enabled("cpu")))
    assert seen[0] == seen[1]


def a_device(x):
    with torch.device("meta"):
        a = torch.ones(2)
        with torch.device("cpu"):
            b = torch.ones(2)
    return a.device, b, torch.ones(4) + x


def a_device_left_by_an_exception(x):
    try:
        with torch.device("meta"):
            a = torch.ones(2)
            raise ValueError
    except ValueError:
        return a.device, torch.ones(4) + x


def a_default_device(x):
    torch.set_default_device("meta")
    a = torch.ones(2)
    torch.set_default_device(None)
    return a.device, torch.ones(4) + x


@pytest.mark.parametrize("fn", [a_device, a_device_left_by_an_exception, a_default_device])
def test_devices_are_entered_and_left_natively(agree, fn):
    agree(fn, X, calls=3)
    assert torch.ones(1).device.type == "cpu"


@torch.profiler.record_function("a range")
def in_a_range(x):
    return x + 1


def test_a_profiler_range_as_a_decorator(check):
    check(lambda x: in_a_range(x) * 2, X, graphs=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.profiler.record_function("a range"),
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu"),
        torch._C.DisableTorchFunctionSubclass,
        lambda: torch.device("cpu"),
    ],
)
def test_what_entering_gives(check, make):
    def f(x):
        context = make()
        with context as entered:
            y = x + 1
        left = make()
        again = left.__enter__()
        return (
            y,
            entered is context,
            entered is None,
            again is left,
            left.__exit__(None, None, None),
        )

    check(f, X, graphs=1, fullgraph=True)


def set_inside(mode):
    def f(a):
        before = a * 2
        with torch.no_grad():
            torch.set_grad_enabled(mode)
            inside = a * 3
        return before, inside, a * 4, torch.is_grad_enabled()

    return f


def set_in_inference_mode(a):
    with torch.inference_mode():
        torch.set_grad_enabled(True)
        inside = torch.is_grad_enabled()
    return a * 2, inside, torch.is_grad_enabled()


def left_in_another_order(a):
    first, second = torch.no_grad(), torch.enable_grad()
    first.__enter__()
    second.__enter__()
    inside = a * 2
    first.__exit__(None, None, None)
    between = a * 3
    second.__exit__(None, None, None)
    return inside, between, a * 4


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize(
    "fn", [set_inside(True), set_inside(False), set_in_inference_mode, left_in_another_order]
)
def test_modes_that_cross(check, fn, outside):
    def f(a):
        torch.set_grad_enabled(outside)
        return fn(a)

    def g(a):
        with torch.set_grad_enabled(outside):
            return fn(a)

    try:
        check(g, X.clone().requires_grad_(), fullgraph=True)
        check(f, X.clone().requires_grad_(), fullgraph=True)
        torch.set_grad_enabled(outside)
        compiled = torchsmith_tracer.compile(fn, backend="eager")
        for _ in range(2):
            results = compiled(X.clone().requires_grad_())
            mode = torch.is_grad_enabled()
            torch.set_grad_enabled(outside)
            expected = fn(X.clone().requires_grad_())
            assert mode == torch.is_grad_enabled()
            for mine, eager in zip(results, expected, strict=True):
                assert getattr(mine, "requires_grad", mine) == getattr(
                    eager, "requires_grad", eager
                )
            torch.set_grad_enabled(outside)
        assert not compiled._torchsmith_region.log.breaks
    finally:
        torch.set_grad_enabled(True)
