"""``functools.lru_cache``: results, counters and entries are eager's."""

import functools
import logging
import traceback
import warnings
import weakref

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
        except BaseException as error:
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


def caught(ran, **options):
    cached, _ = number(ran, **options)

    def program(x, k):
        try:
            return x * cached(k), x + 1
        except ValueError as error:
            return x * len(ran), str(error)

    return cached, program


def in_a_method(ran, **options):
    class Numbers:
        @functools.lru_cache(**options)
        def checked(self, k, *, least):
            ran.append(k)
            if k < least:
                raise ValueError(k, len(ran))
            return k

    mine = Numbers()

    def helper(x, k):
        return x * mine.checked(k, least=0)

    return Numbers.checked, lambda x, k: helper(x + 1, k)


@pytest.mark.parametrize("make", [number, caught, in_a_method])
def test_an_exception_is_raised_at_each_call_and_not_kept(make):
    calls = [(X, 1), (X, -1), (X, -1), (X, 1), (X, -2), (X, -1)]
    assert str(run(make, True, calls)) == str(run(make, False, calls))


def test_the_exception_of_a_first_call_has_its_traceback():
    cached, program = number([])
    error = pytest.raises(ValueError, tracer.compile(program, backend="eager"), X, -1).value
    names = [f.name for f in traceback.extract_tb(error.__traceback__)]
    assert names[-1] == "cached" and names.count("<lambda>") == 1 and "_call_cached" not in names
    assert error.__context__ is error.__cause__ is None


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


# --- calls that the cache lacks, after effects --------


def logged(cached, log, **options):
    @functools.lru_cache(**options)
    def once(logger, text, *, level="warning"):
        getattr(logger, level)(text)

    return once, lambda x, k: once(log, f"about {k}")


def printed(cached, log, **options):
    @functools.lru_cache(**options)
    def once(k):
        print("computed", k)
        return k * 2

    return once, lambda x, k: once(k) + once(k)


def nested(cached, log, **options):
    @functools.lru_cache(**options)
    def inner(k):
        log.info("inner %d", k)
        return k > 2

    @functools.lru_cache(**options)
    def once(k):
        log.info("outer %d", k)
        return inner(k), inner(k + 1)

    return inner, lambda x, k: once(k)[0] + inner(k)


def warned(cached, log, **options):
    @functools.lru_cache(**options)
    def once(text):
        warnings.warn(text, stacklevel=1)

    return once, lambda x, k: once(f"about {k}")


def warned_for_the_caller(cached, log, **options):
    @functools.lru_cache(**options)
    def once(text):
        warnings.warn(text, stacklevel=2)

    return once, lambda x, k: once(f"about {k}")


def raised(cached, log, **options):
    @functools.lru_cache(**options)
    def once(k):
        log.info("tried %d", k)
        raise ValueError(k)

    def call(x, k):
        try:
            return once(k)
        except ValueError as e:
            return str(e)

    return once, call


def changed(cached, log, **options):
    @functools.lru_cache(**options)
    def once(k):
        cached.append(k)
        return len(cached)

    return once, lambda x, k: once(k)


ONE_GRAPH = (logged, printed, warned)
MAKERS = [*ONE_GRAPH, nested, warned_for_the_caller, raised, changed]


@pytest.mark.parametrize("options", [{"maxsize": None}, {"maxsize": 8}, {"maxsize": 1}])
@pytest.mark.parametrize("make", MAKERS)
def test_calls_after_effects_keep_their_place(make, options, capsys, caplog):
    caplog.set_level(logging.INFO)

    def play(compiled):
        log, stored = logging.getLogger("torchsmith-cached"), []
        once, call = make(stored, log, **options)

        def program(x, k):
            print("before", k)
            x.add_(1)
            log.info("first %d", k)
            found = call(x, k)
            log.info("last %d", k)
            print("after", k)
            return x * k, found

        if compiled:
            whole = make in ONE_GRAPH and options["maxsize"] != 1
            program = tracer.compile(program, backend="eager", fullgraph=whole)
        x, seen = torch.zeros(2), []
        caplog.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for k in (1, 1, 2, 1, 3, 2):
                seen.append((*program(x, k), once.cache_info(), list(stored)))
                if k == 2:
                    once.cache_clear()
        seen.append([(str(w.message), w.filename, w.lineno) for w in caught])
        seen += [(r.getMessage(), r.pathname, r.lineno, r.funcName) for r in caplog.records]
        return str(seen), capsys.readouterr().out

    assert play(True) == play(False)


def test_a_result_that_the_cache_got_elsewhere_is_seen():
    answer = [1]

    @functools.cache
    def once(k):
        return answer[0]

    def program(x, seen):
        seen.append(0)
        return x * once(1)

    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    for wanted in (1, 5):
        once.cache_clear()
        answer[0] = wanted
        assert [compiled(X, [])[0].item() for _ in range(2)] == [wanted, wanted]
    answer[0] = 7
    assert compiled(X, [])[0].item() == 5


def layout(ran, **options):
    class Split:
        def __init__(self, heads):
            self.heads, self.order = heads, [0, 2, 1, 3]

    splits = {heads: Split(heads) for heads in (1, 2)}

    @functools.lru_cache(**options)
    def plan(split, shape, names=()):
        sizes = list(shape[:-1])
        if shape[-1] % split.heads:
            raise ValueError(f"{shape[-1]} does not divide")
        sizes.extend([split.heads, shape[-1] // split.heads])
        return sizes, {"last": sizes[-1]}, split.order, shape[1] * 2, None

    def program(x, heads=2):
        sizes, table, order, twice, _ = plan(splits[heads], x.shape, ("a", "b"))
        return x.view(sizes).permute(order) * table["last"] + twice

    return plan, program


def returned(ran, **options):
    @functools.lru_cache(**options)
    def plan(n):
        return [n, [n * 2]], {"n": n + 1}

    def program(x, change=False):
        found, table = plan(x.shape[1])
        if change:
            found[1].append(0)
            table["n"] += 1
        same = plan(x.shape[1])
        return x * len(found[1]) + table["n"], found, table, same[0] is found

    return plan, program


@pytest.mark.parametrize("options", [{}, {"maxsize": None}, {"maxsize": 2}])
@pytest.mark.parametrize("make", [layout, returned])
def test_numbers_that_vary(make, options):
    calls = [(torch.ones(2, n, 4),) for n in (5, 6, 7, 5, 8, 7, 9)]
    calls += [(torch.ones(2, 6, 4), 1), (torch.ones(2, 9, 4), 1), (torch.ones(2, 7, 4),)]
    assert repr(run(make, True, calls, **options)) == repr(run(make, False, calls, **options))


@pytest.mark.parametrize("make", [layout, returned])
def test_numbers_that_vary_have_one_version(make):
    cached, program = make([])
    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    tracer.clear_metrics()
    for n in (5, 6, 7, 8, 9, 7):
        assert repr(compiled(torch.ones(2, n, 4))) == repr(program(torch.ones(2, n, 4)))
    assert len(tracer.metrics().frames) == 2


def test_a_varying_result_that_the_cache_got_elsewhere_is_seen():
    answer = [1]

    @functools.lru_cache
    def times(n):
        return n * answer[0]

    compiled = tracer.compile(lambda x: x * times(x.shape[0]), backend="eager")
    for n in (2, 3, 4):
        assert compiled(torch.ones(n)).tolist() == [n] * n
    for n, kept in ((4, 4), (5, 35)):
        answer[0] = 7
        times(n)
        answer[0] = 1
        assert compiled(torch.ones(n)).tolist() == [kept] * n
    times.cache_clear()
    assert compiled(torch.ones(5)).tolist() == [5] * 5


def test_a_result_that_a_cleared_cache_got_elsewhere_is_seen():
    """After as many calls as before, of which counters tell nothing."""
    answer = [1]

    @functools.lru_cache
    def times(n):
        return n * answer[0]

    compiled = tracer.compile(lambda x: x * times(x.shape[0]), backend="eager")
    for n in (2, 3, 4, 4):
        assert compiled(torch.ones(n)).tolist() == [n] * n
    info = times.cache_info()
    times.cache_clear()
    answer[0] = 7
    times(4)
    answer[0] = 1
    for k in (10, 11, *[11] * info.hits):
        times(k)
    assert times.cache_info() == info
    assert compiled(torch.ones(4)).tolist() == [28] * 4


def test_a_list_in_the_cache_that_is_changed_elsewhere():
    @functools.lru_cache
    def parts(n):
        return [n]

    compiled = tracer.compile(lambda x: x * len(parts(x.shape[0])), backend="eager")
    for n, more in ((2, 1), (3, 1), (4, 1), (4, 1), (4, 2), (4, 2), (3, 1)):
        if more > len(parts(n)):
            parts(n).append(0)
        assert compiled(torch.ones(n)).tolist() == [more] * n


def test_results_of_different_calls_are_different_places():
    @functools.lru_cache
    def parts(name):
        return [*name]

    def program(x, names):
        return [x * len(parts(name)) for name in names]

    compiled = tracer.compile(program, backend="eager")
    tracer.clear_metrics()
    for names in (("a",), ("bc", "def"), ("ghij", "klmno", "pqrstu"), ("vw", "x", "yz")):
        assert [t[0].item() for t in compiled(X, names)] == [len(name) for name in names]
    assert [f.break_ for f in tracer.metrics().frames] == [None] * 4


def test_a_cleared_cache_lets_its_tensors_go():
    @functools.lru_cache
    def table(n):
        return torch.ones(n)

    compiled = tracer.compile(lambda x: x + table(1), backend="eager")
    assert [compiled(X)[0].item() for _ in range(3)] == [2.0] * 3
    held = weakref.ref(table(1))
    table.cache_clear()
    assert held() is None
    assert compiled(X)[0].item() == 2.0


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, SystemExit, ValueError])
@pytest.mark.parametrize("caught", [GeneratorExit, KeyboardInterrupt, Exception])
def test_any_exception_leaves_the_call_at_its_place(error, caught):
    def make(ran):
        @functools.cache
        def cached(k):
            ran.append(k)
            if len(ran) == 1:
                raise error(k)
            return k

        def program(x):
            ran.append("before")
            ran.pop()
            try:
                y = x * cached(3)
            except caught:
                ran.append("caught")
                return (x * 5).tolist()
            return y.tolist()

        return cached, program

    calls = [(X,)] * 3
    assert run(make, True, calls) == run(make, False, calls)


class Recipe:
    def __init__(self, k, seen=0):
        self.sizes, self.axes, self.table = (k, k + 1), [k], {"all": k * 2}
        self.inner = None if k < 2 else Recipe(k - 2)
        self.seen = seen


def made_of_arguments(k, log):
    return Recipe(k)


def made_of_what_changed(k, log):
    return Recipe(k, len(log))


def made_with_effects(k, log):
    log.append("made")
    return Recipe(k)


def made_with_an_error(k, log):
    return Recipe(k) if k < 2 else Recipe(None)


@pytest.mark.parametrize(
    "made", [made_of_arguments, made_of_what_changed, made_with_effects, made_with_an_error]
)
def test_objects_in_a_cache_after_effects(made):
    def make(ran):
        log = []

        @functools.cache
        def cached(k):
            return made(k, log)

        def program(x, k):
            log.append("before")
            recipe = cached(k)
            log.append(recipe)
            y = x * recipe.sizes[1] + recipe.table["all"] + recipe.seen
            while recipe.inner is not None:
                recipe = recipe.inner
            recipe.axes.append(k)
            return y.tolist(), recipe.axes, len(log), log[-1] is log[1], len({*map(id, log)})

        return cached, program

    calls = [(X, 3), (X, 3), (X, 1), (X, 3), (X, 1)]
    assert run(make, True, calls) == run(make, False, calls)


def test_objects_in_a_cache_do_not_break_graphs():
    backends, recipe = {}, functools.cache(lambda k: Recipe(k))

    def program(x):
        if type(x) not in backends:
            backends[type(x)] = "torch"
        made = recipe(2)
        return x.reshape(made.sizes[1], -1) + made.inner.table["all"]

    compiled = tracer.compile(program, backend="eager")
    tracer.clear_metrics()
    assert torch.equal(compiled(torch.ones(6)), torch.ones(3, 2))
    assert [f.break_ for f in tracer.metrics().frames] == [None]
    assert backends == {torch.Tensor: "torch"}
    assert recipe.cache_info()[:2] == (0, 1)


def test_objects_of_caches_within_caches_are_traced_once():
    def make(ran):
        @functools.cache
        def tree(k):
            made = Recipe(1)
            made.inner = tree(k - 1) if k else None
            return made

        def program(x, k):
            ran.append(k)
            return (x * tree(k).sizes[1]).tolist()

        return tree, program

    calls = [(X, 30), (X, 30), (X, 31)]
    assert run(make, True, calls) == run(make, False, calls)
