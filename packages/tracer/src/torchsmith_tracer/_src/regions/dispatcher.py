"""The dispatcher: a function with the user's own signature that picks a compiled version.

Python itself binds the arguments, so the hit path builds no dict, takes no lock and looks nothing
up but its entries::

    def f(a, b=..., *args, c=..., **kwargs):
        if check_0(a, b, c, args, kwargs):
            return body_0(a, b, c, args, kwargs)
        return miss(F, a, b, c, args, kwargs)

Where it follows ``F``, defaults are ``MISSING``, replaced by those that ``F`` has at the call.

The parameters keep their names, since callers use them; ``F``, ``check_0`` and so on get leading
underscores where a parameter is called like one of them (``Signature.own``). A new entry changes
``__code__`` of every live dispatcher of the code object; calls that are under way finish with the
old one. Where compiling has been given up, all that is left is the call of ``F`` itself.
"""

from __future__ import annotations

import inspect
import keyword
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchsmith_tracer._src.emitter import plain_name

_OWN_NAME = re.compile(
    r"(_*)(?:F|REF|SELF|CODE|MISSING|late|changed|miss|limited|check_\d+|body_\d+)$"
)

UNBOUND = object()  # marks a dispatcher of a plain function: nothing is bound to ``self``
MISSING = object()  # stands for an argument that the caller has left out


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

    def first(self, flat: Sequence[object]) -> object:
        """The first positional argument among values in the order of ``names``; None without."""
        if self.positional or self.varargs is None:
            return flat[0] if self.positional else None
        return next(iter(flat[self.kwonly]), None)  # type: ignore[call-overload]

    def own(self, name: str) -> str:
        """A name of the dispatcher's own that no parameter has."""
        return "_" * self._underscores + name

    @property
    def _underscores(self) -> int:
        """One more than the underscores before any parameter called like one of these."""
        found = (_OWN_NAME.match(plain_name(name)) for name in self.names)
        return max((len(m[1]) + 1 for m in found if m is not None), default=0)

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

    def native_call(self, names: Sequence[str]) -> str:
        """``F(...)`` with the values of variables ``names``, in the order of ``self.names``."""
        end = self.positional + self.kwonly
        parts = list(names[: self.positional])
        if self.varargs is not None:
            parts.append(f"*{names[end]}")
        keywords = zip(self.names[self.positional : end], names[self.positional : end], strict=True)
        parts += [f"{keyword}={name}" for keyword, name in keywords]
        if self.varkw is not None:
            parts.append(f"**{names[-1]}")
        return f"{self.own('F')}({', '.join(parts)})"

    def call_native(self, fn: Callable[..., object], flat: Sequence[object]) -> object:
        """Call ``fn`` with values in the order of ``names``. Parameters that are ``MISSING`` are
        left out; those after a missing one were given by keyword."""
        end = self.positional + self.kwonly
        there = [value is not MISSING for value in flat]
        first = min(there.index(False) if False in there else end, self.positional)
        names = self.names[first:end]
        kwargs = {n: v for n, v in zip(names, flat[first:end], strict=True) if v is not MISSING}
        rest = list(flat[end:])
        args = [*flat[:first], *(rest.pop(0) if self.varargs is not None else ())]  # type: ignore[misc]
        if self.varkw is not None:
            kwargs.update(rest.pop(0))  # type: ignore[call-overload]
        return fn(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Form:
    """What dispatchers of one code object differ in.

    Attributes:
        kind: ``plain``: the user's signature; ``bound``: without the first positional parameter,
            which is ``SELF``; ``direct``: with the function object ``F`` as first parameter;
            ``weak``: plain, but ``F`` is given as a weak reference, by whoever keeps dispatchers
            for functions that are not his.
        defaults: number of positional defaults.
        kwdefaults: names of keyword-only parameters that have a default.
        follows: if not empty, defaults are those of ``F`` at the time of the call, and ``changed``
            is called once ``F`` has other code; ``class``: or the class of ``SELF`` another ``F``.
    """

    kind: str
    defaults: int
    kwdefaults: frozenset[str]
    follows: str = ""


def dispatcher_source(
    signature: Signature,
    labels: Sequence[int],
    form: Form,
    *,
    pass_function: bool,
    otherwise: str | None = "miss",
) -> str:
    """Source of a factory ``make(F, SELF)`` that returns the dispatcher function.

    Args:
        signature: the user's parameters.
        labels: numbers of the entries, first tried first.
        form: see ``Form``.
        pass_function: entries take the function object as their first argument.
        otherwise: what is called with the function and the arguments where no entry fits; None:
            the function itself is called.
    """
    own = signature.own
    function, self_ = own("F"), own("SELF")
    safe = {n: f"___{n}" if keyword.iskeyword(n) else plain_name(n) for n in signature.names}
    flat = [safe[n] for n in signature.names]
    bound = form.kind == "bound"
    skip = 1 if bound and signature.positional else 0
    params = signature.parameters(
        skip, safe, min(form.defaults, signature.positional - skip), form.kwdefaults
    )
    if form.kind == "direct":
        params = ", ".join([function, *filter(None, [params])])
    args = ", ".join([function, *flat] if pass_function else flat)
    lines = [f"def make({function}, {self_}):", f"    def dispatch({params}):"]
    if form.kind == "weak":
        reference = own("REF")
        lines[0] = f"def make({reference}, {self_}):"
        lines.append(f"        {function} = {reference}()")
    if skip:
        lines.append(f"        {flat[0]} = {self_}")
    elif bound and signature.varargs is not None:
        star = safe[signature.varargs]
        lines.append(f"        {star} = ({self_}, *{star})")
    if form.follows:
        lines += _following(signature, form, safe, skip)
    for label in labels:
        lines.append(f"        if {own(f'check_{label}')}({args}):")
        lines.append(f"            return {own(f'body_{label}')}({args})")
    last = signature.native_call(flat)
    if otherwise:
        last = f"{own(otherwise)}({', '.join([function, *flat])})"
    lines.append(f"        return {last}")
    lines.append("    return dispatch")
    return "\n".join(lines) + "\n"


def _following(signature: Signature, form: Form, safe: dict[str, str], skip: int) -> list[str]:
    """The part of a dispatcher that sees that its function has changed."""
    function, missing = signature.own("F"), signature.own("MISSING")
    called, given = signature.own("changed"), ", ".join(safe.values())
    changed = f"{called}({function}, {given})"
    lines = [f"if {function}.__code__ is not {signature.own('CODE')}:", f"    return {changed}"]
    if form.follows == "class":
        now = f"type({signature.own('SELF')}).__call__"
        lines.append(f"if {now} is not {function}: return {called}({now}, {given})")
    end = signature.positional
    first = max(end - form.defaults, skip)
    places = [(n, f"__defaults__[{i - end}]") for i, n in enumerate(signature.names[:end])][first:]
    keywords = signature.names[end : end + signature.kwonly]
    places += [(n, f"__kwdefaults__[{n!r}]") for n in keywords if n in form.kwdefaults]
    if places:
        lines.append("try:")
        for name, place in places:
            lines.append(f"    if {safe[name]} is {missing}: {safe[name]} = {function}.{place}")
        late = signature.own("late")  # outside of the handler: the call is not to see its exception
        lines += ["except (IndexError, KeyError, TypeError):", f"    {late} = True"]
        lines += ["else:", f"    {late} = False", f"if {late}: return {changed}"]
    return [f"        {line}" for line in lines]
