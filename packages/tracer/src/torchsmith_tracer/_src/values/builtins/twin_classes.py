# mypy: ignore-errors
"""Twins of C classes (see ``values/twins.py``): ``functools``, locks, named tuples.

This code is traced, not run. What CPython ships in Python besides C is used from there.
"""

import _thread
import functools
import operator
import types
from reprlib import recursive_repr

from torchsmith_tracer._src.values.builtins.python_versions import (
    PARTIALS_SHOW_MODULES,
    PYTHON_FUNCTOOLS,
    PYTHON_OPERATOR,
)
from torchsmith_tracer._src.values.twins import twin


class readonly:
    """A C member that cannot be set."""

    def __init__(self, name):
        self.name = name

    def __get__(self, obj, cls=None):
        return self if obj is None else getattr(obj, self.name)

    def __set__(self, obj, value):
        raise AttributeError("readonly attribute")


@twin("functools", "partial")
class partial:
    state = forwards = ("_func", "_args", "_keywords")
    func = readonly("_func")
    args = readonly("_args")
    keywords = readonly("_keywords")

    def __init__(*args, **keywords):
        self, *args = args
        if not args:
            raise TypeError("type 'partial' takes at least one argument")
        func, *args = args
        if not callable(func):
            raise TypeError("the first argument must be callable")
        cls = type(self)
        if isinstance(func, cls) and type(func).__call__ is cls.__call__ and not func.__dict__:
            args = (*func.args, *args)
            keywords = {**func.keywords, **keywords}
            func = func.func
        self._func = func
        self._args = tuple(args)
        self._keywords = keywords

    def __call__(self, /, *args, **keywords):
        return self._func(*self._args, *args, **{**self._keywords, **keywords})

    @recursive_repr()
    def __repr__(self):
        cls = type(self)
        whole = cls.__module__ == "functools" or PARTIALS_SHOW_MODULES
        name = f"{cls.__module__}.{cls.__qualname__}" if whole else cls.__name__
        parts = [repr(self._func)]
        parts += [repr(x) for x in self._args]
        parts += [f"{k}={v!r}" for k, v in self._keywords.items()]
        return f"{name}({', '.join(parts)})"

    def __reduce__(self):
        state = (self._func, self._args, self._keywords, self.__dict__ or None)
        return type(self), (self._func,), state

    def __setstate__(self, state):
        if not isinstance(state, tuple) or len(state) != 4:
            raise TypeError("invalid partial state")
        func, args, kwds, namespace = state
        if (
            not callable(func)
            or not isinstance(args, tuple)
            or (kwds is not None and not isinstance(kwds, dict))
        ):
            raise TypeError("invalid partial state")
        self._func = func
        self._args = args if type(args) is tuple else tuple(args)
        self._keywords = {} if kwds is None else kwds if type(kwds) is dict else dict(kwds)
        self.__dict__ = {} if namespace is None else namespace

    @staticmethod
    def rebuild(cls, func, args, keywords):
        return cls.__new__(cls, func, *args, **keywords)


@twin("functools", "_lru_cache_wrapper")
class _lru_cache_wrapper:
    state = ("_inner", "cache_info", "cache_clear")

    def __init__(self, user_function, maxsize, typed, cache_info_type):
        if not callable(user_function):
            raise TypeError("the first argument must be callable")
        inner = PYTHON_FUNCTOOLS["_lru_cache_wrapper"](
            user_function, maxsize, typed, cache_info_type
        )
        self._inner = inner
        self.cache_info = inner.cache_info
        self.cache_clear = inner.cache_clear

    def __call__(self, /, *args, **kwargs):
        return self._inner(*args, **kwargs)

    def __get__(self, obj, cls=None):
        return self if obj is None else types.MethodType(self, obj)

    def __reduce__(self):
        return self.__qualname__

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


def _comparison(op):
    def compare(self, other):
        if type(other) is not type(self):
            raise TypeError("other argument must be K instance")
        if not (self._obj and other._obj):
            raise AttributeError("object")
        return op(self._compare(self._obj[0], other._obj[0]), 0)

    compare.__name__ = f"__{op.__name__}__"
    return compare


@twin("functools", "KeyWrapper")
class KeyWrapper:
    """What ``cmp_to_key`` makes; ``_obj`` is empty until it is called with what it is to wrap."""

    state = ("_compare", "_obj")
    __hash__ = None
    __lt__, __le__, __eq__, __ne__, __gt__, __ge__ = map(
        _comparison, (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)
    )

    def __init__(self, mycmp):
        self._compare = mycmp
        self._obj = ()

    def __call__(self, obj):
        made = functools.cmp_to_key(self._compare)
        made.obj = obj
        return made

    @property
    def obj(self):
        return self._obj[0] if self._obj else None

    @obj.setter
    def obj(self, value):
        self._obj = (value,)

    @staticmethod
    def rebuild(cls, mycmp, obj):
        made = functools.cmp_to_key(mycmp)
        return made(*obj) if obj else made


@twin("_thread", "lock", "LockType")
class lock:
    """Of one thread: tracing has no other."""

    state = ("_count",)
    AGAIN, FREE = False, "release unlocked lock"

    def __init__(self):
        self._count = 0

    def acquire(self, blocking=True, timeout=-1):
        if self._count and not self.AGAIN:
            return False  # of a lock that the program holds itself: it would wait for ever
        self._count += 1
        return True

    def release(self):
        if not self._count:
            raise RuntimeError(self.FREE)
        self._count -= 1

    def locked(self):
        return self._count > 0

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *exc):
        self.release()

    @staticmethod
    def rebuild(cls, count):
        made = _thread.RLock() if cls is _thread.RLock else _thread.allocate_lock()
        for _ in range(count):
            made.acquire()
        return made


@twin("_thread", "RLock")
class RLock(lock):
    AGAIN, FREE = True, "cannot release un-acquired lock"

    def _is_owned(self):
        return self._count > 0

    def _release_save(self):
        if not self._count:
            raise RuntimeError(self.FREE)
        saved = (self._count, 0)
        self._count = 0
        return saved

    def _acquire_restore(self, state, /):
        self._count, _ = state


def _python_twin(module, cls, rebuild):
    """A Python class as a twin: its slots are the state."""
    hidden = ("__slots__", *cls.__slots__)
    space = {name: attr for name, attr in vars(cls).items() if name not in hidden}
    space.update(state=cls.__slots__, rebuild=staticmethod(rebuild))
    twin(module, cls.__name__)(type(cls.__name__, (), space))


_python_twin("operator", PYTHON_OPERATOR["itemgetter"], lambda cls, items, call: cls(*items))
_python_twin("operator", PYTHON_OPERATOR["attrgetter"], lambda cls, names, call: cls(*names))
_python_twin(
    "operator",
    PYTHON_OPERATOR["methodcaller"],
    lambda cls, name, args, kwargs: cls(name, *args, **kwargs),
)


@twin("_collections", "_tuplegetter")
class _tuplegetter:
    state = ("_index", "_doc")

    def __init__(self, index, doc, /):
        self._index = index
        self._doc = doc

    def __get__(self, obj, cls=None):
        return self if obj is None else tuple.__getitem__(obj, self._index)

    def __set__(self, obj, value):
        raise AttributeError("can't set attribute")

    def __delete__(self, obj):
        raise AttributeError("can't delete attribute")

    def __reduce__(self):
        return type(self), (self._index, self._doc)

    def __repr__(self):
        return f"{type(self).__name__}({self._index}, {self._doc!r})"

    @property
    def __doc__(self):
        return self._doc

    @__doc__.setter
    def __doc__(self, text):
        self._doc = text

    @staticmethod
    def rebuild(cls, index, doc):
        return cls(index, doc)
