"""Sources, guards, guard checkers and symbolic shapes for PyTorch compilers."""

from torchsmith_guards._src.fake.mode import FakeMode
from torchsmith_guards._src.guards.checker import Checker
from torchsmith_guards._src.guards.explain import Failure
from torchsmith_guards._src.guards.global_state import AutocastState, GlobalState
from torchsmith_guards._src.guards.guard import Guard, GuardKind
from torchsmith_guards._src.guards.guard_set import GuardSet
from torchsmith_guards._src.guards.shape_relation import ShapeRelation
from torchsmith_guards._src.guards.tensor_spec import TensorSpec, stride_dependents
from torchsmith_guards._src.shapes.env import ShapeEnv, ShapeGuard
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
from torchsmith_guards._src.shapes.queries import expr_of, hint_of, is_symbolic
from torchsmith_guards._src.shapes.relation import SymCondition
from torchsmith_guards._src.shapes.sym_node import SymNode
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
    "GLOBAL_STATE",
    "SHAPES",
    "Add",
    "AttrSource",
    "AutocastState",
    "Call",
    "CallSource",
    "CellSource",
    "Checker",
    "ClosureSource",
    "Const",
    "ConstantSource",
    "DefaultsSource",
    "DictKeySource",
    "Failure",
    "FakeMode",
    "FloorDiv",
    "FuncSource",
    "FunctionSource",
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
    "Max",
    "MethodSelfSource",
    "Min",
    "Mod",
    "Mul",
    "NamespaceSource",
    "ShapeEnv",
    "ShapeEnvSource",
    "ShapeGuard",
    "ShapeRelation",
    "Source",
    "SymCondition",
    "SymExpr",
    "SymNode",
    "Symbol",
    "SyntheticSource",
    "TensorPropertySource",
    "TensorSpec",
    "TypeSource",
    "expr_of",
    "hint_of",
    "is_symbolic",
    "stride_dependents",
]
