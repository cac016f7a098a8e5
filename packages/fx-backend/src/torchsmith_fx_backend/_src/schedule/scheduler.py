"""``schedule_graph``: from an fx graph to a plan."""

from __future__ import annotations

import logging

from torch import Tensor, fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.printing import print_kernel
from torchsmith_fx_backend._src.loops.verify import verify
from torchsmith_fx_backend._src.schedule.externs import Externs, getattr_path
from torchsmith_fx_backend._src.schedule.facts import Facts
from torchsmith_fx_backend._src.schedule.fuse import Fuser, RefusedError
from torchsmith_fx_backend._src.schedule.memory import MemoryPlanner, eager_peak
from torchsmith_fx_backend._src.schedule.plan import Argument, Launch, Plan
from torchsmith_fx_backend._src.schedule.printing import print_plan

loops_log = logging.getLogger("torchsmith.loops")
schedule_log = logging.getLogger("torchsmith.schedule")

# Tried in turn until the plan holds no more memory than eager does: how many extern calls a kernel
# may reach across, and how many steps a dead buffer may wait for its next owner.
_POLICIES: tuple[tuple[int | None, int | None], ...] = ((None, None), (None, 4), (1, 2), (0, 0))


def schedule_graph(gm: fx.GraphModule, *, check: bool = False) -> Plan:
    """Lower and fuse a functional aten graph.

    Args:
        gm: placeholders are tensors or ``SymInt``; ``node.meta["val"]`` holds the fake result of
            each node; ``get_attr`` nodes are constants; ``copy_`` nodes at the end write inputs.
        check: verify each kernel.

    Returns:
        The plan: kernels for everything that has a lowering, aten calls for the rest.

    Raises:
        IllegalKernelError: with ``check``, when a kernel breaks a rule of the loop IR.
    """
    plan = _best_plan(gm)
    distinct = dict.fromkeys(s.kernel for s in plan.steps if isinstance(s, Launch))
    if check:
        for kernel in distinct:
            verify(kernel)
    if loops_log.isEnabledFor(logging.DEBUG):
        for number, kernel in enumerate(distinct):
            loops_log.debug("kernel%d\n%s", number, print_kernel(kernel))
    if schedule_log.isEnabledFor(logging.DEBUG):
        schedule_log.debug("plan\n%s", print_plan(plan))
    return plan


def _best_plan(gm: fx.GraphModule) -> Plan:
    refused: set[fx.Node] = set()
    best: tuple[int, Plan] | None = None
    limit: int | None = None
    policies = list(_POLICIES)
    while policies:
        reach, hold = policies[0]
        facts = Facts(gm, frozenset(refused))
        try:
            peak, plan = _schedule(facts, reach, hold)
        except RefusedError as error:
            refused.add(error.node)
            continue
        policies.pop(0)
        if best is None or peak < best[0]:
            best = peak, plan
        if limit is None:
            limit = eager_peak(facts)
        if best[0] <= limit:
            break
    assert best is not None
    return best[1]


def _schedule(facts: Facts, reach: int | None, hold: int | None) -> tuple[int, Plan]:
    units = Fuser(facts, reach).run()
    names = _names(facts)
    planner = MemoryPlanner(facts, units, names, hold)
    steps = planner.run()
    externs = Externs(facts, planner.names)
    outputs: tuple[Argument, ...] = ()
    for node in facts.nodes:
        if node.op == "output":
            (values,) = node.args
            items = values if isinstance(values, (tuple, list)) else (values,)
            outputs = tuple(externs.argument(v) for v in items)
    inputs = tuple(names[n] for n in facts.nodes if n.op == "placeholder")
    constants: list[tuple[str, Tensor]] = []
    for node in facts.nodes:
        if node.op == "get_attr" and facts.is_tensor(node):
            value = getattr_path(facts.gm, str(node.target))
            assert isinstance(value, Tensor)
            constants.append((names[node], value))
    return planner.peak, Plan(inputs, tuple(constants), tuple(steps), outputs)


def _names(facts: Facts) -> dict[fx.Node, str]:
    """Locals of the wrapper: node names, but a size input bears its symbol's name."""
    names = {node: node.name for node in facts.nodes}
    taken: set[str] = set()
    for node in facts.nodes:
        if node.op != "placeholder" or facts.is_tensor(node):
            continue
        index = facts.scalar_index(node)
        if type(index) is ix.Sym and index.name not in taken:
            names[node] = index.name
            taken.add(index.name)
    for node, name in names.items():
        if name in taken and node.op != "placeholder":
            names[node] = f"{name}_"
    return names
