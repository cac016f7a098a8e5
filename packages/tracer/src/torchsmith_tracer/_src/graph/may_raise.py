"""Which operators may still fail when they run, although they went well on fake tensors.

What a graph has written to its inputs before such an operator fails cannot be told apart from what
the program would write when it is run again, so bodies keep copies of those inputs
(``codegen/body.py``). Only what depends on the *data* counts: shapes and types are checked while
tracing, but for the mixtures of types that normalizations take. Indices on an accelerator are
checked there, asynchronously, and nothing can be caught.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import fx

from torchsmith_tracer._src.graph.fakes import RECURRENT, TRACKING, in_place, statistics
from torchsmith_tracer._src.torch_private import map_nodes, storage_id

_BY_INDEX = frozenset(
    "getitem setitem __getitem__ __setitem__ index index_put _index_put_impl gather index_select "
    "index_add index_copy index_fill index_reduce scatter scatter_add scatter_reduce take "
    "take_along_dim put embedding embedding_bag nll_loss nll_loss2d cross_entropy one_hot "
    "multi_margin_loss multilabel_margin_loss bincount repeat_interleave select narrow "
    "masked_scatter ctc_loss grid_sample max_unpool1d max_unpool2d max_unpool3d".split()
)
_ALONE = frozenset(("one_hot", "bincount", "repeat_interleave"))
_BY_VALUE = frozenset(
    "binary_cross_entropy multinomial bernoulli poisson binomial normal uniform exponential "
    "geometric cauchy log_normal gaussian_nll_loss cholesky cholesky_ex cholesky_inverse inverse "
    "inv inv_ex solve solve_ex solve_triangular lstsq svd svdvals eig eigh eigvals eigvalsh lu "
    "lu_factor lu_solve lu_unpack qr det logdet slogdet pinv matrix_rank matrix_power matrix_exp "
    "tensorinv tensorsolve ldl_factor ldl_solve triangular_solve ormqr histc histogram "
    "histogramdd _assert_async _assert_scalar _assert_tensor_metadata isin corrcoef tolist "
    "item".split()
)
_FILLS = frozenset("bernoulli normal uniform exponential geometric cauchy log_normal".split())
_NORMS = frozenset("batch_norm instance_norm group_norm layer_norm rms_norm".split())
_INTEGER_DIVISIONS = frozenset(
    "div divide true_divide floor_divide floordiv remainder fmod mod pow float_power truediv "
    "__floordiv__ __mod__ __rfloordiv__ __rmod__ __pow__ __rpow__ gcd lcm bitwise_left_shift "
    "bitwise_right_shift".split()
)
_DRAWS = frozenset(
    "rand rand_like randn randn_like randint randint_like randperm normal bernoulli multinomial "
    "poisson binomial uniform exponential geometric cauchy log_normal random dropout dropout1d "
    "dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout rrelu "
    "gumbel_softmax scaled_dot_product_attention native_dropout trunc_normal kaiming_uniform "
    "kaiming_normal xavier_uniform xavier_normal orthogonal sparse multi_head_attention_forward "
    "lstm gru rnn_tanh rnn_relu fractional_max_pool2d fractional_max_pool3d".split()
)
_FAILING = _BY_INDEX | _BY_VALUE | _NORMS | _INTEGER_DIVISIONS
_OURS = ("torch", "_operator", "operator", "builtins", "math")


class Operation(NamedTuple):
    """What is known of the target of a call: its plain name, whether it is torch's own, and whether
    it may fail with some arguments."""

    name: str
    own: bool
    fails: bool

    @staticmethod
    def of(target: Callable[..., object] | str) -> Operation:
        """Looked up in several ways: worth remembering."""
        name, own = _base_name(target), _torchs_own(target)
        return Operation(name, own, name in _FAILING or not own)


def may_raise(operation: Operation, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a call with these (fake) tensors among its arguments may fail when it runs."""
    name = operation.name
    if name in _BY_INDEX:
        # One tensor alone is indexed by constants, which tracing has checked.
        return relies_on_data(name, len(tensors)) and any(t.device.type == "cpu" for t in tensors)
    if name in _INTEGER_DIVISIONS:
        return any(t.device.type == "cpu" and not t.dtype.is_floating_point for t in tensors)
    if name in _NORMS:  # which mixtures a kernel takes, only the kernel knows
        return len({t.dtype for t in tensors}) > 1 and any(t.device.type == "cpu" for t in tensors)
    return name in _BY_VALUE or not operation.own


def relies_on_data(name: str, inputs: int) -> bool:
    """Whether a call with so many inputs fails, on any device, for some values of them."""
    return name in _BY_VALUE or (name in _BY_INDEX and (inputs > 1 or name in _ALONE))


def refuses_types(node: fx.Node) -> bool:
    """Whether a call of torch's own fails on tensors of one element of the same types. Fake tensors
    do not tell for which types there are kernels, nor which must be the same."""
    fakes = [n.meta["example_value"] for n in node.all_input_nodes]
    types = tuple([f.dtype for f in fakes if isinstance(f, torch.Tensor)])
    if (_EVERYWHERE.issuperset(types) and len(set(types)) < 2) or any(
        not isinstance(f, torch.Tensor) or f.device.type != "cpu" for f in fakes
    ):
        return False
    given = [a for a in (*node.args, *node.kwargs.values()) if not isinstance(a, fx.Node)]
    key = node.target, types, tuple([type(a) for a in given])
    if key not in _refuses:  # the kernels of recurrent networks trust the sizes of their parameters
        _refuses[key] = node.target in RECURRENT or _fails_on_ones(node)
    return _refuses[key]


def fills(operation: Operation, node: fx.Node) -> bool:
    """Whether a call draws into the one tensor that it is given, by numbers that are known, as
    ``x.bernoulli_(0.9)`` does, and these are fine: what the tensor holds does not matter."""
    alone = in_place(node.target) and len(node.all_input_nodes) == 1
    return alone and operation.name in _FILLS and not _fails_on_ones(node)


def overlaps(node: fx.Node) -> bool:
    """Whether a call writes memory that another argument may lie in, too, which torch refuses."""
    if not (in_place(node.target) or "out" in node.kwargs):
        return False
    fakes = [n.meta["example_value"] for n in node.all_input_nodes]
    stores = [storage_id(f) for f in fakes if isinstance(f, torch.Tensor)]
    return len(set(stores)) < len(stores)


def _fails_on_ones(node: fx.Node) -> bool:
    args, kwargs = map_nodes((node.args, dict(node.kwargs)), _ones)
    try:
        with torch.no_grad():
            call = getattr(args[0], node.target) if isinstance(node.target, str) else node.target
            call(*(args[1:] if isinstance(node.target, str) else args), **kwargs)
    except Exception:  # noqa: BLE001 - whatever it is, the graph may fail with it
        return True
    return False


def _ones(node: fx.Node) -> torch.Tensor:
    fake = node.meta["example_value"]
    return torch.ones([1] * fake.dim(), dtype=fake.dtype, device="cpu")


_EVERYWHERE = frozenset((torch.float32, torch.float64))
_refuses: dict[object, bool] = {}


def draws(operation: Operation) -> bool:
    """Whether a call may take random numbers."""
    return operation.name in _DRAWS or not operation.own


def _base_name(target: Callable[..., object] | str) -> str:
    """``add`` for ``add_``, ``iadd`` for the operator of that name, ``index`` for an overload."""
    if isinstance(target, str):
        name = target
    else:
        packet = getattr(target, "overloadpacket", target)
        name = str(getattr(packet, "__name__", ""))
        if getattr(target, "__module__", None) == "_operator" and name.startswith("i"):
            name = name if name in ("inv", "invert", "index") else name[1:]
    return name if name.endswith("__") else name.rstrip("_").removeprefix("linalg_")


def _torchs_own(target: Callable[..., object] | str) -> bool:
    if isinstance(target, str):
        return True
    space = getattr(target, "namespace", None)
    if space is None:
        space = getattr(getattr(target, "overloadpacket", target), "_qualified_op_name", None)
        space = space.partition("::")[0] if isinstance(space, str) else None
    if space is not None:
        return space in ("aten", "prims", "prim")
    module = getattr(target, "__module__", None)
    if module is None:  # a C function of torch
        return True
    return str(module).partition(".")[0] in _OURS or str(module).startswith("torchsmith")


def stays(gm: fx.GraphModule, position: int) -> bool:
    """Whether nothing but its own new value depends on what an input holds."""
    own, reached = {list(gm.graph.nodes)[position]}, set[fx.Node]()
    for node in gm.graph.nodes:
        used = (own | reached).intersection(node.all_input_nodes)
        if node.op == "output":
            return used <= own
        if not used or (node.target in TRACKING and _unread(node, used)):
            continue
        if in_place(node.target):
            if node.args[0] not in own:
                return False
            own.add(node)
        elif not node.users:
            return False
        else:
            reached.add(node)
    return False


def _unread(node: fx.Node, used: set[fx.Node]) -> bool:
    """Whether a norm only writes what it is given of ``used``: as running statistics."""
    written = statistics(node.target, node.args, node.kwargs)
    others = [arg for arg in (*node.args, *node.kwargs.values()) if arg not in written]
    return bool(written) and used.isdisjoint(others)
