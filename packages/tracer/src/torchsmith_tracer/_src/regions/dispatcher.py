"""The dispatcher: a function with the user's own signature that picks a compiled version.

Python itself binds the arguments, so the hit path builds no dict, takes no lock and looks nothing
up but its entries::

    def f(a, b=..., *args, c=..., **kwargs):
        if check_0(a, b, c, args, kwargs):
            return body_0(a, b, c, args, kwargs)
        return miss(F, a, b, c, args, kwargs)

A new entry changes ``__code__`` of every live dispatcher of the code object; calls that are under
way finish with the old one.
"""

from __future__ import annotations

import inspect
import linecache
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchsmith_tracer._src.codegen.resume import plain_name

UNBOUND = object()  # marks a dispatcher of a plain function: nothing is bound to ``self``


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a code object, in the order of its local variables.

    Attributes:
        names: all parameter names, positional ones first, then keyword-only, ``*args``,
            ``**kwargs`` (CPython's own order).
        positional: how many are positional; ``posonly`` of them only so.
        kwonly: how many are keyword-only.
        varargs, varkw: names of the star parameters or None.
    """

    names: tuple[str, ...]
    positional: int
    posonly: int
    kwonly: int
    varargs: str | None
    varkw: str | None

    @staticmethod
    def of(code: types.CodeType) -> Signature:
        """Read the parameters of ``code``."""
        positional, kwonly = code.co_argcount, code.co_kwonlyargcount
        end = positional + kwonly
        names = list(code.co_varnames[:end])
        varargs = varkw = None
        if code.co_flags & inspect.CO_VARARGS:
            varargs = code.co_varnames[end]
            names.append(varargs)
            end += 1
        if code.co_flags & inspect.CO_VARKEYWORDS:
            varkw = code.co_varnames[end]
            names.append(varkw)
        return Signature(tuple(names), positional, code.co_posonlyargcount, kwonly, varargs, varkw)

    def parameters(
        self, skip: int, prefix: dict[str, str], defaults: int, kwdefaults: frozenset[str]
    ) -> str:
        """The parameter list as text, without the first ``skip`` positional parameters. Defaults
        are written as None; the function object gets the real ones."""
        out: list[str] = []
        first_default = self.positional - defaults
        for i, name in enumerate(self.names[: self.positional]):
            if i < skip:
                continue
            out.append(prefix[name] + ("=None" if i >= first_default else ""))
            if i + 1 == self.posonly:
                out.append("/")
        if self.varargs is not None:
            out.append("*" + prefix[self.varargs])
        elif self.kwonly:
            out.append("*")
        for name in self.names[self.positional : self.positional + self.kwonly]:
            out.append(prefix[name] + ("=None" if name in kwdefaults else ""))
        if self.varkw is not None:
            out.append("**" + prefix[self.varkw])
        return ", ".join(out)

    def call_native(self, fn: Callable[..., object], flat: Sequence[object]) -> object:
        """Call ``fn`` with values in the order of ``names``."""
        args = list(flat[: self.positional])
        end = self.positional + self.kwonly
        keywords = self.names[self.positional : end]
        kwargs = dict(zip(keywords, flat[self.positional : end], strict=True))
        rest = list(flat[end:])
        if self.varargs is not None:
            args.extend(rest.pop(0))  # type: ignore[arg-type]
        if self.varkw is not None:
            kwargs.update(rest.pop(0))  # type: ignore[call-overload]
        return fn(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Form:
    """What dispatchers of one code object differ in.

    Attributes:
        kind: ``plain``: the user's signature; ``bound``: without the first positional parameter,
            which is ``SELF``; ``direct``: with the function object ``F`` as first parameter.
        defaults: number of positional defaults.
        kwdefaults: names of keyword-only parameters that have a default.
    """

    kind: str
    defaults: int
    kwdefaults: frozenset[str]


def dispatcher_source(
    signature: Signature, labels: Sequence[int], form: Form, *, pass_function: bool
) -> str:
    """Source of a factory ``make(F, SELF)`` that returns the dispatcher function.

    Args:
        signature: the user's parameters.
        labels: numbers of the entries, first tried first.
        form: see ``Form``.
        pass_function: entries take the function object as their first argument.
    """
    safe = {n: _distinct(plain_name(n)) for n in signature.names}
    flat = [safe[n] for n in signature.names]
    bound = form.kind == "bound"
    skip = 1 if bound and signature.positional else 0
    params = signature.parameters(
        skip, safe, min(form.defaults, signature.positional - skip), form.kwdefaults
    )
    if form.kind == "direct":
        params = ", ".join(["F", *filter(None, [params])])
    args = ", ".join(["F", *flat] if pass_function else flat)
    lines = ["def make(F, SELF):", f"    def dispatch({params}):"]
    if skip:
        lines.append(f"        {flat[0]} = SELF")
    elif bound and signature.varargs is not None:
        star = safe[signature.varargs]
        lines.append(f"        {star} = (SELF, *{star})")
    for label in labels:
        lines.append(f"        if check_{label}({args}):")
        lines.append(f"            return body_{label}({args})")
    lines.append(f"        return miss({', '.join(['F', *flat])})")
    lines.append("    return dispatch")
    return "\n".join(lines) + "\n"


def _distinct(name: str) -> str:
    internal = name in ("F", "SELF", "miss") or name.startswith(("check_", "body_"))
    return f"{name}_" if internal else name


_made = iter(range(1, 1 << 62))


def compile_source(text: str, title: str, namespace: dict[str, object]) -> str:
    """Run ``text`` in ``namespace`` as a module that debuggers and tracebacks can show; returns
    the file name under which it is registered."""
    filename = f"<torchsmith {title} {next(_made)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), namespace)
    return filename


def forget_source(filename: str) -> None:
    """Drop a registered source when its code dies."""
    linecache.cache.pop(filename, None)
