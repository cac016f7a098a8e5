"""Library code is called as a whole at the user's call, whatever stops the tracer inside it."""

import asyncio
import concurrent.futures
import decimal
import functools
import io
import json
import logging
import queue
import random
import string
import struct
import threading
import time

import pytest
import torch
import torchsmith_tracer
from torchsmith_tracer._src.frames.library import is_library


def thread_pool(x):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [f.result() for f in [pool.submit(pow, 2, 3), pool.submit(torch.mul, x, 2)]]


def coroutine(x):
    async def part(i):
        await asyncio.sleep(0)
        return x * i

    async def whole():
        return await asyncio.gather(part(1), part(2))

    return asyncio.run(whole())


def locks(x):
    lock, again, queue_ = threading.Lock(), threading.RLock(), queue.Queue()
    with lock, again:
        queue_.put(x * 2)
    return queue_.get(), lock.locked()


def thread(x):
    out = []
    worker = threading.Thread(target=lambda: out.append(x * 2))
    worker.start()
    worker.join()
    return out


def text(x):
    stream = io.StringIO()
    print("b", file=stream)
    return stream.getvalue(), x * 2


def context(x):
    with decimal.localcontext() as c:
        c.prec = 3
        return str(decimal.Decimal(1) / 3), x * 2


class Encoder(json.JSONEncoder):
    def default(self, o):
        return "object"


class Partial(functools.partial):
    pass


PROGRAMS = {
    "json": lambda x: (json.dumps({"a": [1, {"b": None}]}), json.loads("[1.5]"), x * 2),
    "json class": lambda x: (json.dumps({"a": object()}, cls=Encoder), x * 2),
    "struct": lambda x: (struct.Struct("<i").pack(3), list(struct.iter_unpack("<b", b"ab")), x * 2),
    "formatter": lambda x: (string.Formatter().format("{0}{a}", 1, a=2), x * 2),
    "random": lambda x: (random.Random(3).sample(range(9), 3), x * 2),
    "partial": lambda x: (Partial(torch.mul, x)(2), functools.partial(torch.mul, x)(3)),
    "logging": lambda x: (logging.getLogger("quiet").debug("no"), x * 2),
    "thread pool": thread_pool,
    "coroutine": coroutine,
    "locks": locks,
    "thread": thread,
    "text": text,
    "context": context,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_library_calls_give_what_they_give_eagerly(program, name):
    def body(C):
        f = C(PROGRAMS[name])
        return [f(torch.ones(1)) for _ in range(3)]

    program(body, broken=True)


def test_a_break_in_library_code_is_one_of_the_users_call(capture):
    def f(x):
        y = x + 1
        text = json.dumps({"a": [1, 2]})
        return y * len(text)

    compiled = torchsmith_tracer.compile(f, backend=capture)
    assert torch.equal(compiled(torch.ones(1)), f(torch.ones(1)))
    log = compiled._torchsmith_region.log
    assert [report.break_.stack[-1].function for report in log.frames if report.break_] == [
        "test_a_break_in_library_code_is_one_of_the_users_call.<locals>.f"
    ]
    assert len(log.frames) == 2  # before and after the call: no frame of the library's
    assert capture.n == 2


def test_a_break_in_a_callback_resumes_in_the_library_frame_around_it(capture):
    @torch.no_grad()
    def scaled(x):
        y = x * 2
        time.sleep(0)
        return y + 1

    def f(x):
        return scaled(x) * 3

    compiled = torchsmith_tracer.compile(f, backend=capture)
    x = torch.ones(1, requires_grad=True)
    assert torch.equal(compiled(x), f(x))
    assert compiled(x).requires_grad == f(x).requires_grad
    assert capture.n == 3


def test_what_counts_as_library():
    assert is_library(json.dumps.__code__)
    assert is_library(torch.optim.Adam.step.__wrapped__.__code__)
    assert is_library(torchsmith_tracer.reset.__code__)
    assert not is_library(torch.nn.Linear.forward.__code__)
    assert not is_library(test_what_counts_as_library.__code__)
