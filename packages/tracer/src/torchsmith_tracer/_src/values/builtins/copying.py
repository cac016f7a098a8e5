# mypy: ignore-errors
"""What ``copy`` and ``pickle`` ask of objects, in Python that is traced.

``object.__reduce_ex__`` as in ``typeobject.c``, the classes' own ``__reduce__`` where the C one
cannot run, and the pickle module's Python version in place of ``_pickle``.
"""

import collections
import copyreg
import pickle


def reduce_ex(self, protocol, /):
    """``object.__reduce_ex__``."""
    reduce = getattr(type(self), "__reduce__")  # noqa: B009
    if reduce is not object.__reduce__:
        return self.__reduce__()
    return object_reduce(self, protocol)


def object_reduce(self, protocol=0, /):
    """``object.__reduce__`` for a protocol."""
    if protocol < 2:
        return copyreg._reduce_ex(self, protocol)
    cls = type(self)
    new = copyreg.__newobj__
    if hasattr(self, "__getnewargs_ex__"):
        args, kwargs = self.__getnewargs_ex__()
        if kwargs:
            new, args = copyreg.__newobj_ex__, (cls, args, kwargs)
        else:
            args = (cls, *args)
    elif hasattr(self, "__getnewargs__"):
        args = self.__getnewargs__()
        if not isinstance(args, tuple):
            kind = type(args).__name__
            raise TypeError(f"__getnewargs__ should return a tuple, not {kind!r}")
        args = (cls, *args)
    else:
        required = not isinstance(self, list | dict)
        if required and cls.__itemsize__:
            raise TypeError(f"cannot pickle {cls.__name__!r} object")
        args = (cls,)
    state = self.__getstate__()
    items = iter(self) if isinstance(self, list) else None
    pairs = iter(self.items()) if isinstance(self, dict) else None
    return new, args, state, items, pairs


def getstate(self, /):
    """``object.__getstate__``."""
    if (state := getattr(self, "__dict__", None) or None) is not None:
        state = dict(state)
    names = copyreg._slotnames(type(self))
    slots = {}
    for name in names or ():
        try:
            slots[name] = getattr(self, name)
        except AttributeError:
            continue
    return (state, slots) if slots else state


def set_reduce(self, /):
    return type(self), (list(self),), self.__getstate__()


def deque_reduce(self, /):
    state = self.__getstate__()
    args = () if self.maxlen is None else ((), self.maxlen)
    return type(self), args, state, iter(self)


def ordered_reduce(self, /):
    return type(self), (), self.__getstate__(), None, iter(self.items())


def default_reduce(self, /):
    args = () if self.default_factory is None else (self.default_factory,)
    return type(self), args, None, None, iter(self.items())


def exception_reduce(self, /):
    state = self.__dict__
    return (type(self), self.args, state) if state else (type(self), self.args)


def os_error_reduce(self, /):
    args, state = self.args, self.__dict__
    if len(args) == 2 and self.filename is not None:
        second = self.filename2
        args += (self.filename,) if second is None else (self.filename, None, second)
    return (type(self), args, state) if state else (type(self), args)


def import_error_reduce(self, /):
    state = dict(self.__dict__)
    for name in ("name", "path", "name_from"):
        if getattr(self, name, None) is not None:
            state[name] = getattr(self, name)
    return (type(self), self.args, state) if state else (type(self), self.args)


def attribute_error_getstate(self, /):
    state = dict(self.__dict__)
    if self.name is not None:
        state["name"] = self.name
    state["args"] = self.args
    return state


def attribute_error_reduce(self, /):
    return (type(self), self.args, self.__getstate__())


def exception_setstate(self, state, /):
    if state is not None and not isinstance(state, dict):
        raise TypeError("state is not a dictionary")
    for name, value in (state or {}).items():
        setattr(self, name, value)


REDUCERS = {
    set: set_reduce,
    frozenset: set_reduce,
    collections.deque: deque_reduce,
    collections.OrderedDict: ordered_reduce,
    collections.defaultdict: default_reduce,
}


def dumps(obj, protocol=None, *, fix_imports=True, buffer_callback=None):
    return pickle._dumps(obj, protocol, fix_imports=fix_imports, buffer_callback=buffer_callback)


def loads(data, /, *, fix_imports=True, encoding="ASCII", errors="strict", buffers=None):
    return pickle._loads(
        data, fix_imports=fix_imports, encoding=encoding, errors=errors, buffers=buffers
    )
