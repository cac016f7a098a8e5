"""Marks on callables: run eagerly, go into the graph as they are, have a constant result, stand for
another callable. Those that ``torch.compiler`` makes count like our own.

A call of something ``is_disabled`` is a break; what ``original_name`` names is inlined instead.

``functools.wraps`` copies a function's ``__dict__`` to its wrapper, so a function's mark counts
only together with ``OWNER``, a weak reference to the function that was marked, or with the ``id``
that torch notes for the same purpose.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.rnn import PackedSequence

ORIGINAL = "__torchsmith_original__"  # on what compile() returned: the user's callable
DISABLED = "__torchsmith_disabled__"  # on what disable() returned: why
ALLOWED = "__torchsmith_allowed__"  # on what allow_in_graph() was given
OWNER = "__torchsmith_owner__"

# What the functions of ``torch.compiler`` leave on a callable.
_TORCH_DISABLED, _TORCH_WHY = "_torchdynamo_disable", "_torchdynamo_disable_msg"
_TORCH_ORIGINAL, _TORCH_ID = "_torchdynamo_orig_callable", "_torchdynamo_wrapper_id"
_TORCH_MODULE, _TORCH_CONTEXT = "_orig_mod", "dynamo_ctx"
TORCH_INLINE = "_torchdynamo_inline"  # names what torch's own tracer enters instead
_TORCH_CONSTANT = "_dynamo_marked_constant"
_TORCH_REGION = "__marked_compile_region_fn__"
_TORCH_ALLOWED = "allow_in_graph.<locals>.deregister"  # called when a marked callable dies
_OLD_HOOKS = "with hooks of register_backward_hook, on the node of its last operator"

_allowed: dict[int, object] = {}  # callables in C, which have no attributes


def mark(fn: types.FunctionType, name: str, value: object) -> None:
    """Mark ``fn`` itself; marks that it has from a function that it wraps are dropped."""
    for other in (ORIGINAL, DISABLED, _TORCH_DISABLED, _TORCH_ORIGINAL, TORCH_INLINE):
        fn.__dict__.pop(other, None)
    fn.__dict__[name] = value
    fn.__dict__[OWNER] = weakref.ref(fn)


def is_unmade(obj: object) -> bool:
    """True for lazy modules that their first call is going to make: it runs eagerly."""
    if not isinstance(obj, LazyModuleMixin) or "_parameters" not in vars(obj):
        return False  # the latter: its constructor is running
    return bool(obj.has_uninitialized_params())  # type: ignore[misc]


def has_old_hooks(module: object) -> bool:
    """Whether hooks of ``register_backward_hook`` will be put on the node of a module's last
    operator, which has to be autograd's own then."""
    own, every = getattr(module, "__dict__", {}), vars(torch.nn.modules.module)
    found = [(own.get("_is_full_backward_hook"), own.get("_backward_hooks"))]
    found.append((every["_global_is_full_backward_hook"], every["_global_backward_hooks"]))
    return torch.is_grad_enabled() and any(full is False and hooks for full, hooks in found)


def runs_natively(obj: object) -> bool:
    """Whether a call of ``obj`` runs as it stands, with all that it calls."""
    return is_disabled(obj) or is_unmade(obj) or isinstance(obj, torch.jit.ScriptModule)


def runs_eagerly(flat: Sequence[object], is_call: bool) -> str | None:
    """Why a method of a module, ``__call__`` or not, is not compiled with these arguments."""
    module: Any = flat[0] if flat else None
    if not issubclass(type(module), torch.nn.Module) or "_modules" not in vars(module):
        return None
    if any(map(is_unmade, module.modules())):
        return "once: the call makes the parameters of lazy modules"
    if is_call and has_old_hooks(module):
        return _OLD_HOOKS
    args = flat[1] if len(flat) > 1 and type(flat[1]) is tuple else flat[1:]
    if isinstance(module, torch.nn.RNNBase):
        if any(issubclass(type(x), PackedSequence) for x in args):
            return "with a packed sequence: how many rows each step has is in a tensor"
    return None


def is_disabled(obj: object) -> bool:
    """True when the user said that ``obj`` must run eagerly (``disable`` here or in torch)."""
    marks = _marks(obj)
    if DISABLED in marks and (OWNER not in marks or _owns(obj, marks)):
        return True
    if _TORCH_DISABLED in marks:
        return _wraps(obj, marks) and not _of_optimizers(marks)
    return type(marks.get(_TORCH_CONTEXT)).__name__ == "DisableContext"  # a module


def why_disabled(obj: object) -> str:
    """What the user gave as the reason, in brackets, for messages."""
    if is_unmade(obj):
        return " (lazy: its first call makes its parameters)"
    if has_old_hooks(obj):
        return f" ({_OLD_HOOKS})"
    if not is_disabled(obj):
        return ""
    why = _marks(obj).get(DISABLED) or _marks(obj).get(_TORCH_WHY)
    return f" (disabled: {why})" if isinstance(why, str) else " (disabled)"


def original_name(obj: object) -> str | None:
    """The attribute of ``obj`` that has the callable that ``obj`` stands for, or None: the user's
    function behind a compiled one, the source of a scripted one."""
    marks = _marks(obj)
    if isinstance(obj, types.FunctionType):
        if ORIGINAL in marks:
            return ORIGINAL if _owns(obj, marks) else None
        if _TORCH_REGION in marks and obj.__code__.co_qualname.startswith("mark_compile_region."):
            return _TORCH_REGION
        entered = TORCH_INLINE in marks or _of_optimizers(marks)
        return (
            _TORCH_ORIGINAL if entered and _TORCH_ORIGINAL in marks and _wraps(obj, marks) else None
        )
    if isinstance(obj, torch.nn.Module):
        if ORIGINAL in type(obj).__dict__:
            return ORIGINAL
        return _TORCH_MODULE if _TORCH_CONTEXT in marks and not is_disabled(obj) else None
    scripted = isinstance(obj, torch.jit.ScriptFunction) and "__name__" in marks  # not traced
    return TORCH_INLINE if scripted and TORCH_INLINE in marks else None


def compiled_by_torch(obj: object) -> bool:
    """Whether ``torch.compile`` made the function ``obj``: it gives what the original does."""
    return "_torchdynamo_orig_callable" in getattr(obj, "__dict__", ())


def original_of(obj: object) -> object | None:
    """The callable that ``obj`` stands for, or None when it stands for itself."""
    name = original_name(obj)
    return None if name is None else getattr(obj, name)


def allow(obj: object) -> None:
    """Mark a callable as one that goes into graphs as it is."""
    if isinstance(obj, types.FunctionType):
        obj.__dict__[ALLOWED] = weakref.ref(obj)
    else:
        _allowed[id(obj)] = obj


def is_allowed(obj: object) -> bool:
    """True for what was given to ``allow_in_graph``, here or in torch."""
    if id(obj) in _allowed:
        return True
    mark = _marks(obj).get(ALLOWED)
    if isinstance(mark, weakref.ref) and mark() is obj:
        return True
    # Torch keeps a table of its own, and has a function called when the callable goes away.
    for reference in weakref.getweakrefs(obj) if callable(obj) else ():
        call = getattr(reference, "__callback__", None)
        if isinstance(call, weakref.finalize) and (about := call.peek()) is not None:
            if getattr(about[1], "__qualname__", "") == _TORCH_ALLOWED:
                return True
    return False


def has_constant_result(fn: types.FunctionType) -> bool:
    """True for what was given to ``torch.compiler.assume_constant_result``."""
    return fn.__dict__.get(_TORCH_CONSTANT) is True


def _marks(obj: object) -> Mapping[str, object]:
    found = getattr(obj, "__dict__", None)
    return found if type(found) is dict else {}


def _of_optimizers(marks: Mapping[str, object]) -> bool:
    """True for methods of optimizers that torch's own compiler disables once it is used."""
    module = getattr(marks.get(_TORCH_ORIGINAL), "__module__", None)
    return isinstance(module, str) and module.startswith("torch.optim.")


def _owns(obj: object, marks: Mapping[str, object]) -> bool:
    owner = marks.get(OWNER)
    # A bound method shows the dict of its function.
    return isinstance(owner, weakref.ref) and owner() is getattr(obj, "__func__", obj)


def _wraps(obj: object, marks: Mapping[str, object]) -> bool:
    number = id(getattr(obj, "__func__", obj))
    return marks.get(_TORCH_ID, number) == number
