"""One C file for many kernels: prelude, kernels, and an entry point for Python per kernel.

The entry points have the signature of ``METH_FASTCALL`` functions, so that a call from Python
costs 60 ns instead of the 300 ns of a foreign function call. The few functions of CPython's stable
ABI that they use arrive as pointers through ``ts_bind``: no Python header, no link dependency, one
binary for all supported versions of Python. The global interpreter lock is released while a kernel
runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchsmith_fx_backend._src.codegen.c.functions import prelude
from torchsmith_fx_backend._src.codegen.c.kernel import Parameter
from torchsmith_fx_backend._src.loops.ir import Fault

# runtime/native.py fills ``py``, in this order.
_BINDING = """
/* ---- calls from Python ---- */

static struct {
  void *(*as_pointer)(void *);
  long long (*as_integer)(void *);
  double (*as_floating)(void *);
  void *(*error_occurred)(void);
  void (*set_error)(void *, const char *);
  void *type_error;
  void *(*save_thread)(void);
  void (*restore_thread)(void *);
  void *none;
  void (*increment)(void *);
  void *index_error;
  void *runtime_error;
} py;

void ts_bind(const void *api) {
  __builtin_memcpy(&py, api, sizeof(py));
}
"""

_ERRORS = {"IndexError": "index_error", "RuntimeError": "runtime_error"}
_NONE = ("  py.increment(py.none);", "  return py.none;", "}", "")
_ROW = {"pointer": "({type})row[{i}]", "integer": "row[{i}]", "floating": "*(double *)&row[{i}]"}
_CONVERT = {"pointer": "as_pointer", "integer": "as_integer", "floating": "as_floating"}


@dataclass(frozen=True, slots=True)
class Function:
    """One kernel's C text: ``name``, its ``parameters``, its ``definition``, what it may raise."""

    name: str
    parameters: tuple[Parameter, ...]
    definition: str
    faults: tuple[Fault, ...] = ()


def unit(functions: Sequence[Function]) -> str:
    """The whole C file."""
    code = "\n".join(f.definition for f in functions)
    entries = "\n".join(_entry(f) for f in functions)
    return f"{prelude(code)}\n{code}\n{_BINDING.lstrip()}\n{entries}"


def _entry(function: Function) -> str:
    """What Python calls: with the arguments of one run, and of many that lie in a table."""
    name, parameters = function.name, function.parameters
    lines = [f"void *py_{name}(void *self, void *const *args, intptr_t count) {{"]
    lines.append(f"  if (count != {len(parameters)}) {{")
    lines.append(f'    py.set_error(py.type_error, "{name} takes {len(parameters)} arguments");')
    lines.append("    return 0;")
    lines.append("  }")
    names = [p.name for p in parameters]
    types = [p.declaration.removesuffix(p.name) for p in parameters]
    for position, parameter in enumerate(parameters):
        value = f"py.{_CONVERT[parameter.kind]}(args[{position}])"
        lines.append(f"  {parameter.declaration} = {value};")
    if function.faults:
        lines.append("  int64_t faults[3] = {0, 0, 0};")
        names.append("faults")
    lines += [
        "  if (py.error_occurred()) return 0;",
        "  void *thread = py.save_thread();",
        f"  {name}({', '.join(names)});",
        "  py.restore_thread(thread);",
        *_raises(function.faults),
        *_NONE,
    ]
    if not function.faults:
        given = (
            _ROW[p.kind].format(type=t, i=i) for i, (p, t) in enumerate(zip(parameters, types))
        )
        lines += [
            f"void *py_{name}_each(void *self, void *const *args, intptr_t count) {{",
            "  const intptr_t *row = py.as_pointer(args[0]);",
            "  const intptr_t *end = row + py.as_integer(args[1]);",
            "  void *thread = py.save_thread();",
            f"  for (; row < end; row += {len(parameters)})",
            f"    {name}({', '.join(given)});",
            "  py.restore_thread(thread);",
            *_NONE,
        ]
    return "\n".join(lines)


def _raises(faults: Sequence[Fault]) -> Iterator[str]:
    """Statements that raise what the kernel noted in ``faults``."""
    for number, fault in enumerate(faults, start=1):
        text = fault.message.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
        places = re.findall(r"{(index|size)}", text)
        text = re.sub(r"{(index|size)}", "%lld", text)
        values = "".join(f", (long long)faults[{1 if p == 'index' else 2}]" for p in places)
        yield f"  if (faults[0] == {number}) {{"
        yield "    char text[256];"
        yield f'    __builtin_snprintf(text, sizeof text, "{text}"{values});'
        yield f"    py.set_error(py.{_ERRORS[fault.error]}, text);"
        yield "    return 0;"
        yield "  }"
