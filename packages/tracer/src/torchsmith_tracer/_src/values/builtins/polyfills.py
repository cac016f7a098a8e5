"""Python versions of ``itertools``. They are never called: the interpreter traces them.

Each behaves as the documentation of its original says, argument checks included. They use builtins
only, so tracing them adds no guards.
"""

from __future__ import annotations

import itertools

# The functions are typed by what they replace; annotating generators of arbitrary objects would
# only repeat ``object``.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, var-annotated, misc, assignment"


def chain(*iterables):
    for it in iterables:
        yield from it


def chain_from_iterable(iterables):
    for it in iterables:
        yield from it


def count(start=0, step=1):
    while True:
        yield start
        start += step


def cycle(iterable):
    saved = []
    for element in iterable:
        yield element
        saved.append(element)
    while saved:
        for element in saved:
            yield element


def repeat(object, times=None):
    if times is None:
        while True:
            yield object
    for _ in range(times):
        yield object


def accumulate(iterable, func=None, *, initial=None):
    it = iter(iterable)
    total = initial
    if initial is None:
        for total in it:  # noqa: B007 - used after the loop
            break
        else:
            return
    yield total
    for element in it:
        total = total + element if func is None else func(total, element)
        yield total


def compress(data, selectors):
    for element, chosen in zip(data, selectors):
        if chosen:
            yield element


def dropwhile(predicate, iterable):
    it = iter(iterable)
    for element in it:
        if not predicate(element):
            yield element
            break
    yield from it


def takewhile(predicate, iterable):
    for element in iterable:
        if not predicate(element):
            return
        yield element


def filterfalse(predicate, iterable):
    for element in iterable:
        if not (element if predicate is None else predicate(element)):
            yield element


def starmap(function, iterable):
    for args in iterable:
        yield function(*args)


def pairwise(iterable):
    it = iter(iterable)
    for first in it:  # noqa: B007 - used after the loop
        break
    else:
        return
    for second in it:
        yield first, second
        first = second


def islice(iterable, *bounds):
    window = slice(*bounds)
    start, stop, step = window.start, window.stop, window.step
    for bound in (start, stop):
        if bound is not None and (not isinstance(bound, int) or bound < 0):
            raise ValueError(
                "Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize."
                if len(bounds) > 1
                else "Stop argument for islice() must be None or an integer: 0 <= x <= sys.maxsize."
            )
    if step is not None and (not isinstance(step, int) or step < 1):
        raise ValueError("Step for islice() must be a positive integer or None.")
    start = 0 if start is None else start
    step = 1 if step is None else step
    return _islice(iter(iterable), start, stop, step)


def _islice(it, start, stop, step):
    position = 0
    while stop is None or position < stop:
        for element in it:  # noqa: B007 - used after the loop
            break
        else:
            return
        if position >= start and (position - start) % step == 0:
            yield element
        position += 1


def tee(iterable, n=2):
    it = iter(iterable)
    queues = [[] for _ in range(n)]

    def branch(queue):
        while True:
            if not queue:
                for element in it:  # noqa: B007 - used after the loop
                    break
                else:
                    return
                for other in queues:
                    other.append(element)
            yield queue.pop(0)

    return tuple([branch(queue) for queue in queues])


def zip_longest(*iterables, fillvalue=None):
    active = [iter(it) for it in iterables]
    left = len(active)
    if not left:
        return
    done = [False] * left
    while True:
        row = []
        for i, it in enumerate(active):
            element = fillvalue
            if not done[i]:
                for element in it:  # noqa: B007 - used after the loop
                    break
                else:
                    done[i] = True
                    element = fillvalue
                    left -= 1
                    if not left:
                        return
            row.append(element)
        yield tuple(row)


def groupby(iterable, key=None):
    it = iter(iterable)
    state = {"live": False, "id": 0}

    def advance():
        for element in it:
            state["item"] = element
            state["key"] = element if key is None else key(element)
            return True
        state["done"] = True
        return False

    def group(number, target):
        while state["id"] == number and "done" not in state and state["key"] == target:
            yield state["item"]
            if not advance():
                return

    if not advance():
        return
    while "done" not in state:
        target = state["key"]
        state["id"] += 1
        yield target, group(state["id"], target)
        while "done" not in state and state["key"] == target:
            advance()


def product(*iterables, repeat=1):
    if repeat < 0:
        raise ValueError("repeat argument cannot be negative")
    pools = [tuple(pool) for pool in iterables] * repeat
    result = [()]
    for pool in pools:
        result = [(*left, right) for left in result for right in pool]
    return iter(result)


def permutations(iterable, r=None):
    pool = tuple(iterable)
    n = len(pool)
    r = n if r is None else r
    if r < 0:
        raise ValueError("r must be non-negative")
    return _permutations(pool, n, r)


def _permutations(pool, n, r):
    if r > n:
        return
    indices = list(range(n))
    cycles = list(range(n, n - r, -1))
    yield tuple([pool[i] for i in indices[:r]])
    while n:
        for i in reversed(range(r)):
            cycles[i] -= 1
            if cycles[i] == 0:
                indices[i:] = indices[i + 1 :] + indices[i : i + 1]
                cycles[i] = n - i
            else:
                j = cycles[i]
                indices[i], indices[-j] = indices[-j], indices[i]
                yield tuple([pool[i] for i in indices[:r]])
                break
        else:
            return


def combinations(iterable, r):
    pool = tuple(iterable)
    if r < 0:
        raise ValueError("r must be non-negative")
    return _combinations(pool, len(pool), r)


def _combinations(pool, n, r):
    if r > n:
        return
    indices = list(range(r))
    yield tuple([pool[i] for i in indices])
    while True:
        for i in reversed(range(r)):
            if indices[i] != i + n - r:
                break
        else:
            return
        indices[i] += 1
        for j in range(i + 1, r):
            indices[j] = indices[j - 1] + 1
        yield tuple([pool[i] for i in indices])


def combinations_with_replacement(iterable, r):
    pool = tuple(iterable)
    if r < 0:
        raise ValueError("r must be non-negative")
    return _combinations_with_replacement(pool, len(pool), r)


def _combinations_with_replacement(pool, n, r):
    if not n and r:
        return
    indices = [0] * r
    yield tuple([pool[i] for i in indices])
    while True:
        for i in reversed(range(r)):
            if indices[i] != n - 1:
                break
        else:
            return
        indices[i:] = [indices[i] + 1] * (r - i)
        yield tuple([pool[i] for i in indices])


def batched(iterable, n, *, strict=False):
    if n < 1:
        raise ValueError("n must be at least one")
    return _batched(iter(iterable), n, strict)


def _batched(it, n, strict):
    while True:
        batch = []
        for element in it:
            batch.append(element)
            if len(batch) == n:
                break
        if not batch:
            return
        if strict and len(batch) != n:
            raise ValueError("batched(): incomplete batch")
        yield tuple(batch)


def pattern_sub(pattern, repl, string, count=0):
    pieces = []
    position = done = 0
    for match in pattern.finditer(string):
        if count and done >= count:
            break
        pieces.append(string[position : match.start()])
        pieces.append(repl(match))
        position = match.end()
        done += 1  # noqa: SIM113 - counts replacements
    pieces.append(string[position:])
    return "".join(pieces)


ITERTOOLS = {n: fn for n, fn in list(vars().items()) if n[0] != "_" and n in vars(itertools)}
