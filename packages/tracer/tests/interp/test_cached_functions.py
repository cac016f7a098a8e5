"""``functools.lru_cache``: results, counters and entries are eager's."""

import functools

import pytest
import torch
import torchsmith_tracer as tracer


def run(make, compiled, calls, **options):
    """What the calls give, how often the body ran, and what the cache says after each."""
    ran = []
    cached, program = make(ran, **options)
    if compiled:
        program = tracer.compile(program, backend="eager")
    seen = []
    for args in calls:
        try:
            seen.append(program(*args))
        except Exception as error:
            seen.append((type(error), str(error)))
        seen.append((tuple(ran), cached.cache_info()))
    return seen


def number(ran, **options):
    @functools.lru_cache(**options)
    def cached(k, scale=1):
        ran.append(k)
        if k < 0:
            raise ValueError(k)
        return k * 2 * scale

    return cached, lambda x, k: x * cached(k)


def keywords(ran, **options):
    @functools.lru_cache(**options)
    def cached(k, scale=1):
        ran.append(k)
        return k * scale

    return cached, lambda x, k: x * cached(k, scale=3) + cached(k=k) + cached(k)


def after_an_effect(ran, **options):
    log = []

    @functools.lru_cache(**options)
    def cached(k):
        ran.append((k, len(log)))
        return k

    def program(x, k):
        log.append(k)
        return x + cached(k), list(log)

    return cached, program


def shared_list(ran, **options):
    @functools.lru_cache(**options)
    def cached(k):
        ran.append(k)
        return [k]

    def program(x, k):
        found = cached(k)
        found.append(len(found))
        return x * found[-1], found is cached(k)

    return cached, program


X = torch.ones(2)
CALLS = [(X, k) for k in (2, 2, 3, 2, 4, 3, 2, 2)]


@pytest.mark.parametrize("options", [{}, {"maxsize": None}, {"maxsize": 2}, {"typed": True}])
@pytest.mark.parametrize("make", [number, keywords, after_an_effect, shared_list])
def test_results_counters_and_entries(make, options):
    assert str(run(make, True, CALLS, **options)) == str(run(make, False, CALLS, **options))


def test_an_exception_is_raised_at_each_call_and_not_kept():
    calls = [(X, 1), (X, -1), (X, -1), (X, 1)]
    own, eager = (run(number, compiled, calls) for compiled in (True, False))
    assert str(own[::2]) == str(eager[::2])
    assert own[-1][1].currsize == eager[-1][1].currsize


def test_a_cleared_cache_is_filled_again():
    ran = []

    @functools.cache
    def cached(k):
        ran.append(k)
        return len(ran)

    compiled = tracer.compile(lambda x: x * cached(1), backend="eager")
    assert [compiled(X)[0].item(), compiled(X)[0].item()] == [1, 1]
    cached.cache_clear()
    assert compiled(X)[0].item() == 2
    assert ran == [1, 1]


def test_another_wrapper_under_the_same_name_is_seen():
    namespace = {"cached": functools.cache(lambda k: k)}
    exec("def program(x): return x * cached(3)", namespace)
    compiled = tracer.compile(namespace["program"], backend="eager")
    assert compiled(X)[0].item() == 3
    namespace["cached"] = functools.cache(lambda k: k * 10)
    assert compiled(X)[0].item() == 30


def test_a_cached_question_leaves_one_graph():
    @functools.lru_cache
    def available(name):
        return name == "yes"

    def program(x):
        return x + 1 if available("yes") else x - 1

    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(X), X + 1)


def test_a_method_with_a_cache():
    class Model:
        @functools.lru_cache(maxsize=None)  # noqa: B019
        def factor(self, k):
            return k + 1

        def __call__(self, x):
            return x * self.factor(2)

    model = Model()
    compiled = tracer.compile(lambda x: model(x), backend="eager")
    for _ in range(3):
        assert compiled(X)[0].item() == 3
    assert Model.factor.cache_info()[:2] == (2, 1)


class Fresh:
    @functools.cache  # noqa: B019
    def plus(self, k):
        return k + 1


def test_a_method_of_an_object_that_is_made_in_the_function():
    Fresh.plus.cache_clear()
    compiled = tracer.compile(lambda x: x * Fresh().plus(2), backend="eager", fullgraph=True)
    for calls in range(1, 4):
        assert compiled(X)[0].item() == 3
        assert Fresh.plus.cache_info()[:2] == (0, calls)
