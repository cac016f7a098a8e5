"""A graph that fails at run time: effects before it, none after it, the user's handlers."""

import signal
import threading
import traceback

import pytest
import torch
import torch.nn.functional as F
import torchsmith_tracer
from torchsmith_tracer._src.codegen import body


def functional(gm, example_inputs):
    """A backend that writes to the inputs last, when everything else has been computed."""

    def run(*args):
        copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        out = gm.forward(*copies)
        for old, new in zip(args, copies):
            if isinstance(old, torch.Tensor):
                old.copy_(new)
        return out

    return run


def sloppy(gm, example_inputs):
    """A backend that leaves half of its writes behind when it fails."""

    def run(*args):
        try:
            return gm.forward(*args)
        except Exception:
            for a in args:
                if isinstance(a, torch.Tensor) and a.is_floating_point():
                    a.data.mul_(-3)
            raise

    return run


def compare(fn, backend, *make, calls=2):
    """Eager and compiled: outcome and arguments after each of several calls."""
    compiled = torchsmith_tracer.compile(fn, backend=backend)
    for good in [True, False] * calls:
        results = []
        for run in (fn, compiled):
            args = [m(good) for m in make]
            torch.manual_seed(3)
            try:
                got = run(*args)
            except Exception as e:
                got = (type(e), str(e), e.__cause__, e.__context__)
            versions = [a._version for a in args if isinstance(a, torch.Tensor)]
            results.append(repr((got, args)) + (repr(versions) if backend == "eager" else ""))
        assert results[0] == results[1]


def index(good):
    return torch.tensor([0 if good else 7])


def vector(good):
    return torch.tensor([1.0, 2.0])


def empty(good):
    return []


@pytest.mark.parametrize("backend", ["eager", functional, sloppy])
def test_effects_before_the_operator_happen_and_none_after(backend):
    def f(x, i, log):
        log.append(1)
        x.add_(1)
        z = x[i]
        log.append(2)
        x.mul_(2)
        return z

    compare(f, backend, vector, index, empty)


@pytest.mark.parametrize("backend", ["eager", functional, sloppy])
def test_the_handler_around_the_operator_is_the_users(backend):
    def f(x, i, log):
        x.add_(1)
        try:
            log.append("try")
            z = x[i] * 2
        except IndexError as e:
            log.append(type(e).__name__)
            z = x.sum()
        finally:
            x.mul_(3)
            log.append("finally")
        return z + 1

    compare(f, backend, vector, index, empty)


@pytest.mark.parametrize("backend", ["eager", functional])
def test_an_operator_that_fails_while_it_writes(backend):
    def f(x, i, log):
        x.index_add_(0, torch.cat([index(True), i]), torch.ones(2))
        log.append(1)
        return x

    compare(f, backend, vector, index, empty)


@pytest.mark.parametrize("store", ["place", "part", "of_itself", "by_tensor", "by_mask"])
def test_only_what_an_index_may_leave_half_written_is_copied(store, monkeypatch):
    """A copy of a large buffer at each call is far more than the write of a place in it."""
    copied = []

    class Counted(body.Undo):
        def __init__(self, random, touched, changed):
            copied.extend(changed)
            super().__init__(random, touched, changed)

    monkeypatch.setattr(body, "Undo", Counted)

    def f(x, i, log):
        x[0] = 1.0
        if store == "place":
            x[1] = i.sum()
        elif store == "part":
            x[:2] = x[1:3] * i
        elif store == "of_itself":
            x[i] = i
        elif store == "by_tensor":
            x[i] = 2.0
        else:
            x[x > i] = x.sum()
        log.append(1)
        return x + 1

    compare(f, "eager", lambda good: torch.zeros(5), index, empty)
    assert bool(copied) == (store not in ("place", "part"))


@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", "group_norm"])
def test_a_normalization_that_refuses_its_types(norm):
    def f(x, count, weight):
        count.add_(1)
        if norm == "batch_norm":
            return F.batch_norm(x, weight, weight, training=True)
        if norm == "layer_norm":
            return F.layer_norm(x, (2,), weight, weight)
        return F.group_norm(x, 1, weight, weight)

    for fn in (f, torchsmith_tracer.compile(f, backend="eager")):
        count = torch.zeros(1)
        with pytest.raises(RuntimeError):
            fn(torch.ones(2, 2).half(), count, torch.ones(2).double())
        assert count.item() == 1


@pytest.mark.parametrize("backend", ["eager", functional])
def test_random_numbers_are_drawn_once(backend):
    def f(x, i, log):
        noise = torch.rand(2)
        x.add_(noise)
        log.append(float(noise.sum()) if log else 0)
        try:
            return x[i]
        except IndexError:
            return x + torch.rand(2)

    compare(f, backend, vector, index, empty)


def test_failure_inside_an_inlined_callee_and_a_loop():
    def pick(x, i, log):
        try:
            return x.index_select(0, i)
        except (IndexError, RuntimeError):
            log.append("missing")
            raise

    def f(x, i, log):
        out = []
        for k in range(3):
            x.add_(k)
            try:
                out.append(pick(x, i, log))
            except (IndexError, RuntimeError):
                out.append(k)
        return out

    compare(f, "eager", vector, index, empty)


def test_the_cause_that_the_user_gave_stays():
    def f(x, i, log):
        try:
            return x[i]
        except IndexError as e:
            raise ValueError("no such row") from e

    compiled = torchsmith_tracer.compile(f)
    compiled(vector(True), index(True), [])
    with pytest.raises(ValueError, match="no such row") as caught:
        compiled(vector(True), index(False), [])
    assert type(caught.value.__cause__) is IndexError
    assert caught.value.__cause__ is caught.value.__context__


class Stop(BaseException):
    pass


@torch.library.custom_op("test_failed::stop", mutates_args=())
def stop(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 4:
        raise Stop("large")
    return x * 2


@stop.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.parametrize("caught", [Stop, ValueError])
def test_what_an_operator_raises_need_not_be_an_exception(caught):
    def f(x, count, log):
        log.append("before")
        count.add_(1)
        try:
            x = stop(x.sin() + x)
        except caught:
            log.append("caught")
            x = x * 3
        count.mul_(2)
        return x

    seen = []
    for fn in (f, torchsmith_tracer.compile(f, backend="eager")):
        count, log = torch.zeros(1), []
        for x in (torch.ones(2), torch.ones(4), torch.ones(4) * 3, torch.ones(2)):
            try:
                log.append(fn(x, count, log).tolist())
            except Stop as error:
                lines = [line for _, line in traceback.walk_tb(error.__traceback__)]
                log.append((error.args, *lines[-2:]))
            log.append(count.item())
        seen.append(log)
    assert seen[0] == seen[1]


def test_what_only_the_graph_raises_is_not_lost():
    def backend(gm, example_inputs):
        def run(*args):
            raise Stop("here")

        return run

    with pytest.raises(Stop, match="here"):
        torchsmith_tracer.compile(lambda x: x + 1, backend=backend)(torch.ones(2))


def stopping(gm, example_inputs):
    def run(*args):
        gm.forward(*args)
        signal.raise_signal(signal.SIGINT)

    return run


def test_contexts_in_the_graph_are_left_when_it_is_interrupted():
    def f(x):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return x @ x

    compiled = torchsmith_tracer.compile(f, backend=stopping)
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.ones(2, 2))
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


LOCK = threading.Lock()


@torchsmith_tracer.disable
def note(log):
    log.append("inside")


def in_lock(x, log):
    log.append("before")
    with LOCK:
        note(log)
        y = x.exp() * 3
    return y


def failing_second(error):
    def backend(gm, example_inputs):
        if any(n.target in (torch.exp, "exp") for n in gm.graph.nodes):
            raise error("second graph")
        return gm.forward

    return backend


@pytest.mark.parametrize("error", [RuntimeError, Stop])
def test_a_lock_is_released_when_compiling_the_rest_fails(error):
    def f(x, log):
        x = x.sin() * 2
        return in_lock(x, log)

    compiled = torchsmith_tracer.compile(f, backend=failing_second(error))
    log = []
    with pytest.raises((torchsmith_tracer.errors.BackendError, Stop)):
        compiled(torch.ones(2), log)
    assert log == ["before", "inside"]
    assert not LOCK.locked()


def test_a_lock_is_released_when_the_rest_is_interrupted_at_run_time():
    compiled = torchsmith_tracer.compile(in_lock, backend=stopping)
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.ones(2), [])
    assert not LOCK.locked()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_write_to_memory_that_is_read(dynamic):
    """With symbolic sizes, only running tells that torch refuses it."""

    def f(x):
        x.mul_(2)
        x[:3].add_(x[1:])
        return x

    for fn in (f, torchsmith_tracer.compile(f, backend="eager", dynamic=dynamic)):
        x = torch.ones(4)
        with pytest.raises(RuntimeError, match="single memory location"):
            fn(x)
        assert x.tolist() == [2, 2, 2, 2] and x._version == 1


@pytest.mark.parametrize("network", [torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN])
def test_recurrent_networks_are_not_tried_with_other_sizes(network):
    """Their kernels read beyond parameters that are too small."""
    network = network(4, 3, num_layers=2, bidirectional=True).bfloat16()

    def f(x, seen):
        seen.add_(1)
        return network(x)[0]

    x, seen = torch.randn(5, 2, 4).bfloat16(), torch.zeros(1)
    compiled = torchsmith_tracer.compile(f, backend="eager")
    torch.testing.assert_close(compiled(x, seen), f(x, seen))
    assert seen.item() == 2
