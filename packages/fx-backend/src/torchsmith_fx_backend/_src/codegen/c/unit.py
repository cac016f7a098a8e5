"""One C file for many kernels: prelude, kernels, and an entry point for Python per kernel.

The entry points have the signature of ``METH_FASTCALL`` functions, so that a call from Python
costs 60 ns instead of the 300 ns of a foreign function call; they take the arguments of any number
of runs, one after the other. The few functions of CPython's stable
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
    lines = [f"void *py_{function.name}(void *self, void *const *args, intptr_t count) {{"]
    number = len(function.parameters)
    lines.append(f"  if (!count || count % {number}) {{")
    lines.append(f'    py.set_error(py.type_error, "{function.name} takes {number} arguments");')
    lines.append("    return 0;")
    lines.append("  }")
    lines.append(f"  for (void *const *end = args + count; args != end; args += {number}) {{")
    names = []
    for position, parameter in enumerate(function.parameters):
        ctype = parameter.declaration.removesuffix(parameter.name)
        lines.append(
            f"  {ctype}{parameter.name} = py.{_CONVERT[parameter.kind]}(args[{position}]);"
        )
        names.append(parameter.name)
    if function.faults:
        lines.append("  int64_t faults[3] = {0, 0, 0};")
        names.append("faults")
    lines += [
        "  if (py.error_occurred()) return 0;",
        "  void *thread = py.save_thread();",
        f"  {function.name}({', '.join(names)});",
        "  py.restore_thread(thread);",
        *_raises(function.faults),
        "  }",
        "  py.increment(py.none);",
        "  return py.none;",
        "}",
        "",
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
