"""What is computed while tracing warns as often as natively, of the same lines."""

import calendar
import collections.abc
import copy
import itertools
import pickle
import re
import warnings

import pytest
import torch
import torchsmith_tracer as tracer

CASES = []


def case(fn):
    CASES.append(fn)
    return fn


def numbers():
    yield 1
    yield 2


@case
def the_truth_of_not_implemented(_):
    return bool(NotImplemented), not NotImplemented, 1 if NotImplemented else 2


@case
def patterns(which):
    return re.compile(f"[[{which}a]").pattern, re.sub(f"[a||{which}]", "b", "aab")


@case
def text_that_is_evaluated(_):
    return eval("'\\d'"), eval("1 is 1")


@case
def what_is_thrown_in_parts(_):
    found = []
    for more in ((), (None,), (ValueError(3),), (ValueError(4), None)):
        generator = numbers()
        next(generator)
        try:
            generator.throw(ValueError, *more)
        except ValueError as e:
            found.append(str(e))
    return found


@case
def a_check_of_instances_by_the_library(_):
    abstract = collections.abc.ByteString
    return isinstance(b"", abstract), isinstance([], abstract), issubclass(bytes, abstract)


@case
def names_that_a_module_computes(_):
    return getattr(calendar, "January", None), calendar.MONDAY


ITERATORS = {
    "accumulate": lambda: itertools.accumulate([1, 2]),
    "chain": lambda: itertools.chain([1], [2]),
    "combinations": lambda: itertools.combinations([1, 2, 3], 2),
    "compress": lambda: itertools.compress([1, 2], [0, 1]),
    "count": lambda: itertools.count(3),
    "cycle": lambda: itertools.cycle([1, 2]),
    "dropwhile": lambda: itertools.dropwhile(bool, [1, 0]),
    "filterfalse": lambda: itertools.filterfalse(bool, [1, 0]),
    "from_iterable": lambda: itertools.chain.from_iterable([[1], [2]]),
    "groupby": lambda: itertools.groupby([1, 1]),
    "grouper": lambda: next(itertools.groupby([1, 1]))[1],
    "islice": lambda: itertools.islice([1, 2, 3], 2),
    "permutations": lambda: itertools.permutations([1, 2]),
    "product": lambda: itertools.product([1], [2]),
    "repeat": lambda: itertools.repeat(1, 3),
    "starmap": lambda: itertools.starmap(max, [(1, 2)]),
    "takewhile": lambda: itertools.takewhile(bool, [1, 0]),
    "tee": lambda: itertools.tee([1, 2])[0],
    "zip_longest": lambda: itertools.zip_longest([1], [2, 3]),
}


@case
def what_an_iterator_is_made_of(which):
    return [ITERATORS[name]().__reduce__()[0].__name__ for name in sorted(ITERATORS)]


@case
def copied_iterators(which):
    found = [next(copy.copy(ITERATORS["count"]())), next(copy.deepcopy(ITERATORS["cycle"]()))]
    made = pickle.loads(pickle.dumps(ITERATORS["islice"]()))
    return found, list(made)


@case
def the_state_of_iterators(_):
    cycle, product = ITERATORS["cycle"](), ITERATORS["product"]()
    cycle.__setstate__(([5], 0))
    product.__setstate__((0, 0))
    return next(cycle), list(product)


@case
def iterators_that_are_only_used(_):
    return [[*itertools.islice(make(), 2)][:1] is None for make in ITERATORS.values()]


def warned(fn, *args):
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        found = fn(*args)
    return found, [(w.category, str(w.message), w.filename, w.lineno) for w in log]


@pytest.mark.parametrize("program", CASES, ids=lambda program: program.__name__)
def test_as_in_python(program):
    compiled = tracer.compile(program, backend="eager")
    for which in ("x", "y"):
        re.purge()
        expected = warned(program, which)
        for _ in range(2):
            re.purge()
            assert warned(compiled, which) == expected


def cast_to_what_it_cannot(x):
    with torch.autocast("cpu", dtype=torch.float32):
        y = x @ x
    return y


def a_deprecated_switch(x):
    return x * torch.is_autocast_cpu_enabled() + bool(NotImplemented)


@pytest.mark.parametrize("program", [cast_to_what_it_cannot, a_deprecated_switch])
def test_a_warning_of_the_program_breaks_nothing(program):
    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(2, 2)
    for _ in range(2):
        (found, log), (expected, own) = warned(compiled, x), warned(program, x)
        assert torch.equal(found, expected) and log == own != []


def a_deprecated_fact(x):
    return x + (torch.get_autocast_gpu_dtype() == torch.float16)


def test_a_fact_that_warns_is_not_asked_by_checks():
    compiled, x = tracer.compile(a_deprecated_fact, backend="eager"), torch.ones(2)
    for _ in range(2):
        (found, log), (expected, own) = warned(compiled, x), warned(a_deprecated_fact, x)
        assert torch.equal(found, expected) and log == own != []


def returned(which):
    return ITERATORS[which]()


@pytest.mark.parametrize("which", ITERATORS)
def test_an_iterator_that_is_made_again_does_not_warn(which):
    found, log = warned(tracer.compile(returned, backend="eager", fullgraph=True), which)
    assert type(found) is type(ITERATORS[which]()) and not log


def test_a_filter_that_makes_an_exception_of_it():
    def program():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                return ITERATORS["count"]().__reduce__()
            except DeprecationWarning as e:
                return str(e)

    assert tracer.compile(program, backend="eager")() == program()
