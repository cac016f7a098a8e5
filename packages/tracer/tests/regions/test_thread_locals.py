"""``threading.local``: its attributes are those of the thread that calls, without a graph break."""

import contextlib
import threading

import torch
import torchsmith_tracer

X = torch.ones(2)


def in_a_thread(fn):
    out = []
    thread = threading.Thread(target=lambda: out.append(fn()))
    thread.start()
    thread.join()
    return out[0]


def test_each_thread_has_its_own(program):
    def body(compile):
        own = threading.local()
        own.n = 1

        def step(x):
            own.n = own.n + 1
            if not hasattr(own, "seen"):
                own.seen = []
            own.seen = [*own.seen[-1:], own.n]
            own.passing = 3
            del own.passing
            return x * own.n, getattr(own, "missing", None), own.seen, sorted(vars(own))

        compiled = compile(step)

        def elsewhere():
            out = []
            for n in (10, 2.5, torch.zeros(2)):
                own.n = n
                out += [compiled(X), compiled(X), own.n]
            own.missing = 4
            return [*out, compiled(X), sorted(vars(own))]

        out = [compiled(X), compiled(X), in_a_thread(elsewhere), compiled(X), own.n]
        own = threading.local()
        own.n = 0
        return [*out, compiled(X)]

    program(body)


def test_a_missing_attribute_is_the_threads(program):
    def body(compile):
        own = threading.local()

        def error(x):
            try:
                return x * own.n
            except AttributeError as e:
                return e.name

        def elsewhere():
            out = [compiled(X)]
            own.n = 5
            return [*out, compiled(X)]

        compiled = compile(error)
        return compiled(X), in_a_thread(elsewhere), compiled(X), hasattr(own, "n")

    program(body)


def test_a_scope_is_one_graph(capture):
    own = threading.local()

    @contextlib.contextmanager
    def scope(k):
        before = getattr(own, "k", 1)
        own.k = k
        try:
            yield
        finally:
            own.k = before

    def scaled(x):
        with scope(3):
            x = x * own.k
        return x + getattr(own, "k", 7)

    compiled = torchsmith_tracer.compile(scaled, backend=capture, fullgraph=True)
    assert torch.equal(compiled(X), X * 3 + 1) and vars(own) == {"k": 1}
    with scope(5):
        assert torch.equal(compiled(X), X * 3 + 5)
    assert torch.equal(in_a_thread(lambda: compiled(X)), X * 3 + 1)
    assert own.k == 1


def test_a_count_is_one_version(capture):
    own = threading.local()
    own.n = 1

    def step(x):
        own.n += 1
        return x * own.n

    compiled = torchsmith_tracer.compile(step, backend=capture, fullgraph=True)
    for n in range(2, 6):
        assert torch.equal(compiled(X), X * n)
    assert capture.n == 1


def test_the_table_is_read_and_written(program):
    def body(compile):
        own = threading.local()

        def step(x):
            first = own.__dict__.get("scale", 2)
            own.__dict__["scale"] = first + 1
            own.__dict__.update(n=own.__dict__["scale"] * 2)
            return x * own.n, own.__dict__.get("missing", 3), sorted(own.__dict__)

        compiled = compile(step)
        out = [compiled(X), compiled(X), in_a_thread(lambda: compiled(X)), compiled(X)]
        return [*out, own.__dict__]

    program(body)


def test_a_table_leaves_one_graph():
    own = threading.local()
    step = torchsmith_tracer.compile(
        lambda x: x * own.__dict__.get("a", 2) * own.__dict__.get("b", 3),
        backend="eager",
        fullgraph=True,
    )
    assert step(X).tolist() == [6.0, 6.0]
    own.b = 5
    assert step(X).tolist() == [10.0, 10.0]
    assert in_a_thread(lambda: step(X)).tolist() == [6.0, 6.0]
