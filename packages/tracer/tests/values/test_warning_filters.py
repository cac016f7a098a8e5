"""``warnings.catch_warnings`` stays in one graph: the program's warnings and those that operators
give in C++ are filtered as eager filters them, and the filters are afterwards what they were."""

import warnings

import pytest
import torch
import torchsmith_tracer

FEW = "degrees of freedom"  # what ``torch.std`` of one element warns of, in C++


class Special(UserWarning):
    pass


def helper():
    warnings.warn("of a helper", DeprecationWarning)


def ignores(x, i):
    y = x * 2
    warnings.warn("before")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("inside")
        helper()
        z = torch.std(y[:1])
    warnings.warn("after")
    return y + z + torch.std(y[:1] * 2)


def by_category_and_text(x, i):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f".*{FEW}")
        warnings.simplefilter("ignore", category=Special)
        a = torch.std(x[:1])
        warnings.warn("shown")
        warnings.warn("special", Special)
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            b = torch.std(x[:1])
            warnings.warn("special", Special)
        c = torch.std(x[:1])
    return a, b, c


def without_operators(x, i):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("hidden")
    return x + i


def raises(x, i):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = torch.std(x[:1])
        warnings.warn("hidden")
        raise ValueError(tuple(y.shape))


def caught(x, i):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=DeprecationWarning)
            y = x * 2
            {}[i]
    except KeyError:
        helper()
    return y


def operator_fails(x, i):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x.add_(1)
        y = torch.gather(x, 0, i.long().view(1) * 9)
    return y


WHOLE = [ignores, by_category_and_text, without_operators, raises, caught, operator_fails]


def broken_inside(x, i):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = x * x.sum().item()
        warnings.warn("hidden")
        y = y + torch.std(y[:1])
    warnings.warn("seen")
    return y


def an_error(x, i):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("raised")
        except UserWarning as e:
            return x, str(e)


def with_an_action(x, i):
    with warnings.catch_warnings(action="ignore"):
        warnings.warn("unseen")
        return torch.std(x[:1])


def recorded(x, i):
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        warnings.warn("recorded")
    return x * 2, [str(w.message) for w in log]


def read_while_recorded(x, i):
    counts = []
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        warnings.warn("recorded")
        y = torch.std(x[:1]) + len(log)
        if log:
            warnings.warn(f"after {i.item()}")
        counts += [len(log), [str(w.message)[:8] for w in log][-1]]
        log.clear()
        counts.append(len(log))
    return y, counts


def entered_twice(x, i):
    cm = warnings.catch_warnings()
    with cm:
        warnings.simplefilter("ignore")
    try:
        with cm:
            return x
    except RuntimeError as e:
        return x, str(e)[:12]


CHANGES = [
    lambda: warnings.simplefilter(),
    lambda: warnings.simplefilter("nonsense"),
    lambda: warnings.simplefilter("ignore", lineno=-1),
    lambda: warnings.simplefilter("ignore", append=True),
    lambda: warnings.simplefilter("ignore", wrong=1),
    lambda: warnings.filterwarnings("ignore", "("),
    lambda: warnings.filterwarnings("ignore", 3),
    lambda: warnings.filterwarnings("once", module="tests"),
    lambda: warnings.resetwarnings(),
]


def changed(change):
    def fn(x, i):
        with warnings.catch_warnings():
            y = x * 2
            try:
                change()
                found = len(warnings.filters)
            except Exception as e:
                found = type(e), str(e)
            warnings.warn("w")
        return y, found

    return fn


def seen(fn, action):
    """Results, warnings, and that the filters are those of before, for several calls."""
    results = []
    globals().pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter(action)
        before = warnings.filters
        there = list(before)
        for i in (0, 1, 0):
            try:
                results.append(str(fn(torch.ones(3), torch.tensor(i))))
            except Exception as e:
                results.append((type(e), str(e)))
            assert warnings.filters is before and before == there
    own = [(str(w.message), w.category, w.lineno) for w in log if FEW not in str(w.message)]
    return results, own, sum(FEW in str(w.message) for w in log)


@pytest.mark.parametrize("action", ["always", "default", "once", "module", "ignore", "error"])
@pytest.mark.parametrize(
    "fn",
    [
        *WHOLE,
        broken_inside,
        an_error,
        with_an_action,
        recorded,
        read_while_recorded,
        entered_twice,
    ],
)
def test_warnings_within(fn, action):
    compiled = torchsmith_tracer.compile(fn, backend="eager")
    assert seen(compiled, action) == seen(fn, action)
    if fn in WHOLE and action != "error":
        assert not compiled._torchsmith_region.log.breaks


@pytest.mark.parametrize("change", CHANGES)
def test_other_changes_of_the_filters(change):
    fn = changed(change)
    assert seen(torchsmith_tracer.compile(fn, backend="eager"), "always") == seen(fn, "always")


def test_filters_around_nothing_are_no_nodes(capture):
    torchsmith_tracer.compile(without_operators, backend=capture)(torch.ones(3), 1)
    assert len(capture.targets()) == 1
    torchsmith_tracer.compile(ignores, backend=capture)(torch.ones(3), 1)
    names = [getattr(t, "__name__", "") for t in capture.targets()]
    assert names.index("enter_filters") < names.index("std") < names.index("exit_filters")


def test_backends_may_remove_dead_code():
    def backend(gm, example_inputs):
        gm.graph.eliminate_dead_code()
        gm.recompile()
        return gm.forward

    compiled = torchsmith_tracer.compile(ignores, backend=backend)
    assert seen(compiled, "always") == seen(ignores, "always")


def test_a_list_may_be_the_record_of_warnings_or_not():
    def fn(x, log):
        before = len(log)
        warnings.warn("a")
        return x + before, len(log)

    compiled = torchsmith_tracer.compile(fn, backend="eager")
    for f in (fn, compiled):
        for recorded in (False, True, True, False):
            with warnings.catch_warnings(record=True) as log:
                warnings.simplefilter("always")
                y, n = f(torch.zeros(1), log if recorded else [])
                assert (float(y), n) == (0, int(recorded))
                y, n = f(torch.zeros(1), log if recorded else [])
                assert (float(y), n) == ((1, 2) if recorded else (0, 0))
