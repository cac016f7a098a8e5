"""One compiled object in many hands: threads, recursion, compiles in compiles, forks, copies."""

import copy
import io
import multiprocessing
import os
import pickle
import sys
import threading
import time
import traceback

import pytest
import torch
import torchsmith_tracer
from torch import nn
from torchsmith_tracer._src.regions import region


def in_threads(work, count=6):
    """Run ``work(number)`` in ``count`` threads at once; re-raises what they raise."""
    errors = []
    barrier = threading.Barrier(count)

    def run(number):
        try:
            barrier.wait(10)
            work(number)
        except BaseException:
            errors.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(t.is_alive() for t in threads), "threads wait for each other"
    assert not errors, errors[0]


def gb():
    """A graph break."""
    return os.getpid()


def branches(x, k):
    if k % 2:
        x = x + k
    gb()
    for i in range(3):
        x = x * 2 + i
        gb()
    return x - k


def test_threads_that_hit_miss_and_recompile():
    run = torchsmith_tracer.compile(branches, dynamic=False, options={"recompile_limit": 64})

    def work(number):
        for step in range(12):
            size, k = 2 + (step + number) % 4, (step * number) % 3
            x = torch.full((size,), float(step))
            assert torch.equal(run(x, k), branches(x, k))

    in_threads(work)


def test_threads_at_the_limit_and_reset():
    run = torchsmith_tracer.compile(branches, dynamic=False, options={"recompile_limit": 2})

    def work(number):
        for step in range(30):
            x = torch.full((2 + (step + number) % 6,), float(step))
            assert torch.equal(run(x, 1), branches(x, 1))
            if number == 0 and step % 10 == 9:
                run._torchsmith_region.reset()

    with pytest.warns(torchsmith_tracer.errors.RecompileLimitWarning):
        in_threads(work, 4)


@pytest.fixture
def hasty():
    """Threads that take turns within a compile."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hasty")
def test_loops_that_resume_into_each_other_do_not_wait_for_each_other():
    def loop(x, n):
        for i in range(n):
            x = x + i
            gb()
            x = x * 2
            gb()
        return x

    for _ in range(3):
        run = torchsmith_tracer.compile(loop)

        def work(number, run=run):
            x = torch.ones(2 + number % 2)
            for n in range(3):
                assert torch.equal(run(x, n), loop(x, n))

        in_threads(work, 4)


def test_grad_mode_of_a_thread_is_its_own():
    run = torchsmith_tracer.compile(lambda p: p * 2)
    p = nn.Parameter(torch.ones(2))

    def work(number):
        for step in range(10):
            with torch.set_grad_enabled((number + step) % 2 == 0):
                assert run(p).requires_grad is torch.is_grad_enabled()

    in_threads(work, 4)


def test_one_module_in_many_threads():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    run = torchsmith_tracer.compile(net)

    def work(number):
        for step in range(8):
            x = torch.full((1 + (number + step) % 3, 3), float(step))
            torch.testing.assert_close(run(x), net(x))

    in_threads(work, 4)


def test_a_compiled_function_that_calls_itself():
    @torchsmith_tracer.compile
    def power(x, n):
        return x if n == 0 else power(x * 2, n - 1)

    assert power(torch.ones(2), 5).tolist() == [32, 32]

    @torchsmith_tracer.compile
    def broken(x, n):
        gb()
        return x if n == 0 else broken(x * 2, n - 1) + 1

    assert broken(torch.ones(1), 4).item() == 20


def test_a_compile_within_a_compiled_function():
    def outer(x):
        inner = torchsmith_tracer.compile(lambda y: y * 3)
        return inner(x) + 1

    run = torchsmith_tracer.compile(outer)
    for _ in range(2):
        assert run(torch.ones(1)).item() == 4


def test_a_compile_within_a_backend():
    inner = torchsmith_tracer.compile(lambda y: y + 1)

    def backend(gm, example_inputs):
        assert inner(torch.ones(1)).item() == 2
        return gm.forward

    run = torchsmith_tracer.compile(lambda x: x * 2, backend=backend)
    assert run(torch.ones(1)).item() == 2
    assert inner(torch.ones(1)).item() == 2


def _in_child(run, queue):
    queue.put(run(torch.ones(5)).tolist())


def test_a_fork_while_another_thread_compiles():
    inside, done = threading.Event(), threading.Event()

    def backend(gm, example_inputs):
        inside.set()
        assert done.wait(60) or os.getpid() != parent
        return gm.forward

    parent = os.getpid()
    run = torchsmith_tracer.compile(lambda x: x + 1, backend=backend, dynamic=False)
    thread = threading.Thread(target=run, args=(torch.ones(2),), daemon=True)
    thread.start()
    assert inside.wait(60)
    pid = os.fork()
    if pid == 0:  # the child: the lock that the other thread held is nobody's here
        status = 1
        try:
            done.set()
            status = 0 if run(torch.ones(5)).tolist() == [2.0] * 5 else 2
        finally:
            os._exit(status)
    watch = threading.Timer(30, os.kill, (pid, 9))
    watch.start()
    _, status = os.waitpid(pid, 0)
    watch.cancel()
    done.set()
    thread.join(60)
    assert status == 0
    assert run(torch.ones(2)).tolist() == [2.0, 2.0]


def test_compiled_code_runs_in_forked_workers():
    run = torchsmith_tracer.compile(lambda x: x * 2)
    run(torch.ones(3))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_in_child, args=(run, queue))
    process.start()
    assert queue.get() == [2.0] * 5
    process.join(30)
    assert process.exitcode == 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x).relu()


@torchsmith_tracer.compile
def at_module_level(x):
    return x * 2


def test_copies_and_pickles():
    x = torch.ones(1, 2)
    assert copy.deepcopy(at_module_level) is at_module_level
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    net = Net()
    run = torchsmith_tracer.compile(net)
    run(x)
    for other in (copy.copy(run), copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        assert type(other) is Net and torch.equal(other(x), net(x))
    buffer = io.BytesIO()
    torch.save(run, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), net(x))
    holder = nn.Sequential(run, nn.ReLU())
    other = copy.deepcopy(holder)
    assert torch.equal(other(x), holder(x)) and other[0].linear is not net.linear


def test_threads_that_reach_a_break_at_once_share_what_follows(monkeypatch):
    """The second asks for what follows while the first one makes it."""
    asked, given, threads, found = [], [], [], []
    resume, make = region.Region.resume, region.resume_code

    def noting(self, *key):
        asked.append((self, *key))
        given.append(resume(self, *key))
        return given[-1]

    def slow(*args):
        if not threads:
            ask = asked[-1]
            threads.append(threading.Thread(target=lambda: found.append(resume(*ask))))
            threads[0].start()
            time.sleep(0.1)
        return make(*args)

    def fn(x):
        x = x + 1
        gb()
        return x * 2

    monkeypatch.setattr(region.Region, "resume", noting)
    monkeypatch.setattr(region, "resume_code", slow)
    assert torchsmith_tracer.compile(fn, backend="eager")(torch.ones(2)).tolist() == [4, 4]
    threads[0].join(10)
    assert found == given[:1]
