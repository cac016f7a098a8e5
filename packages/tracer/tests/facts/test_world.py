"""Facts that change between two calls: what compiled code relied on must not be stale.

Each program gets ``C``, once the identity and once ``compile``, and returns what several calls gave
with a change of the world between them. Both must be the same.
"""

import abc
import builtins
import contextlib
import copy
import datetime
import enum
import functools
import operator
import os
import sys
import types
import uuid

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchsmith_tracer import compile as smith
from torchsmith_tracer import explain

PROGRAMS = []
SCALE = 2


def program(fn):
    PROGRAMS.append(pytest.param(fn, id=fn.__name__))
    return fn


def t(*values):
    return torch.tensor([float(v) for v in values])


def plain(result):
    if isinstance(result, torch.Tensor):
        return result.tolist()
    if isinstance(result, list | tuple):
        return [plain(r) for r in result]
    return result


@contextlib.contextmanager
def changed(holder, name, value):
    """``holder.name`` (or ``holder[name]``) is ``value`` inside; then it is as it was."""
    if isinstance(holder, dict):
        old = holder.get(name, contextlib)
        holder[name] = value
    else:
        old = vars(holder).get(name, contextlib)
        setattr(holder, name, value)
    try:
        yield
    finally:
        if isinstance(holder, dict):
            if old is contextlib:
                del holder[name]
            else:
                holder[name] = old
        elif old is contextlib:
            delattr(holder, name)
        else:
            setattr(holder, name, old)


def around(f, *args, change):
    """Before, during and after a change."""
    out = [plain(f(*args))]
    with change:
        out.append(plain(f(*args)))
    out.append(plain(f(*args)))
    return out


# --- classes ---------------------------------------------------------------------------------


@program
def derived_class_shadows(C):
    class B:
        k = 2

    class A(B):
        pass

    a = A()
    return around(C(lambda x: x * a.k), t(1), change=changed(A, "k", 11))


@program
def base_of_base_changes(C):
    class B:
        k = 2

    class A(B):
        pass

    a = A()
    return around(C(lambda x: x * a.k), t(1), change=changed(B, "k", 11))


@program
def bases_are_replaced(C):
    class One:
        k = 2

    class Two:
        k = 3

    class A(One):
        pass

    a, f = A(), None
    f = C(lambda x: x * a.k)
    out = [plain(f(t(1)))]
    A.__bases__ = (Two,)
    return [*out, plain(f(t(1)))]


@program
def class_of_an_object_is_replaced(C):
    class One:
        k = 2

    class Two:
        k = 3

    a = One()
    f = C(lambda x: x * a.k)
    out = [plain(f(t(1)))]
    a.__class__ = Two
    return [*out, plain(f(t(1)))]


@program
def metaclass_is_replaced(C):
    class M(type):
        @property
        def k(cls):
            return 2

    class N(M):
        @property
        def k(cls):
            return 3

    class A(metaclass=M):
        pass

    f = C(lambda x: x * A.k)
    out = [plain(f(t(1)))]
    A.__class__ = N
    return [*out, plain(f(t(1)))]


@program
def metaclass_gets_an_attribute(C):
    class M(type):
        pass

    class A(metaclass=M):
        k = 2

    f = C(lambda x: x * A.k)
    return around(f, t(1), change=changed(M, "k", property(lambda cls: 5)))


@program
def getattr_is_added(C):
    class A:
        pass

    a = A()
    f = C(lambda x: x * getattr(a, "q", 1))
    return around(f, t(1), change=changed(A, "__getattr__", lambda self, name: 6))


@program
def getattribute_is_added(C):
    class A:
        k = 2

    a = A()
    f = C(lambda x: x * a.k)
    return around(f, t(1), change=changed(A, "__getattribute__", lambda self, name: 6))


@program
def data_descriptor_is_added_over_an_instance_attribute(C):
    class A:
        pass

    a = A()
    a.k = 2
    f = C(lambda x: x * a.k)
    return around(f, t(1), change=changed(A, "k", property(lambda self: 7)))


@program
def descriptor_becomes_a_data_descriptor(C):
    class D:
        def __get__(self, obj, cls):
            return 5

    class A:
        k = D()

    a = A()
    a.__dict__["k"] = 2
    f = C(lambda x: x * a.k)
    return around(f, t(1), change=changed(D, "__set__", lambda self, obj, value: None))


@program
def dunders_are_added(C):
    class A:
        pass

    a = A()
    f = C(lambda x: (x * bool(a), x * len(a) if hasattr(a, "__len__") else x, a == 3))
    out = around(f, t(1), change=changed(A, "__bool__", lambda self: False))
    out += around(f, t(1), change=changed(A, "__len__", lambda self: 0))
    return out + around(f, t(1), change=changed(A, "__eq__", lambda self, other: True))


@program
def operator_is_replaced(C):
    class A:
        def __add__(self, other):
            return other + 1

    class B(A):
        pass

    b = B()
    f = C(lambda x: b + x)
    out = around(f, t(1), change=changed(A, "__add__", lambda self, other: other + 10))
    return out + around(f, t(1), change=changed(B, "__add__", lambda self, other: other + 20))


@program
def method_property_static_and_class_method_are_replaced(C):
    class A:
        def m(self):
            return 2

        @property
        def p(self):
            return 3

        @staticmethod
        def s():
            return 5

        @classmethod
        def c(cls):
            return 7

        @functools.cached_property
        def q(self):
            return 11

    a = A()
    f = C(lambda x: x * a.m() * a.p * a.s() * a.c())
    out = around(f, t(1), change=changed(A, "m", lambda self: 20))
    out += around(f, t(1), change=changed(A, "p", property(lambda self: 30)))
    out += around(f, t(1), change=changed(A, "s", staticmethod(lambda: 50)))
    return out + around(f, t(1), change=changed(A, "c", classmethod(lambda cls: 70)))


@program
def code_and_closure_of_a_method(C):
    def make(k):
        def m(self):
            return k

        return m

    class A:
        m = make(2)

    a = A()
    f = C(lambda x: x * a.m())
    out = [plain(f(t(1)))]
    A.m.__closure__[0].cell_contents = 3
    out.append(plain(f(t(1))))
    A.m.__code__ = make(5).__code__.replace(co_consts=make(5).__code__.co_consts)
    out.append(plain(f(t(1))))
    A.m = make(9)
    return [*out, plain(f(t(1)))]


@program
def class_name_and_doc(C):
    class A:
        "one"

    a = A()
    f = C(lambda x: (type(a).__name__, A.__doc__, A.__qualname__, A.__module__))
    out = around(f, t(1), change=changed(A, "__doc__", "other"))
    A.__name__ = "B"
    return [*out, f(t(1))]


@program
def class_attribute_that_is_a_container(C):
    class A:
        items = [1, 2]  # noqa: RUF012
        table = {"a": 1}  # noqa: RUF012

    f = C(lambda x: x * sum(A.items) * A.table.get("a", 9) * len(A.table))
    out = [plain(f(t(1)))]
    A.items.append(5)
    out.append(plain(f(t(1))))
    A.table["b"] = 4
    out.append(plain(f(t(1))))
    A.items = (1, 2, 3)
    return [*out, plain(f(t(1)))]


@program
def instance_attribute_shadows_a_class_attribute(C):
    class A:
        k = 2

        def m(self):
            return 3

    a = A()
    f = C(lambda x: x * a.k * a.m())
    out = around(f, t(1), change=changed(a, "k", 10))
    return out + around(f, t(1), change=changed(a, "m", lambda: 30))


@program
def slot_is_filled_and_emptied(C):
    class A:
        __slots__ = ("k",)

    a = A()
    f = C(lambda x: x * getattr(a, "k", 1))
    out = [plain(f(t(1)))]
    a.k = 4
    out.append(plain(f(t(1))))
    del a.k
    return [*out, plain(f(t(1)))]


@program
def isinstance_of_a_class_whose_bases_change(C):
    class One:
        pass

    class Two(One):
        pass

    class Other:
        pass

    a = Two()
    f = C(lambda x: x * 2 if isinstance(a, One) else x * 3)
    out = [plain(f(t(1)))]
    Two.__bases__ = (Other,)
    return [*out, plain(f(t(1)))]


@program
def abstract_class_registers(C):
    class Base(abc.ABC):  # noqa: B024
        pass

    class A:
        pass

    a = A()
    f = C(lambda x: x * 2 if isinstance(a, Base) else x * 3)
    g = C(lambda x: x * 2 if issubclass(A, Base) else x * 3)
    out = [plain(f(t(1))), plain(g(t(1)))]
    Base.register(A)
    return [*out, plain(f(t(1))), plain(g(t(1)))]


@program
def instancecheck_is_added(C):
    class M(type):
        pass

    class A(metaclass=M):
        pass

    f = C(lambda x: x * 2 if isinstance(3, A) else x * 3)
    return around(f, t(1), change=changed(M, "__instancecheck__", lambda cls, obj: True))


@program
def constructor_is_replaced(C):
    class A:
        def __init__(self, k):
            self.k = k

    f = C(lambda x: x * A(2).k)

    def init(self, k):
        self.k = k * 10

    return around(f, t(1), change=changed(A, "__init__", init))


@program
def super_finds_another_method(C):
    class A:
        def m(self):
            return 2

    class B(A):
        pass

    class D(B):
        def m(self):
            return super().m() * 10

    d = D()
    f = C(lambda x: x * d.m())
    out = around(f, t(1), change=changed(A, "m", lambda self: 3))
    return out + around(f, t(1), change=changed(B, "m", lambda self: 5))


@program
def hasattr_and_getattr_with_default(C):
    class A:
        pass

    a = A()
    f = C(lambda x: x * (2 if hasattr(a, "k") else 3) * getattr(A, "j", 5))
    out = around(f, t(1), change=changed(a, "k", 1))
    return out + around(f, t(1), change=changed(A, "j", 7))


@program
def attribute_listing(C):
    class A:
        pass

    a = A()
    a.k = 1
    f = C(lambda x: (x, sorted(vars(a)), "j" in vars(a), sorted(n for n in vars(A) if n[0] != "_")))
    out = around(f, t(1), change=changed(a, "j", 2))
    return out + around(f, t(1), change=changed(A, "k", 2))


# --- functions -------------------------------------------------------------------------------


def helper(x, k=2, *, j=3):
    return x * k * j


@program
def defaults(C):
    f = C(lambda x: helper(x))
    out = around(f, t(1), change=changed_defaults(helper, (7,)))
    helper.__kwdefaults__["j"] = 30
    out.append(plain(f(t(1))))
    helper.__kwdefaults__ = {"j": 3}
    return [*out, plain(f(t(1)))]


@contextlib.contextmanager
def changed_defaults(fn, value):
    old = fn.__defaults__
    fn.__defaults__ = value
    try:
        yield
    finally:
        fn.__defaults__ = old


@program
def defaults_of_functions_with_one_code(C):
    def make(k):
        def h(x, k=k):
            return x * k

        return h

    f = C(lambda x, h: h(x))
    return [plain(f(t(1), make(k))) for k in (2, 3, 2)]


@program
def globals_of_functions_with_one_code(C):
    code = (lambda x: x * K).__code__  # noqa: F821
    f = C(lambda x, h: h(x))
    return [plain(f(t(1), types.FunctionType(code, {"K": k}))) for k in (2, 3, 2)]


@program
def defaults_are_added_and_removed(C):
    def h(x, a=2, b=3):
        return x * a * b

    f = C(lambda x: h(x))
    out = [plain(f(t(1)))]
    h.__defaults__ = (5, 7, 11)
    out.append(plain(f(t(1))))
    h.__defaults__ = (7,)
    with pytest.raises(TypeError):
        f(t(1))
    return out


@program
def function_attributes(C):
    def h():
        pass

    f = C(lambda x: x * getattr(h, "n", 1))
    out = around(f, t(1), change=changed(h, "n", 4))
    return [*out, *around(f, t(1), change=changed(h, "n", 5))]


@program
def function_attribute_as_a_counter(C):
    def h():
        pass

    def f(x):
        h.n = getattr(h, "n", 0) + 1
        return x * h.n

    f = C(f)
    return [plain(f(t(1))) for _ in range(4)], h.n


@program
def function_name_and_doc(C):
    def h():
        "doc"

    f = C(lambda x: (h.__name__, h.__doc__, x))
    out = [plain(f(t(1)))]
    h.__name__ = "other"
    out.append(plain(f(t(1))))
    h.__doc__ = "text"
    return [*out, plain(f(t(1)))]


@program
def code_of_a_function(C):
    def h(x):
        return x * 2

    f = C(lambda x: h(x))
    out = [plain(f(t(1)))]
    h.__code__ = (lambda x: x * 3).__code__
    return [*out, plain(f(t(1)))]


@program
def closure_cells(C):
    k = 2

    def h(x):
        return x * k

    f = C(lambda x: h(x))
    out = [plain(f(t(1)))]
    k = 3
    return [*out, plain(f(t(1)))]


@program
def parts_of_a_partial(C):
    p = functools.partial(helper, k=2)
    f = C(lambda x: p(x))
    out = [plain(f(t(1)))]
    p.keywords["k"] = 5
    out.append(plain(f(t(1))))
    p.__setstate__((helper, (), {"k": 6}, {}))
    return [*out, plain(f(t(1)))]


# --- names -----------------------------------------------------------------------------------


@program
def global_variable(C):
    return around(C(lambda x: x * SCALE), t(1), change=changed(globals(), "SCALE", 5))


@program
def global_function(C):
    f = C(lambda x: helper(x))
    return around(f, t(1), change=changed(globals(), "helper", lambda x: x * 100))


@program
def builtin_is_shadowed_by_a_global(C):
    f = C(lambda x: x * max(2, 3))
    return around(f, t(1), change=changed(globals(), "max", lambda a, b: 50))


@program
def builtin_is_replaced(C):
    f = C(lambda x: x * len(oct(9)))  # not one that the compiler itself needs
    return around(f, t(1), change=changed(builtins, "oct", lambda n: "0o"))


@program
def builtin_is_shadowed_in_an_inlined_module(C):
    m = types.ModuleType("facts_inlined")
    exec("def h(x):\n    return x * min(2, 3)\n", vars(m))
    f = C(lambda x: m.h(x))
    return around(f, t(1), change=changed(m, "min", lambda a, b: 50))


@program
def names_that_do_not_exist(C):
    def f(x):
        try:
            return x * MISSING  # noqa: F821
        except NameError:
            return x * 0

    f = C(f)
    out = around(f, t(1), change=changed(globals(), "MISSING", 5))
    return out + around(f, t(1), change=changed(builtins, "MISSING", 6))


@program
def globals_as_a_dict(C):
    f = C(lambda x: x * globals().get("FACT", 3) * (2 if "FACT" in globals() else 1))
    return around(f, t(1), change=changed(globals(), "FACT", 5))


@program
def import_inside_a_function(C):
    m = types.ModuleType("facts_module")
    m.flag = 2

    def f(x):
        import facts_module

        return x * facts_module.flag

    f = C(f)
    with changed(sys.modules, "facts_module", m):
        out = around(f, t(1), change=changed(m, "flag", 5))
        other = types.ModuleType("facts_module")
        other.flag = 7
        return out + around(f, t(1), change=changed(sys.modules, "facts_module", other))


@program
def import_from_a_package(C):
    package, m = types.ModuleType("facts_package"), types.ModuleType("facts_package.sub")
    package.__path__ = []
    package.sub = m
    m.flag = 2

    def f(x):
        from facts_package import sub
        from facts_package.sub import flag

        return x * sub.flag * flag

    f = C(f)
    with changed(sys.modules, "facts_package", package):
        with changed(sys.modules, "facts_package.sub", m):
            return around(f, t(1), change=changed(m, "flag", 5))


@program
def module_attribute_of_a_global_module(C):
    f = C(lambda x: x * getattr(types, "facts_flag", 3))
    return around(f, t(1), change=changed(types, "facts_flag", 5))


@program
def module_getattr_hook(C):
    m = types.ModuleType("facts_lazy")
    m.__getattr__ = lambda name: 4
    f = C(lambda x: x * m.q)
    return around(f, t(1), change=changed(m, "__getattr__", lambda name: 6))


@program
def standard_function_is_replaced(C):
    f = C(lambda x: x * copy.copy([2])[0])
    return around(f, t(1), change=changed(copy, "copy", lambda obj: [9]))


@program
def users_file_named_like_the_standard_library(C):
    m = types.ModuleType("types")
    m.__file__ = "/somewhere/types.py"
    exec("K = 2\ndef h(x):\n    return x * K\nclass A:\n    k = 3\n", vars(m))
    f = C(lambda x: m.h(x) * m.A.k)
    out = around(f, t(1), change=changed(m, "K", 5))
    return out + around(f, t(1), change=changed(m.A, "k", 7))


@program
def environment(C):
    f = C(lambda x: x + 1 if os.environ.get("FACTS_A") else x - 1)
    g = C(lambda x: x * int(os.getenv("FACTS_A", "3")) * (2 if "FACTS_A" in os.environ else 1))
    out = []
    for value in (None, "1", "2", None):
        if value is None:
            os.environ.pop("FACTS_A", None)
        else:
            os.environ["FACTS_A"] = value
        out += [plain(f(t(1))), plain(g(t(1)))]
    return out


@program
def arguments_of_the_process(C):
    f = C(lambda x: x * len(sys.argv))
    return around(f, t(1), change=changed(sys, "argv", ["a", "b", "c", "d", "e"]))


# --- objects met twice -----------------------------------------------------------------------


class Color(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 3


@program
def enum_key_then_argument(C):
    table = {Color.RED: 1, Color.GREEN: 2, Color.BLUE: 3}
    f = C(lambda x, d, e: x * d[e])
    return [plain(f(t(1), table, e)) for e in Color]


@program
def type_key_then_argument(C):
    table = {int: 1, str: 2}
    f = C(lambda x, d, e: x * d[e])
    return [plain(f(t(1), table, e)) for e in (int, str)]


@program
def constant_of_the_code_then_argument(C):
    f = C(lambda x, e: x * (2 if e is Color.RED else 3))
    g = C(lambda x, k: x * (2 if k is int else 3))
    return [plain(f(t(1), e)) for e in Color] + [plain(g(t(1), k)) for k in (int, str)]


@program
def element_of_a_set_then_argument(C):
    f = C(lambda x, s, e: x * (2 if e in s else 3))
    return [plain(f(t(1), {Color.RED, Color.BLUE}, e)) for e in Color]


@program
def dtype_key_then_argument(C):
    f = C(lambda x, d, e: x * d[e])
    return [
        plain(f(t(1), {torch.float32: 1, torch.int64: 2}, e)) for e in (torch.int64, torch.float32)
    ]


@program
def function_as_a_key_then_argument(C):
    f = C(lambda x, d, e: x * d[e])
    return [plain(f(t(1), {helper: 1, plain: 2}, e)) for e in (helper, plain)]


@program
def enum_value_changes(C):
    class E(enum.Enum):
        A = 1

    f = C(lambda x: x * E.A.value)
    out = [plain(f(t(1)))]
    E.A._value_ = 5
    return [*out, plain(f(t(1)))]


# --- tensors ---------------------------------------------------------------------------------


@program
def is_leaf(C):
    f = C(lambda x: x * 2 if x.is_leaf else x * 3)
    a = t(1).requires_grad_()
    return [plain(f(v)) for v in (a, a * 1, a)]


@program
def grad_fn(C):
    f = C(lambda x: x * 2 if x.grad_fn is None else x * 3)
    a = t(1).requires_grad_()
    return [plain(f(v)) for v in (a, a * 1, a)]


@program
def is_inference(C):
    f = C(lambda x: x * 2 if x.is_inference() else x * 3)
    with torch.inference_mode():
        b = t(1)
    return [plain(f(v)) for v in (t(1), b, t(1))]


@program
def retains_grad_and_views(C):
    f = C(lambda x: x * (2 if x.retains_grad else 3) * (5 if x._is_view() else 7))
    a = t(1).requires_grad_()
    b = a * 1
    c = a * 1
    c.retain_grad()
    return [plain(f(v)) for v in (b, c, a, a.view(1), b)]


@program
def id_of_an_argument(C):
    a, b = t(1), t(2)
    table = {id(a): 2, id(b): 3}
    f = C(lambda x: x * table.get(id(x), 5))
    return [plain(f(v)) for v in (a, b, t(3), a)]


@program
def id_compared_with_a_number(C):
    a, b = t(1), t(2)
    number = id(a)
    f = C(lambda x: x * 2 if id(x) == number else x * 3)
    return [plain(f(v)) for v in (a, b, a)]


@program
def attribute_of_a_tensor(C):
    a = t(1)
    f = C(lambda x: x * getattr(x, "tag", 2))
    return around(f, a, change=changed(a, "tag", 5))


@program
def hooks_of_a_tensor(C):
    f = C(lambda x: x * 2 if x._backward_hooks is None else x * 3)
    a = t(1).requires_grad_()
    out = [plain(f(a))]
    a.register_hook(lambda g: g)
    return [*out, plain(f(a))]


@program
def method_of_tensor_is_patched(C):
    f = C(lambda x: x.relu() + 1)
    old = torch.Tensor.relu
    return around(f, t(1), change=changed(torch.Tensor, "relu", lambda self: old(self) * 10))


@program
def operator_of_tensor_is_patched(C):
    f = C(lambda x: x * 3)
    old = torch.Tensor.__mul__
    return around(f, t(1), change=changed(torch.Tensor, "__mul__", lambda a, b: old(a, 10.0)))


# --- torch -----------------------------------------------------------------------------------


@program
def forward_of_linear_is_patched(C):
    m = nn.Linear(1, 1, bias=False)
    nn.init.ones_(m.weight)
    old = nn.Linear.forward
    change = changed(nn.Linear, "forward", lambda self, x: old(self, x) * 9)
    return around(C(m), torch.ones(1, 1), change=change)


@program
def functional_linear_is_patched(C):
    m = nn.Linear(1, 1, bias=False)
    nn.init.ones_(m.weight)
    old = F.linear
    change = changed(F, "linear", lambda *args: old(*args) * 9)
    return around(C(m), torch.ones(1, 1), change=change)


@program
def call_of_module_is_patched(C):
    m = nn.Sequential(nn.Identity())
    old = nn.Module.__call__
    change = changed(nn.Identity, "__call__", lambda self, x: old(self, x) * 9)
    return around(C(lambda x: m(x)), t(1), change=change)


@program
def torch_function_is_replaced(C):
    return around(C(lambda x: torch.relu(x)), t(1), change=changed(torch, "relu", lambda x: x * 9))


@program
def module_attributes(C):
    m = nn.Linear(1, 1)
    m.k = 2
    f = C(lambda x: x * m.k * getattr(m, "j", 3) * m.training)
    out = around(f, t(1), change=changed(m, "k", 5))
    out += around(f, t(1), change=changed(m, "j", 7))
    m.eval()
    return [*out, plain(f(t(1)))]


@program
def instance_dict_shadows_a_parameter(C):
    m = nn.Linear(1, 1, bias=False)
    nn.init.ones_(m.weight)
    f = C(lambda x: x * m.weight[0])
    return around(f, t(1), change=changed(m.__dict__, "weight", t(5)[None]))


@program
def parameter_and_submodule_are_swapped(C):
    m = nn.Sequential(nn.Identity(), nn.ReLU())
    f = C(lambda x: m(x))
    out = [plain(f(t(-1)))]
    m[1] = nn.Tanhshrink()
    out.append(plain(f(t(-1))))
    m.append(nn.ReLU())
    return [*out, plain(f(t(-1)))]


@program
def hook_is_added(C):
    m = nn.Sequential(nn.Identity())
    f = C(lambda x: m(x))
    out = [plain(f(t(1)))]
    handle = m[0].register_forward_hook(lambda mod, args, out: out * 5)
    out.append(plain(f(t(1))))
    handle.remove()
    return [*out, plain(f(t(1)))]


@program
def global_hook_is_added(C):
    m = nn.Identity()
    f = C(lambda x: m(x))
    out = [plain(f(t(1)))]
    handle = nn.modules.module.register_module_forward_hook(lambda mod, args, out: out * 5)
    out.append(plain(f(t(1))))
    handle.remove()
    return [*out, plain(f(t(1)))]


BACKENDS = {
    "cudnn.benchmark": torch.backends.cudnn,
    "cudnn.deterministic": torch.backends.cudnn,
    "cudnn.enabled": torch.backends.cudnn,
    "mkldnn.enabled": torch.backends.mkldnn,
    "cuda.matmul.allow_tf32": torch.backends.cuda.matmul,
    "nnpack.enabled": torch.backends.nnpack,
}


@pytest.mark.parametrize("path", BACKENDS)
def test_flags_of_backends(path):
    holder, name = BACKENDS[path], path.rpartition(".")[2]
    try:
        old = getattr(holder, name)
    except AttributeError:
        pytest.skip("this release has no such flag")
    scope = {"torch": torch}
    f = smith(eval(f"lambda x: x + 1 if torch.backends.{path} else x - 1", scope), backend="eager")
    try:
        for value in (False, True, False):
            setattr(holder, name, value)
            now = getattr(holder, name)
            assert f(t(1)).item() == (2 if now else 0)
    finally:
        setattr(holder, name, old)


@program
def number_of_threads(C):
    f = C(lambda x: x * torch.get_num_threads())
    before = torch.get_num_threads()
    try:
        out = []
        for n in (1, 2, 1):
            torch.set_num_threads(n)
            out.append(plain(f(t(1))))
        return out
    finally:
        torch.set_num_threads(before)


@program
def anomaly_mode(C):
    f = C(lambda x: x + 1 if torch.is_anomaly_enabled() else x - 1)
    return around(f, t(1), change=torch.autograd.set_detect_anomaly(True))


@program
def autocast(C):
    f = C(lambda x: (x, str(torch.get_autocast_dtype("cpu")), torch.is_autocast_enabled("cpu")))
    out = around(f, t(1), change=torch.autocast("cpu", dtype=torch.bfloat16))
    out += around(f, t(1), change=torch.autocast("cpu", dtype=torch.float16))
    old = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", torch.float16)
    try:
        return [*out, plain(f(t(1)))]
    finally:
        torch.set_autocast_dtype("cpu", old)


@program
def autocast_inside(C):
    def f(x):
        with torch.autocast("cpu", dtype=torch.float16):
            return x, str(torch.get_autocast_dtype("cpu")), torch.is_autocast_cache_enabled()

    f = C(f)
    return [plain(f(t(1))) for _ in range(2)]


@program
def deterministic_and_default_dtype(C):
    f = C(
        lambda x: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            str(torch.get_default_dtype()),
            torch.get_deterministic_debug_mode(),
        )
    )
    out = [plain(f(t(1)))]
    torch.use_deterministic_algorithms(True, warn_only=True)
    out.append(plain(f(t(1))))
    torch.use_deterministic_algorithms(False)
    out.append(plain(f(t(1))))
    torch.set_default_dtype(torch.float64)
    out.append(plain(f(t(1))))
    torch.set_default_dtype(torch.float32)
    return [*out, plain(f(t(1)))]


@program
def matmul_precision(C):
    f = C(lambda x: (x, torch.get_float32_matmul_precision()))
    out = [plain(f(t(1)))]
    torch.set_float32_matmul_precision("medium")
    out.append(plain(f(t(1))))
    torch.set_float32_matmul_precision("highest")
    return [*out, plain(f(t(1)))]


# --- calls whose result differs each time ----------------------------------------------------


IMPURE = {
    "now": lambda x: (datetime.datetime.now(), x)[0],
    "utcnow": lambda x: (datetime.datetime.now(datetime.timezone.utc), x)[0],
    "time": lambda x: (__import__("time").perf_counter(), x)[0],
    "uuid": lambda x: (uuid.uuid4(), x)[0],
    "random": lambda x: (__import__("random").random(), x)[0],
    "randint": lambda x: (__import__("random").getrandbits(60), x)[0],
    "urandom": lambda x: (os.urandom(9), x)[0],
    "object": lambda x: (object(), x)[0],
}


@pytest.mark.parametrize("name", IMPURE)
def test_calls_that_differ_each_time_are_made_each_time(name):
    f = smith(IMPURE[name], backend="eager")
    results = [f(t(1)) for _ in range(3)]
    assert len({id(r) if name == "object" else r for r in results}) == 3


def test_working_directory_is_asked_each_time(tmp_path, monkeypatch):
    f = smith(lambda x: (x, os.getcwd())[1], backend="eager")
    assert f(t(1)) == os.getcwd()
    monkeypatch.chdir(tmp_path)
    assert f(t(1)) == str(tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", PROGRAMS)
def test_compiled_code_sees_what_changed(run):
    want = run(lambda fn: fn)
    got = run(lambda fn: smith(fn, backend="eager"))
    assert got == want


@pytest.mark.filterwarnings("ignore")
def test_defaults_of_a_function_called_after_a_break_come_and_go():
    def h(x=1, *, y=2):
        return x + 2 * y

    def f(x):
        print(end="", flush=True)
        return x * h()

    g = smith(f, backend="eager")
    assert plain(g(t(1))) == [5.0]
    for change in ({"__kwdefaults__": None}, {"__kwdefaults__": {"y": 3}}, {"__defaults__": (2,)}):
        for name, value in change.items():
            setattr(h, name, value)
        try:
            want = plain(f(t(1)))
        except TypeError:
            with pytest.raises(TypeError):
                g(t(1))
        else:
            assert plain(g(t(1))) == want
    h.__code__ = (lambda x=1, *, y=2: x * 100).__code__
    assert plain(g(t(1))) == plain(f(t(1)))


def as_compiled(gm, example_inputs):
    """A backend that takes methods of tensors for torch's own, as those that lower graphs do."""
    ours = {"relu": torch.relu, operator.mul: torch.mul, operator.sub: torch.sub}
    for node in gm.graph.nodes:
        if node.target in ours and node.op.startswith("call"):
            node.op, node.target = "call_function", ours[node.target]
    gm.recompile()
    return gm


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["relu", "__mul__", "__rmul__", "size", "T"])
def test_replaced_methods_operators_and_properties_of_tensors_are_seen(name, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_STRICT", "0")  # torch's own code stumbles over some of these
    programs = {
        "relu": lambda x: x.relu() + 1,
        "__mul__": lambda x: x * x,
        "__rmul__": lambda x: 3 * x,
        "size": lambda x: x + x.size(0),
        "T": lambda x: x.T + 1,
    }
    f = programs[name]
    g, x, old = smith(f, backend=as_compiled), t(2), getattr(torch.Tensor, name)
    replacements = {
        "relu": lambda self: old(self).add(10),
        "__mul__": lambda a, b: old(a, b).add(10),
        "__rmul__": lambda a, b: old(a, b).add(10),
        "size": lambda self, dim: old(self, dim) + 10,
        "T": property(lambda self: old.__get__(self).add(10)),
    }
    assert plain(g(x)) == plain(f(x))
    own = name in vars(torch.Tensor)
    setattr(torch.Tensor, name, replacements[name])
    try:
        assert plain(g(x)) == plain(f(x))
        fresh = smith(f, backend=as_compiled)
        assert plain(fresh(x)) == plain(f(x))
    finally:
        setattr(torch.Tensor, name, old) if own else delattr(torch.Tensor, name)
    assert plain(g(x)) == plain(f(x))
    assert plain(fresh(x)) == plain(f(x))


def test_methods_of_tensors_take_one_guard_for_each_name():
    def f(x, n):
        for _ in range(n):
            x = x.relu() * 2
        return x

    one, many = (explain(f, backend="eager")(t(1), n).frames[0].guards for n in (1, 20))
    assert one.count("'relu'") == many.count("'relu'") > 0
    assert len(one.splitlines()) == len(many.splitlines())


def test_a_method_of_tensors_put_back_by_assignment_is_torchs_own():
    torch.Tensor.add = torch.Tensor.add  # now an entry of the class, where it was inherited
    try:
        run = smith(lambda x: x.add(1) + torch.Tensor.add(x, 2), backend="eager", fullgraph=True)
        assert torch.equal(run(t(1)), t(1) * 2 + 3)
    finally:
        del torch.Tensor.add
