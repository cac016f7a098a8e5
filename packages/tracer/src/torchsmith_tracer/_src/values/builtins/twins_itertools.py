# mypy: ignore-errors
"""Twins of the classes of ``itertools`` (see ``values/twins.py``): this code is traced, not run.

Each does what ``Modules/itertoolsmodule.c`` does, field by field, so that ``__reduce__`` and
``__setstate__`` are CPython's, and generated code makes the real object again from them. The
combinatoric classes, whose steps run no user code, are in ``combinatorics``.
"""

import functools
import itertools
import operator
import sys

from torchsmith_tracer._src.values.builtin_object import METHOD_TYPES
from torchsmith_tracer._src.values.builtins.combinatorics import quietly, warn_of_pickling
from torchsmith_tracer._src.values.twins import twin

_CELLS = 57  # values in one link of a tee


class _Iterator:
    """What all have in common."""

    no_keywords = True

    def __iter__(self):
        return self

    @classmethod
    def make(twin, cls, *state):
        """The real object in the same state, through its ``__reduce__``."""
        played = object.__new__(type(twin.__name__, (twin,), {}))
        for name, value in zip(twin.state, state, strict=True):
            setattr(played, name, value)
        real, args, *rest = played.__reduce__()
        made = (cls if real is type(played) else real)(*args)
        if rest and rest[0] is not None:
            quietly(made.__setstate__, rest[0])
        return made


def _warning(method):
    @functools.wraps(method)
    def warned(self, *state):
        warn_of_pickling()
        return method(self, *state)

    return warned


def _twin(cls):
    for name in ("__reduce__", "__setstate__"):
        if not isinstance(method := getattr(cls, name, object.__reduce__), METHOD_TYPES):
            setattr(cls, name, _warning(method))
    # ``rebuild`` gets the class of the object, and the twin is where the state is known.
    cls.rebuild = staticmethod(lambda real, *state: cls.make(real, *state))
    return twin("itertools", cls.__name__)(cls)


def _state_tuple(state, least, most):
    if not isinstance(state, tuple):
        raise TypeError("state is not a tuple")
    if not least <= len(state) <= most:
        raise TypeError(f"function takes {least} to {most} arguments ({len(state)} given)")


@_twin
class chain(_Iterator):
    state = ("_source", "_active")

    def __init__(self, /, *iterables):
        self._source = iter(iterables)
        self._active = None

    def __next__(self):
        while self._source is not None:
            if self._active is None:
                try:
                    self._active = iter(next(self._source))
                except BaseException:
                    self._source = None
                    raise
            for element in self._active:
                return element
            self._active = None
        raise StopIteration

    def __reduce__(self):
        if self._source is None:
            return type(self), ()
        state = (self._source,) if self._active is None else (self._source, self._active)
        return type(self), (), state

    def start(self, source):
        self._source = source

    def __setstate__(self, state, /):
        _state_tuple(state, 1, 2)
        if not all(hasattr(type(it), "__next__") for it in state):
            raise TypeError("Arguments must be iterators.")
        self._source, self._active = (*state, None)[:2]


def chain_from_iterable(cls, iterables, /):
    source = iter(iterables)
    made = cls.__new__(cls)
    chain.start(made, source)
    return made


@_twin
class count(_Iterator):
    state = ("_at", "_step")

    def __init__(self, start=0, step=1):
        for number in (start, step):
            kind = type(number)
            names = ("__index__", "__int__", "__float__")
            if kind is not complex and not any(hasattr(kind, name) for name in names):
                raise TypeError("a number is required")
        self._at = start
        self._step = step

    def __next__(self):
        value = self._at
        self._at = value + self._step
        return value

    def __repr__(self):
        name = type(self).__name__
        if isinstance(self._step, int) and self._step == 1:
            return f"{name}({self._at!r})"
        return f"{name}({self._at!r}, {self._step!r})"

    def __reduce__(self):
        at, step = self._at, self._step
        fast = type(at) is int and type(step) is int and step == 1 and abs(at) < sys.maxsize
        return type(self), (at,) if fast else (at, step)


@_twin
class cycle(_Iterator):
    state = ("_it", "_saved", "_index", "_first")

    def __init__(self, iterable, /):
        self._it = iter(iterable)
        self._saved = []
        self._index = 0
        self._first = False

    def __next__(self):
        if self._it is not None:
            for element in self._it:
                if not self._first:
                    self._saved.append(element)
                return element
            self._it = None
        if not self._saved:
            raise StopIteration
        element = self._saved[self._index]
        self._index = (self._index + 1) % len(self._saved)
        return element

    def __reduce__(self):
        if self._it is not None:
            return type(self), (self._it,), (self._saved, self._first)
        it = iter(self._saved)
        if self._index:
            it.__setstate__(self._index)
        return type(self), (it,), (self._saved, True)

    def __setstate__(self, state, /):
        _state_tuple(state, 2, 2)
        saved, first = state
        if not isinstance(saved, list):
            raise TypeError(f"argument 1 must be list, not {type(saved).__name__}")
        self._saved = saved
        self._first = operator.index(first) != 0
        self._index = 0


@_twin
class repeat(_Iterator):
    no_keywords = False
    state = ("_element", "_left")

    def __init__(self, object, times=...):
        self._element = object
        self._left = None if times is ... else max(0, operator.index(times))
        bool(self._left)  # here, where the program can break, and not between its items

    def __next__(self):
        if self._left is not None:
            if not self._left:
                raise StopIteration
            self._left -= 1
        return self._element

    def __length_hint__(self):
        if self._left is None:
            raise TypeError("len() of unsized object")
        return self._left

    def __repr__(self):
        left = "" if self._left is None else f", {self._left}"
        return f"{type(self).__name__}({self._element!r}{left})"

    def __reduce__(self):
        left = () if self._left is None else (self._left,)
        return type(self), (self._element, *left)


@_twin
class accumulate(_Iterator):
    state = ("_it", "_func", "_initial", "_total", "_started")

    def __init__(self, iterable, func=None, *, initial=None):
        self._it = iter(iterable)
        self._func = func
        self._initial = initial
        self._total = None
        self._started = False

    def __next__(self):
        if self._initial is not None:
            self._total, self._initial = self._initial, None
        else:
            element = next(self._it)
            if not self._started:
                self._total = element
            elif self._func is None:
                self._total = self._total + element
            else:
                self._total = self._func(self._total, element)
        self._started = True
        return self._total

    def __reduce__(self):
        if self._initial is not None:
            it = itertools.chain((self._initial,), self._it)
            return type(self), (it, self._func), None
        if self._started and self._total is None:
            it = itertools.accumulate(itertools.chain((None,), self._it), self._func)
            return itertools.islice, (it, 1, None)
        return type(self), (self._it, self._func), self._total

    def __setstate__(self, state, /):
        self._total = state
        self._started = True

    @classmethod
    def make(twin, cls, it, func, initial, total, started):
        if not started:
            return cls(it, func, initial=initial)
        made = cls(itertools.chain((total,), it), func)
        next(made)
        return made


@_twin
class compress(_Iterator):
    no_keywords = False
    state = ("_data", "_selectors")

    def __init__(self, data, selectors):
        self._data = iter(data)
        self._selectors = iter(selectors)

    def __next__(self):
        while True:
            element = next(self._data)
            if next(self._selectors):
                return element

    def __reduce__(self):
        return type(self), (self._data, self._selectors)


class _Filter(_Iterator):
    """A function and an iterator; ``_flag`` once the function is not asked any more."""

    state = ("_func", "_it", "_flag")

    def __init__(self, function, iterable, /):
        self._it = iter(iterable)
        self._func = function
        self._flag = False

    def __reduce__(self):
        return type(self), (self._func, self._it)


class _While(_Filter):
    def __reduce__(self):
        return type(self), (self._func, self._it), int(self._flag)

    def __setstate__(self, state, /):
        self._flag = bool(state)


@_twin
class dropwhile(_While):
    def __next__(self):
        while True:
            element = next(self._it)
            if self._flag or not self._func(element):
                self._flag = True
                return element


@_twin
class takewhile(_While):
    def __next__(self):
        if not self._flag:
            element = next(self._it)
            if self._func(element):
                return element
            self._flag = True
        raise StopIteration


@_twin
class filterfalse(_Filter):
    def __next__(self):
        while True:
            element = next(self._it)
            if not (element if self._func is None else self._func(element)):
                return element


@_twin
class starmap(_Filter):
    def __next__(self):
        return self._func(*next(self._it))


@_twin
class pairwise(_Iterator):
    state = ("_it", "_old", "_started")

    def __init__(self, iterable, /):
        self._it = iter(iterable)
        self._old = None
        self._started = False

    def __next__(self):
        if self._it is None:
            raise StopIteration
        try:
            if not self._started:
                self._old = next(self._it)
                self._started = True
                if self._it is None:
                    self._old = None
                    raise StopIteration
            old = self._old
            self._old = next(self._it)
            self._started = True
        except BaseException:
            self._it = self._old = None
            self._started = False
            raise
        return old, self._old

    @classmethod
    def make(twin, cls, it, old, started):
        if it is None:
            return cls(())
        return cls(itertools.chain((old,), it) if started else it)


def _bound(value, otherwise):
    if value is None:
        return otherwise
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if number <= sys.maxsize else None


@_twin
class islice(_Iterator):
    state = ("_it", "_next", "_stop", "_step", "_count")

    def __init__(self, iterable, /, *bounds):
        window = slice(*bounds)  # checks how many there are
        start, stop = _bound(window.start, 0), _bound(window.stop, -2)
        stopped = window.stop is None or (stop is not None and stop >= 0)
        if start is None or start < 0 or not stopped:
            what = "Stop argument" if len(bounds) == 1 and stop in (None, -1) else "Indices"
            rule = "must be None or an integer: 0 <= x <= sys.maxsize."
            raise ValueError(f"{what} for islice() {rule}")
        step = _bound(window.step, 1)
        if step is None or step < 1:
            raise ValueError("Step for islice() must be a positive integer or None.")
        self._it = iter(iterable)
        self._next = start
        self._stop = None if window.stop is None else stop
        self._step = step
        self._count = 0

    def __next__(self):
        if self._it is None:
            raise StopIteration
        try:
            while self._count < self._next:
                next(self._it)
                self._count += 1
            if self._stop is not None and self._count >= self._stop:
                raise StopIteration
            element = next(self._it)
        except BaseException:
            self._it = None
            raise
        self._count += 1
        self._next += self._step
        if self._stop is not None and self._next > self._stop:
            self._next = self._stop
        return element

    def __reduce__(self):
        if self._it is None:
            return type(self), (iter(()), 0), 0
        return type(self), (self._it, self._next, self._stop, self._step), self._count

    def __setstate__(self, state, /):
        self._count = operator.index(state)


def tee(iterable, n=2, /):
    if n < 0:
        raise ValueError("n must be >= 0")
    if not n:
        return ()
    it = iter(iterable)
    if not hasattr(it, "__copy__"):
        it = new_tee(it)
    return (it, *[it.__copy__() for _ in range(n - 1)])


new_tee = type(itertools.tee(())[0])
new_link = getattr(itertools, "_tee_dataobject", None) or itertools.tee_dataobject
new_group = type(next(itertools.groupby("a"))[1])


@_twin
class _tee_dataobject:
    state = ("_it", "_values", "_link", "_running")
    make = classmethod(_Iterator.make.__func__)

    def __init__(self, it, values, link, /):
        if not isinstance(values, list):
            raise TypeError(f"argument 2 must be list, not {type(values).__name__}")
        if len(values) > _CELLS or (link is not None and len(values) < _CELLS):
            raise ValueError(f"_tee_dataobject should have {_CELLS} links, and a next if full")
        self._it = it
        self._values = values
        self._link = link
        self._running = False

    def item(self, index):
        if index == len(self._values):
            if self._running:
                raise RuntimeError("cannot re-enter the tee iterator")
            self._running = True
            try:
                self._values.append(next(self._it))
            finally:
                self._running = False
        return self._values[index]

    def follow(self):
        if self._link is None:
            self._link = new_link(self._it, [], None)
        return self._link

    def __reduce__(self):
        return type(self), (self._it, self._values, self._link)


@_twin
class _tee(_Iterator):
    state = ("_data", "_index")

    def __init__(self, iterable, /):
        it = iter(iterable)
        if isinstance(it, new_tee):
            self._data, self._index = it._data, it._index
        else:
            self._data, self._index = new_link(it, [], None), 0

    def __next__(self):
        if self._index >= _CELLS:
            self._data, self._index = _tee_dataobject.follow(self._data), 0
        element = _tee_dataobject.item(self._data, self._index)
        self._index += 1
        return element

    def __copy__(self):
        return new_tee(self)

    def __reduce__(self):
        return type(self), ((),), (self._data, self._index)

    def __setstate__(self, state, /):
        _state_tuple(state, 2, 2)
        data, index = state
        if not isinstance(data, new_link):
            raise TypeError(f"argument 1 must be _tee_dataobject, not {type(data).__name__}")
        if not 0 <= index <= _CELLS:
            raise ValueError("Index out of range")
        self._data, self._index = data, index


@_twin
class zip_longest(_Iterator):
    state = ("_its", "_active", "_fill")

    def __init__(self, /, *iterables, fillvalue=None):
        self._its = [iter(it) for it in iterables]
        self._active = len(self._its)
        self._fill = fillvalue

    def __next__(self):
        if not self._active:
            raise StopIteration
        row = []
        for i, it in enumerate(self._its):
            element = self._fill
            if it is not None:
                try:
                    element = next(it)
                except StopIteration:
                    self._active -= 1
                    if not self._active:
                        raise
                    self._its[i] = None
                except BaseException:
                    self._active = 0
                    raise
            row.append(element)
        return tuple(row)

    def __reduce__(self):
        its = tuple([() if it is None else it for it in self._its])
        return type(self), its, self._fill

    def __setstate__(self, state, /):
        self._fill = state


@_twin
class groupby(_Iterator):
    # ``_live`` is the cell of the current group: [True] while it may give items.
    state = ("_it", "_func", "_target", "_key", "_value", "_live")

    def __init__(self, iterable, key=None):
        self._it = iter(iterable)
        self._func = key
        self._target = self._key = self._value = ()  # what is known: one item each
        self._live = [False]

    def step(self):
        value = next(self._it)
        self._key = (value if self._func is None else self._func(value),)
        self._value = (value,)

    def __next__(self):
        self._live[0] = False
        while True:
            if self._key:
                if not self._target:
                    break
                if self._key[0] not in self._target:
                    break
            groupby.step(self)
        self._target = self._key
        self._live = [True]
        return self._key[0], new_group(self, self._key[0])

    def __reduce__(self):
        if self._target and self._key and self._value:
            state = (self._key[0], self._value[0], self._target[0])
            return type(self), (self._it, self._func), state
        return type(self), (self._it, self._func)

    def __setstate__(self, state, /):
        _state_tuple(state, 3, 3)
        self._key, self._value, self._target = (state[0],), (state[1],), (state[2],)

    @classmethod
    def make(twin, cls, it, func, target, key, value, live):
        made = cls(it, func)
        if target:
            item = (value or (None,))[0]
            quietly(made.__setstate__, ((key or target)[0], item, target[0]))
            if not value:  # its group has given the item away
                next(new_group(made, target[0]), None)
        return made


@_twin
class _grouper(_Iterator):
    state = ("_parent", "_target", "_live")

    def __init__(self, parent, target, /):
        if not isinstance(parent, itertools.groupby):
            raise TypeError("incorrect usage of internal _grouper")
        self._parent = parent
        self._target = target
        parent._live[0] = False
        parent._live = self._live = [True]

    def __next__(self):
        parent = self._parent
        if not self._live[0]:
            raise StopIteration
        if not parent._value:
            groupby.step(parent)
        if parent._key[0] not in (self._target,) or not parent._value:
            raise StopIteration  # comparing may have gone on in the parent
        value = parent._value[0]
        parent._value = parent._key = ()
        return value

    def __reduce__(self):
        if not self._live[0]:
            return iter, ((),)
        return type(self), (self._parent, self._target)

    @classmethod
    def make(twin, cls, parent, target, live):
        return cls(parent, target) if live[0] else cls(itertools.groupby(()), target)


@_twin
class batched(_Iterator):
    state = ("_it", "_size", "_strict")

    def __init__(self, iterable, n, *, strict=False):
        if n < 1:
            raise ValueError("n must be at least one")
        self._size = operator.index(n)
        self._it = iter(iterable)
        self._strict = bool(strict)

    def __next__(self):
        if self._it is None:
            raise StopIteration
        batch = []
        for element in self._it:
            batch.append(element)
            if len(batch) == self._size:
                return tuple(batch)
        self._it = None
        if not batch:
            raise StopIteration
        if self._strict:
            raise ValueError("batched(): incomplete batch")
        return tuple(batch)

    @classmethod
    def make(twin, cls, it, size, strict):
        keywords = {"strict": True} if strict else {}
        return cls(() if it is None else it, size, **keywords)
