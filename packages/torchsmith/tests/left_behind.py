"""Programs whose effects outlast a call, or are seen around it: what is registered, finalized,
held, entered, changed or left open. Each prints what it sees.

    python packages/torchsmith/tests/left_behind.py [NAME ...]

runs each in two forked processes, eager and compiled, to the end of the interpreter, and prints
what both have left: the exit status, what was printed, and the errors in the order of their lines.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import gc
import io
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref

import torch
import torchsmith
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

PROGRAMS = {}
X = torch.arange(6.0).view(2, 3)
VARIABLE = contextvars.ContextVar("VARIABLE", default=0)
PATIENCE = 120.0  # seconds for one side of a program


def program(function):
    PROGRAMS[function.__name__] = function
    return function


class Box:
    def __init__(self, name):
        self.name = name


def net():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.arange(p.numel()).view(p.shape) / 8)
    return model


def outcome(call, *args):
    try:
        return call(*args)
    except Exception as error:
        return type(error).__name__


def alive(references):
    gc.collect()
    return [reference() is not None for reference in references]


# At the end of the interpreter


@program
def registered_at_exit(compile):
    @compile
    def fn(x, n):
        y = x * 2
        atexit.register(print, "exit", n)
        return y + n

    for n in (1, 2, 3):
        print(fn(X, n).sum().item())


@program
def registered_and_unregistered(compile):
    def say():
        print("said")

    @compile
    def fn(x):
        atexit.register(say)
        y = x + 1
        atexit.unregister(say)
        atexit.register(say)
        return y

    fn(X), fn(X)


@program
def first_called_at_exit(compile):
    model = compile(net())

    def last():
        x = X.clone().requires_grad_()
        y = model(x)
        y.sum().backward()
        print(y.sum().item(), x.grad.sum().item())

    atexit.register(last)


@program
def called_when_the_main_thread_is_gone(compile):
    model = compile(net())

    def work():
        threading.main_thread().join()
        print("late", model(X).sum().item())

    threading.Thread(target=work).start()
    print("end of the main thread")


@program
def daemon_compiles_at_exit(compile):
    model = compile(net())
    threading.Thread(target=lambda: model(X), daemon=True).start()
    time.sleep(0.1)
    print("leave")


@program
def exit_within_a_call(compile):
    atexit.register(print, "at exit")

    @compile
    def fn(x):
        with torch.no_grad():
            y = x + 1
            sys.exit(int(y.sum().item()))

    fn(X)


@program
def exit_without_ado(compile):
    @compile
    def fn(x):
        y = x + 1
        print("going", flush=True)
        os._exit(int(y.sum().item()))

    fn(X)


@program
def hook_for_exceptions(compile):
    @compile
    def fn(x):
        y = x + 1
        raise ValueError(y.shape)

    def hook(kind, value, place):
        names = [frame.name for frame in traceback.extract_tb(place)]
        print(kind.__name__, value, names[0], names[-1])

    sys.excepthook = hook
    fn(X)


# References and finalizers


@program
def callback_of_a_reference(compile):
    log = []

    @compile
    def fn(x):
        box = Box("a")
        reference = weakref.ref(box, lambda _: log.append("dead"))
        y = x + 1
        del box
        log.append("after")
        return y, reference() is None

    for _ in range(3):
        print(fn(X)[1], log)


@program
def finalizers(compile):
    kept = []

    @compile
    def fn(x, given):
        first = weakref.finalize(given, print, "detached")
        y = x.cos()
        first.detach()
        box = Box("b")
        kept.append(box)
        weakref.finalize(box, print, "at exit", x.shape)
        weakref.finalize(given, print, "given is gone")
        return y

    given = Box("c")
    fn(X, given), fn(X, given)
    del given
    print("end")


@program
def finalizer_that_raises(compile):
    class Raises:
        def __del__(self):
            raise ValueError("in a finalizer")

    seen = []
    sys.unraisablehook = lambda told: seen.append((told.exc_type.__name__, str(told.exc_value)))

    @compile
    def fn(x):
        made = Raises()
        y = x + 1
        del made
        return y + len(seen)

    for _ in range(3):
        print(fn(X).sum().item(), seen)


@program
def models_and_results_end(compile):
    model = net()
    references = [weakref.ref(model), *map(weakref.ref, model.parameters())]
    run = compile(model)
    run(X).sum().backward()
    with torch.no_grad():
        result = run(torch.ones(5, 3))
    references.append(weakref.ref(result))
    del result
    print(references[-1]() is None)
    torchsmith.reset()
    del model, run
    print(alive(references))


@program
def arguments_end_with_their_exception(compile):
    run = compile(lambda x, n: (x * 2) @ torch.ones(n, 1))
    for n in (3, 4, 4):
        x = X.clone()
        reference = weakref.ref(x)
        try:
            run(x, n)
        except RuntimeError as error:
            told = str(error)[:20]
            print(told)
        del x
        print(reference() is None)


# Threads, locks, context variables, generators


@program
def locks_are_given_back(compile):
    lock = threading.Lock()

    @compile
    def fn(x, places, fails):
        with lock:
            y = x[places] + 1
            if fails:
                raise ValueError
        return y

    inside, outside = torch.tensor([0, 1]), torch.tensor([7])
    for places, fails in ((inside, False), (inside, True), (outside, False), (inside, False)):
        result = outcome(fn, X, places, fails)
        print(result if isinstance(result, str) else result.shape, lock.locked())


@program
def another_thread_is_woken(compile):
    condition, got = threading.Condition(), []

    def wait():
        with condition:
            while not got:
                condition.wait(5)
            print("woken", got)

    thread = threading.Thread(target=wait)
    thread.start()

    @compile
    def fn(x):
        y = x.exp()
        with condition:
            got.append(y.shape[0])
            condition.notify_all()
        return y

    fn(X)
    thread.join(10)
    print(thread.is_alive())


@program
def context_variables(compile):
    @compile
    def fn(x, n):
        token = VARIABLE.set(n)
        y = x @ torch.ones(n, 1)
        if n == 3:
            VARIABLE.reset(token)
        return y

    for n in (3, 4, 3, 5):
        print(outcome(lambda n=n: fn(X, n).sum().item()), VARIABLE.get())
    context = contextvars.copy_context()
    context.run(fn, X, 3)
    print(context[VARIABLE], VARIABLE.get())


@program
def generators_are_closed(compile):
    def items(x):
        try:
            for i in range(9):
                yield x * i
        finally:
            print("closed")

    @compile
    def fn(x):
        it = items(x)
        return next(it) + next(it)

    @compile
    def started(x):
        it = items(x)
        next(it)
        return it

    for _ in range(2):
        print(fn(X).sum().item())
    it = started(X)
    print(next(it).sum().item())
    del it
    kept.append(started(X))
    print("end")


kept = []


# The state of the process


@program
def warnings_and_their_filters(compile):
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, kind, *rest: print("shown", kind.__name__, message)

    @compile
    def fn(x, places):
        warnings.warn("first", DeprecationWarning, stacklevel=2)
        warnings.filterwarnings("ignore", message="second")
        y = x[places]
        warnings.warn("second", stacklevel=2)
        return y

    for places in (torch.tensor([1]), torch.tensor([5]), torch.tensor([0])):
        print(outcome(lambda p=places: fn(X, p).sum().item()))
        print(warnings.filters[0][0], sum(f[1] is not None for f in warnings.filters[:2]))
        warnings.resetwarnings()
        warnings.simplefilter("error")
        print(outcome(lambda p=places: fn(X, p).sum().item()))
        warnings.simplefilter("always")


@program
def handlers_of_a_logger(compile):
    log, stream = logging.getLogger("left.behind"), io.StringIO()
    log.propagate = False

    @compile
    def fn(x, n):
        handler = logging.StreamHandler(stream)
        log.addHandler(handler)
        log.warning("shape %s", tuple(x.shape))
        y = x @ torch.ones(n, 1)
        log.removeHandler(handler)
        return y

    for n in (3, 4, 3):
        print(outcome(lambda n=n: fn(X, n).shape), len(log.handlers), repr(stream.getvalue()))


@program
def files_and_streams(compile):
    path, opened = os.path.join(tempfile.mkdtemp(), "file"), []

    @compile
    def fn(x, n):
        with open(path, "a") as file, contextlib.redirect_stdout(io.StringIO()):
            opened.append(file)
            print("inside", file=file)
            print("not seen")
            return x @ torch.ones(n, 1)

    for n in (3, 4, 3):
        print(outcome(lambda n=n: fn(X, n).shape), opened[-1].closed, sys.stdout is sys.__stdout__)
    with open(path) as file:
        print(file.read())


SETTINGS = {
    "gradients": (torch.set_grad_enabled, (False, True)),
    "type": (torch.set_default_dtype, (torch.float64, torch.float32)),
    "deterministic": (torch.use_deterministic_algorithms, (True, False)),
    "precision": (torch.set_float32_matmul_precision, ("high", "highest")),
    "anomalies": (torch.autograd.set_detect_anomaly, (True, False)),
}


def settings():
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(),
    )


@program
def settings_before_an_error(compile):
    warnings.simplefilter("ignore")
    for name, (put, (value, usual)) in SETTINGS.items():

        @compile
        def fn(x, places, put=put, value=value):
            put(value)
            return (x[places] + torch.ones(3)).dtype

        for places in (torch.tensor([1]), torch.tensor([7]), torch.tensor([0])):
            print(name, outcome(fn, X, places), settings())
            put(usual)


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        print(func)
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        print(getattr(func, "__name__", func))
        return func(*args, **(kwargs or {}))


@program
def modes_are_left(compile):
    @compile
    def fn(x, mode, n):
        with mode():
            y = x + 1
            return y @ torch.ones(n, 1)

    for mode in (Operators, Functions, torch.no_grad, torch.inference_mode):
        for n in (3, 4, 3):
            print(outcome(lambda m=mode, n=n: fn(X, m, n).requires_grad))
            stacks = _get_current_dispatch_mode_stack(), _get_current_function_mode_stack()
            print(*map(len, stacks), torch.is_grad_enabled(), torch.is_inference_mode_enabled())


@program
def modes_are_kept(compile):
    @compile
    def fn(x):
        mode, grad = Functions(), torch.no_grad()
        mode.__enter__()
        grad.__enter__()
        return x + 1, mode, grad

    for _ in range(2):
        y, mode, grad = fn(X.clone().requires_grad_())
        print(y.requires_grad, torch.is_grad_enabled(), len(_get_current_function_mode_stack()))
        grad.__exit__(None, None, None)
        mode.__exit__(None, None, None)
        print(torch.is_grad_enabled(), len(_get_current_function_mode_stack()))


def process():
    hooks = sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook
    functions = sys.gettrace(), sys.getprofile(), signal.getsignal(signal.SIGINT)
    numbers = sys.getrecursionlimit(), sys.getswitchinterval(), len(sys.meta_path)
    collector = gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)
    return hooks, functions, numbers, collector, dict(os.environ), os.getcwd()


@program
def nothing_of_the_process_changes(compile):
    before = process()
    run = compile(net())
    run(X).sum().backward()
    run(torch.ones(7, 3))
    print(process() == before, process()[2:4])


@program
def interrupted(compile):
    @compile
    def fn(x, log):
        with torch.no_grad():
            log.append(1)
            y = x + 1
            if len(log) == 2:
                raise KeyboardInterrupt
            if len(log) == 3:
                signal.raise_signal(signal.SIGINT)
        return y

    log = []
    for _ in range(5):
        try:
            print(fn(X, log).sum().item())
        except KeyboardInterrupt:
            print("interrupted", torch.is_grad_enabled(), len(log))


# Other processes


@program
def forks(compile):
    model = compile(net())
    model(X)

    @compile
    def fn(x):
        y = x + 1
        child = os.fork()
        if child == 0:
            os._exit(int(y.sum().item()))
        return y, os.waitpid(child, 0)[1] >> 8

    print(fn(X)[1], fn(X)[1], flush=True)
    child = os.fork()
    if child == 0:
        x = X.clone().requires_grad_()
        model(x).sum().backward()
        print("child", model(torch.ones(9, 3)).sum().item(), x.grad.sum().item(), flush=True)
        os._exit(3)
    print(os.waitpid(child, 0)[1] >> 8, model(torch.ones(8, 3)).sum().item())


@program
def directories_and_variables(compile):
    @compile
    def fn(x, folder):
        os.environ["LEFT_BEHIND"] = folder
        os.chdir(folder)
        return x + len(os.environ["LEFT_BEHIND"]), os.getcwd()

    for folder in ("/tmp", "/", "/usr"):
        y, where = fn(X, folder)
        print(y.sum().item(), where)
        print(subprocess.check_output("echo $LEFT_BEHIND; pwd", shell=True, text=True).split())


def side(name, compiled):
    """What one side leaves, which runs in a process of its own to that one's end."""
    paths = [tempfile.mktemp() for _ in range(2)]
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        for number, path in enumerate(paths, 1):
            os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), number)
        PROGRAMS[name](torchsmith.compile if compiled else lambda fn: fn)
        sys.exit()
    end, status = time.time() + PATIENCE, None
    while status is None:
        done, found = os.waitpid(child, os.WNOHANG)
        if done:
            status = found
        elif time.time() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            status = "out of time"
        time.sleep(0.01)
    texts = []
    for path in paths:
        with open(path) as file:
            texts.append(file.read())
        os.remove(path)
    return status, *texts


def main():
    torch.set_num_threads(1)
    for name in sys.argv[1:] or PROGRAMS:
        sides = [side(name, compiled) for compiled in (False, True)]
        print(json.dumps([name, *sides]), flush=True)


if __name__ == "__main__":
    main()
