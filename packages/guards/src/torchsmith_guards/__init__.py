"""Sources, guards, guard checkers and symbolic shapes for PyTorch compilers."""

from torchsmith_guards._src.collector import Collector, collector
from torchsmith_guards._src.fake.build import new_strided
from torchsmith_guards._src.fake.floats import varying_floats, with_examples
from torchsmith_guards._src.fake.layouts.base import (
    Layout,
    contiguous_strides,
    holds,
    is_contiguous,
    layout_of,
    same_sizes,
)
from torchsmith_guards._src.fake.layouts.by_data import place_of, slice_bounds
from torchsmith_guards._src.fake.layouts.views import resolve_size, view_strides
from torchsmith_guards._src.fake.mode import FakeMode
from torchsmith_guards._src.fake.torch_mode import TorchMode
from torchsmith_guards._src.guards.checker import Checker
from torchsmith_guards._src.guards.explain import Failure, expectation
from torchsmith_guards._src.guards.global_state import AutocastState, GlobalState
from torchsmith_guards._src.guards.guard import UNCHANGED_NUMBER, Guard, GuardKind
from torchsmith_guards._src.guards.guard_set import GuardSet
from torchsmith_guards._src.guards.helpers import fetch
from torchsmith_guards._src.guards.shape_relation import Question, ShapeRelation
from torchsmith_guards._src.guards.tensor_spec import TensorSpec, stride_dependents
from torchsmith_guards._src.guards.tree import estimated_ns
from torchsmith_guards._src.interruptions import deferred, deliver, is_interruption
from torchsmith_guards._src.shapes.env import ShapeEnv, ShapeGuard
from torchsmith_guards._src.shapes.math_functions import SYMBOLIC_MATH, limits_of
from torchsmith_guards._src.shapes.nodes import (
    Add,
    Call,
    Const,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Symbol,
    SymExpr,
)
from torchsmith_guards._src.shapes.queries import expr_of, hint_of, is_symbolic, settled
from torchsmith_guards._src.shapes.relation import SymCondition
from torchsmith_guards._src.shapes.sym_node import SymNode
from torchsmith_guards._src.sources.arrays import ArraySource, share_memory, tensor_of
from torchsmith_guards._src.sources.sources import (
    GLOBAL_STATE,
    SHAPES,
    AnchorSource,
    AttrSource,
    CallSource,
    ClassDictSource,
    ClosureSource,
    ContentSource,
    DefaultsSource,
    FunctionSource,
    IndexedSource,
    ItemSource,
    LocalSource,
    NamespaceSource,
    PinnedSource,
    ResultSource,
    Source,
    Step,
    TensorPropertySource,
    class_dict,
    class_mro,
    is_literal,
    is_short,
)
from torchsmith_guards._src.torch_private import without_saving_hooks
from torchsmith_guards._src.unchanged.native import library as native_library
from torchsmith_guards._src.unchanged.native import python_function

__all__ = [
    "GLOBAL_STATE",
    "SHAPES",
    "SYMBOLIC_MATH",
    "UNCHANGED_NUMBER",
    "Add",
    "AnchorSource",
    "ArraySource",
    "AttrSource",
    "AutocastState",
    "Call",
    "CallSource",
    "Checker",
    "ClassDictSource",
    "ClosureSource",
    "Collector",
    "Const",
    "ContentSource",
    "DefaultsSource",
    "Failure",
    "FakeMode",
    "FloorDiv",
    "FunctionSource",
    "GlobalState",
    "Guard",
    "GuardKind",
    "GuardSet",
    "IndexedSource",
    "ItemSource",
    "Layout",
    "LocalSource",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "NamespaceSource",
    "PinnedSource",
    "Question",
    "ResultSource",
    "ShapeEnv",
    "ShapeGuard",
    "ShapeRelation",
    "Source",
    "Step",
    "SymCondition",
    "SymExpr",
    "SymNode",
    "Symbol",
    "TensorPropertySource",
    "TensorSpec",
    "TorchMode",
    "class_dict",
    "class_mro",
    "collector",
    "contiguous_strides",
    "deferred",
    "deliver",
    "estimated_ns",
    "expectation",
    "expr_of",
    "fetch",
    "hint_of",
    "holds",
    "is_contiguous",
    "is_interruption",
    "is_literal",
    "is_short",
    "is_symbolic",
    "layout_of",
    "limits_of",
    "native_library",
    "new_strided",
    "place_of",
    "python_function",
    "resolve_size",
    "same_sizes",
    "settled",
    "share_memory",
    "slice_bounds",
    "stride_dependents",
    "tensor_of",
    "varying_floats",
    "view_strides",
    "with_examples",
    "without_saving_hooks",
]
