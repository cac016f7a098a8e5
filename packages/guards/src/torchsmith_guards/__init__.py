"""Sources, guards, guard checkers and symbolic shapes for PyTorch compilers."""

from torchsmith_guards._src.fake.mode import FakeMode
from torchsmith_guards._src.guards.checker import Checker
from torchsmith_guards._src.guards.explain import Failure
from torchsmith_guards._src.guards.global_state import AutocastState, GlobalState
from torchsmith_guards._src.guards.guard import Guard, GuardKind
from torchsmith_guards._src.guards.guard_set import GuardSet
from torchsmith_guards._src.guards.tensor_spec import TensorSpec, stride_dependents
from torchsmith_guards._src.shapes.env import ShapeEnv, ShapeGuard
from torchsmith_guards._src.shapes.expr import (
    Add,
    Call,
    Const,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    SymExpr,
    Symbol,
)
from torchsmith_guards._src.shapes.node import SymNode
from torchsmith_guards._src.shapes.queries import expr_of, hint_of, is_symbolic
from torchsmith_guards._src.shapes.relation import SymCondition
from torchsmith_guards._src.guards.shape_relation import ShapeRelation
from torchsmith_guards._src.sources.sources import (
    GLOBAL_STATE,
    SHAPES,
    AttrSource,
    CallSource,
    CellSource,
    ClosureSource,
    ConstantSource,
    DefaultsSource,
    DictKeySource,
    FuncSource,
    FunctionSource,
    GlobalSource,
    GlobalStateSource,
    GradSource,
    ItemSource,
    IteratorItemSource,
    LocalSource,
    MethodSelfSource,
    NamespaceSource,
    ShapeEnvSource,
    Source,
    SyntheticSource,
    TensorPropertySource,
    TypeSource,
)

__all__ = [
    "ShapeRelation",
    "SymCondition",
    "is_symbolic",
    "hint_of",
    "expr_of",
    "SymNode",
    "Symbol",
    "SymExpr",
    "Mul",
    "Mod",
    "Min",
    "Max",
    "FloorDiv",
    "Const",
    "Call",
    "Add",
    "ShapeGuard",
    "ShapeEnv",
    "AttrSource",
    "AutocastState",
    "CallSource",
    "CellSource",
    "Checker",
    "ClosureSource",
    "ConstantSource",
    "DefaultsSource",
    "DictKeySource",
    "Failure",
    "FakeMode",
    "FuncSource",
    "FunctionSource",
    "GLOBAL_STATE",
    "GlobalSource",
    "GlobalState",
    "GlobalStateSource",
    "GradSource",
    "Guard",
    "GuardKind",
    "GuardSet",
    "ItemSource",
    "IteratorItemSource",
    "LocalSource",
    "MethodSelfSource",
    "NamespaceSource",
    "SHAPES",
    "ShapeEnvSource",
    "Source",
    "SyntheticSource",
    "TensorPropertySource",
    "TensorSpec",
    "TypeSource",
    "stride_dependents",
]
