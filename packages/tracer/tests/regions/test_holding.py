"""Locks that exist already: held while compiled code runs, never left locked, never waited for."""

import threading
import time
import types

import pytest
import torch
import torchsmith_tracer

X = torch.arange(4.0)


def counting(kind):
    """A class of objects with a lock of that kind, and the ways in which methods take it."""

    class Counter:
        def __init__(self):
            self.lock, self.inner, self.n, self.log = kind(), threading.RLock(), 0, []

        def by_with(self, x):
            with self.lock:
                self.n += 1
                y = x * self.n
            return y + 1

        def by_calls(self, x):
            self.lock.acquire()
            try:
                self.n += 1
                return x * self.n
            finally:
                self.lock.release()

        def asking(self, x):
            if self.lock.acquire(blocking=False):
                self.log.append(self.n)
                x = x + len(self.log)
                self.lock.release()
            return x

        def twice(self, x):
            with self.lock:
                self.n += 1
            x = x + 1
            with self.lock:
                self.log.append(self.n)
            return x * self.n

        def nested(self, x):
            with self.inner, self.lock:
                with self.inner:
                    self.n += 1
                x = self.add(x)
            return x

        def add(self, x):
            with self.inner:
                return x + self.n

    return Counter


WAYS = ("by_with", "by_calls", "asking", "twice", "nested")
KINDS = (threading.Lock, threading.RLock)


def free(lock):
    """Whether another thread can take the lock."""
    found = []

    def ask():
        found.append(lock.acquire(blocking=False))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_graph_with_the_lock_held(kind, way):
    cls = counting(kind)
    mine, theirs = cls(), cls()
    seen = []

    def backend(gm, _):
        def run(*args):
            seen.append(free(mine.lock))
            return gm.forward(*args)

        return run

    compiled = torchsmith_tracer.compile(getattr(mine, way), backend=backend, fullgraph=True)
    for _ in range(4):
        assert torch.equal(compiled(X), getattr(theirs, way)(X))
        assert (mine.n, mine.log) == (theirs.n, theirs.log)
        assert free(mine.lock) and free(mine.inner)
    assert seen == [False] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_that_differs_between_calls(kind):
    locks = [kind(), kind()]
    seen = []

    def backend(gm, _):
        def run(*args):
            seen.append([free(lock) for lock in locks])
            return gm.forward(*args)

        return run

    @torchsmith_tracer.compile(backend=backend)
    def f(x, holder):
        with holder.lock:
            return x * 2

    for number in (0, 1, 0):
        assert torch.equal(f(X, types.SimpleNamespace(lock=locks[number])), X * 2)
    assert seen == [[False, True], [True, False], [False, True]]


def test_the_same_lock_twice(capture):
    """Two places that hold one lock, one after the other."""

    @torchsmith_tracer.compile(backend=capture)
    def f(x, a, b):
        with a:
            x = x + 1
        with b:
            return x * 2

    one, other = threading.Lock(), threading.Lock()
    for pair in ((one, other), (one, one), (other, one)):
        assert torch.equal(f(X, *pair), (X + 1) * 2)
        assert free(one) and free(other)


@pytest.mark.parametrize("way", ("by_with", "by_calls", "twice", "nested"))
@pytest.mark.parametrize("kind", KINDS)
def test_many_threads_count_to_the_end(kind, way):
    counter = counting(kind)()
    compiled = torchsmith_tracer.compile(getattr(counter, way))
    for _ in range(2):
        compiled(X)
    threads = [threading.Thread(target=lambda: [compiled(X) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert counter.n == 202
    assert free(counter.lock)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_of_another_thread_is_waited_for(kind):
    counter = counting(kind)()
    compiled = torchsmith_tracer.compile(counter.by_with)
    compiled(X)
    counter.n = 0
    taken, times = threading.Event(), []

    def hold():
        with counter.lock:
            taken.set()
            time.sleep(0.2)
            counter.n = 10
            times.append(time.perf_counter())

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    assert torch.equal(compiled(X), X * 11 + 1)
    assert time.perf_counter() >= times[0]
    thread.join()
    assert counter.n == 11 and free(counter.lock)


def test_locks_one_after_the_other_do_not_deadlock():
    first, second = threading.Lock(), threading.Lock()

    def forth(x):
        with first:
            x = x + 1
        with second:
            return x * 2

    def back(x):
        with second:
            x = x + 1
        with first:
            return x * 2

    compiled = [torchsmith_tracer.compile(fn) for fn in (forth, back)]
    failed = []

    def work(fn):
        for _ in range(200):
            if not torch.equal(fn(X), (X + 1) * 2):
                failed.append(fn)

    threads = [threading.Thread(target=work, args=(fn,), daemon=True) for fn in compiled * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failed and free(first) and free(second)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_fails_leaves_the_lock_free(kind):
    lock, log = kind(), []

    def picking(x, index):
        try:
            with lock:
                log.append("in")
                y = x[index]
                log.append("out")
        except IndexError:
            log.append("caught")
            with lock:
                return x
        return y

    def raising(x, index):
        with lock:
            log.append("in")
            if x.shape[0] > 2:
                raise KeyError("wrong")
            return x

    for fn in picking, raising:
        compiled = torchsmith_tracer.compile(fn)
        for index in (1, 9, 2, 7):
            ran = []
            for call in fn, compiled:
                log.clear()
                try:
                    out = call(X, torch.tensor([index]))
                except KeyError as e:
                    out = str(e)
                ran.append((out.tolist() if isinstance(out, torch.Tensor) else out, [*log]))
                assert free(lock)
            assert ran[0] == ran[1]


def test_a_backend_that_fails_leaves_the_lock_free():
    lock = threading.Lock()

    def backend(gm, _):
        def run(*args):
            raise RuntimeError("no memory")

        return run

    def f(x):
        with lock:
            return x * 2

    compiled = torchsmith_tracer.compile(f, backend=backend)
    for _ in range(2):
        assert torch.equal(compiled(X), X * 2)
        assert free(lock)


@pytest.mark.parametrize("kind", KINDS)
def test_a_break_inside_is_made_with_the_lock_held(kind, agree):
    lock, seen = kind(), []

    @torchsmith_tracer.disable
    def look():
        seen.append(free(lock))

    def f(x):
        with lock:
            x = x * 2
            look()
            x = x + 1
        look()
        return x - 1

    agree(f, X)
    assert seen == [False, True] * 4
    assert free(lock)


def test_a_lock_that_stays_held():
    lock = threading.Lock()
    take = torchsmith_tracer.compile(lambda x: (lock.acquire(), x + 1)[1])
    leave = torchsmith_tracer.compile(lambda x: (lock.release(), x - 1)[1])
    for _ in range(3):
        assert torch.equal(take(X), X + 1)
        assert lock.locked()
        assert torch.equal(leave(X), X - 1)
        assert not lock.locked()
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        leave(X)


def test_a_lock_that_the_caller_holds():
    lock = threading.RLock()

    def f(x):
        with lock:
            return x * 2

    compiled = torchsmith_tracer.compile(f, fullgraph=True)
    with lock:
        for _ in range(2):
            assert torch.equal(compiled(X), X * 2)
        assert not free(lock)
    assert free(lock)


def test_a_condition(capture):
    condition, items = threading.Condition(), []

    def put(x):
        with condition:
            items.append(x * 2)
            condition.notify_all()

    compiled = torchsmith_tracer.compile(put, backend=capture)
    for _ in range(2):
        compiled(X)
    got = []

    def take():
        with condition:
            condition.wait_for(lambda: len(items) == 3, timeout=30)
            got.extend(items)

    thread = threading.Thread(target=take)
    thread.start()
    while not condition._waiters:
        time.sleep(0.001)
    compiled(X)
    thread.join(60)
    assert len(got) == 3 and all(torch.equal(item, X * 2) for item in got)
