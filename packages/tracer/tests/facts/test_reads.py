"""Host objects are read in one place, ``facts/world.py``, which guards what it finds.

A read elsewhere in ``values/``, ``interp/`` and ``facts/`` is ``getattr``, ``hasattr``, ``vars``,
``dir``, ``callable`` or a special attribute of what a value stands for: ``value.obj``, ``.real``,
``.fn``, ``.cls``, ``value.python_type()``, or a name that one of these was given.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchsmith_tracer._src import facts

SOURCES = Path(facts.__file__).parents[1]
HOST = {"obj", "real", "fn", "cls"}
READERS = {"getattr", "hasattr", "vars", "dir", "callable"}
# What cannot change after a class was made, and what only texts of messages show.
FIXED = {"__flags__", "__dictoffset__", "__weakrefoffset__", "__objclass__"}
TEXTS = {"__name__", "__qualname__", "__module__"}
# These print, or write what makes an object again.
PRINTERS = {"describe", "reconstruct", "reconstruct_fill", "rebuild"}

ALLOWED = {
    "types of C and objects of them, which never change": (
        "values/abstract/attributes.py bind_descriptor _delete_dict",
        "values/abstract/calls.py call_builtin",
        "values/abstract/text.py default_text",
        "values/base.py bool hash_key",
        "values/builtin_object.py _error _in_type hash_key method_of_type",
        "values/builtins/methods_objects.py _reduce_builtin",
        "values/builtins/registry.py find_method",
        "values/mappings.py getattr",
        "values/numpy_arrays.py getattr",
        "values/opaque.py call",
        "values/tensor.py getattr",  # after ``tensor_entry``
        "values/twins.py played",
    ),
    "the names were guarded just before": (
        "values/builtins/functions.py _dir",
        "values/classes.py _special generic_getattr",
        "values/python_instances.py slot_names",
    ),
    "looks whether there is anything to read, which the world then reads, or guards beside it": (
        "values/builtins/library.py _environ_getitem",
        "values/functions.py _attribute",
        "values/modules.py changed_table _registers _without_hooks table_get",
        "values/namespaces.py _own_getattr _read getattr",
        "values/contexts.py _leave_existing _read call",
        "values/tensor_objects.py overrides",
    ),
    "changes no value: the text of an error, marks, a class of our own": (
        "values/abstract/imports.py import_from",
        "values/classes.py _mirror",
        "values/twins.py call_target",
    ),
}


def _is_host(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Attribute(attr=attr):
            return attr in HOST
        case ast.Call(func=ast.Attribute(attr="python_type")):
            return True
        case ast.Name(id=name):
            return name in names
    return False


def _reads(function: ast.FunctionDef) -> Iterator[ast.expr]:
    assigned = [n for n in ast.walk(function) if isinstance(n, ast.Assign)]
    targets = [t for n in assigned if _is_host(n.value, set()) for t in n.targets]
    names = {t.id for t in targets if isinstance(t, ast.Name)}
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Name(id=called), args=[first, *_]) if called in READERS:
                if _is_host(first, names):
                    yield node
            case ast.Attribute(value=value, attr=attr) if attr.startswith("__"):
                if attr not in FIXED | TEXTS and _is_host(value, names):
                    yield node


def _found(text: str) -> dict[str, list[str]]:
    """The reads of a module by function."""
    found: dict[str, list[str]] = {}
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef) and function.name not in PRINTERS:
            for node in _reads(function):
                shown = f"line {node.lineno}: {ast.unparse(node)}"
                found.setdefault(function.name, []).append(shown)
    return found


def test_host_objects_are_read_by_the_world_only():
    allowed = {
        (path, name)
        for lines in ALLOWED.values()
        for path, *names in map(str.split, lines)
        for name in names
    }
    found = {
        (path.relative_to(SOURCES).as_posix(), name): reads
        for folder in ("values", "interp", "facts")
        for path in sorted((SOURCES / folder).rglob("*.py"))
        if path.name != "world.py"
        for name, reads in _found(path.read_text()).items()
    }
    assert {place: reads for place, reads in found.items() if place not in allowed} == {}
    assert allowed - found.keys() == set(), "allowed, but not there any more"


@pytest.mark.parametrize(
    "read",
    [
        "return getattr(self.obj, name)",
        "return hasattr(value.python_type(), '__len__')",
        "return self.real.__dict__[name]",
        "kind = value.cls\n    return vars(kind)",
        "cls = value.python_type()\n    return cls.__eq__ is object.__eq__",
    ],
)
def test_a_read_elsewhere_is_seen(read):
    assert list(_found(f"def f(self, value, name):\n    {read}\n")) == ["f"]
