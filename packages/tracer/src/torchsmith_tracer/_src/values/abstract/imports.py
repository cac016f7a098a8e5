"""The import statement while tracing."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Sequence
from typing import cast

from torchsmith_guards import ItemSource

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.values.abstract.part import Part
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.functions import BuiltinValue
from torchsmith_tracer._src.values.namespaces import NamespaceValue, PyModuleValue, load_builtin

_IMPORT = builtins.__import__


class Imports(Part):
    """The import statement."""

    def import_module(
        self, name: str, globals: NamespaceValue, fromlist: object, level: object
    ) -> Value:
        """``__import__`` at trace time: importing is idempotent. Which module it gives is guarded
        by its place in ``sys.modules``."""
        hook = load_builtin(self.tx, "__import__")
        if not isinstance(hook, BuiltinValue) or hook.obj is not _IMPORT:
            raise Unsupported("opaque-call", what="a replacement of __import__")
        space = {k: globals.obj.get(k) for k in ("__name__", "__package__", "__path__", "__spec__")}
        space = {k: v for k, v in space.items() if v is not None}
        try:
            names = cast("Sequence[str]", fromlist or ())
            module = __import__(name, space, None, names, cast(int, level))
        except ImportError as e:
            if not level:  # it is not there, or None is in its place
                self.tx.world.item(sys.modules, self._modules(), name)  # type: ignore[arg-type]
            raise self.interp.host_error(e) from None
        if level:
            globals.lookup(self.tx, "__package__")
        return self._imported(module, name if level == 0 else module.__name__)

    def _imported(self, module: object, name: str) -> Value:
        for known in (name, name.partition(".")[0]):
            if sys.modules.get(known) is module:
                return self.tx.builder.wrap(module, ItemSource(self._modules(), known))
        return self.tx.builder.wrap_new(module)

    def _modules(self) -> ItemSource:
        return self.interp.namespace(vars(sys)).variable("modules")

    def import_from(self, module: Value, name: str) -> Value:
        """``from module import name``."""
        try:
            return module.getattr(self.tx, name)
        except ObservedException as e:
            if not self.interp.exception_matches(e.exc, AttributeError):
                raise
            if not isinstance(module, PyModuleValue):
                raise
            try:
                found = importlib.import_module(f"{module.obj.__name__}.{name}")
            except ImportError:
                where = module.obj.__name__
                path = getattr(module.obj, "__file__", None)
                at = f"({path})" if path else "(unknown location)"
                message = f"cannot import name {name!r} from {where!r} {at}"
                raise self.interp.error(ImportError, message, name=where, path=path) from None
            return self._imported(found, f"{module.obj.__name__}.{name}")
