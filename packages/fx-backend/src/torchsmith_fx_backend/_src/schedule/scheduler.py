"""``schedule_graph``: from an fx graph to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, fx
from torchsmith_guards.records import recorder

from torchsmith_fx_backend._src.captured import is_boxed
from torchsmith_fx_backend._src.loops.body import Body
from torchsmith_fx_backend._src.loops.verify import verify
from torchsmith_fx_backend._src.schedule import fuse
from torchsmith_fx_backend._src.schedule.externs import Externs, attribute
from torchsmith_fx_backend._src.schedule.facts import Facts
from torchsmith_fx_backend._src.schedule.fuse import MAX_BODY, Fuser, RefusedError
from torchsmith_fx_backend._src.schedule.memory import MemoryPlanner, eager_peak
from torchsmith_fx_backend._src.schedule.order import lower_peak
from torchsmith_fx_backend._src.schedule.plan import Argument, Launch, Plan
from torchsmith_fx_backend._src.schedule.repeats import HELD, find_repeats


@dataclass(frozen=True, slots=True)
class Policy:
    """How far scheduling may go for speed at the price of memory.

    Attributes:
        reach: how many extern calls a kernel may reach across; None: any number, -1: no fusion.
        share: independent kernels may be joined.
        reuse: dead buffers may be used again.
        inline: cheap values may be computed again in each kernel that reads them.
        again: wide values may, too, if their readers are far apart; what they are computed from
            stays until then.
        gather: kernels whose order is free may be joined across extern calls.
        largest: scalar operations in one kernel, about.
    """

    reach: int | None = None
    share: bool = True
    reuse: bool = True
    inline: bool = True
    again: bool = True
    gather: bool = False
    largest: int = MAX_BODY


# Tried in turn until the plan holds no more memory than eager does.
POLICIES = (
    Policy(gather=True),
    Policy(gather=True, again=False),
    Policy(again=False),
    Policy(reach=1, again=False),
    Policy(reach=0, share=False, again=False),
    Policy(reach=-1, share=False, again=False),
)
# The most bytes that a plan holds at once beyond its inputs, what eager holds, and the plan.
_Planned = tuple[int, int, Plan]
SLACK = 1 << 16  # bytes by which a plan may exceed eager's peak: nothing to an allocator


def schedule_graph(
    gm: fx.GraphModule,
    *,
    check: bool = False,
    refused: frozenset[str] = frozenset(),
    policies: Sequence[Policy] = POLICIES,
) -> Plan:
    """Lower and fuse a functional aten graph.

    Args:
        gm: placeholders are tensors or ``SymInt``; ``node.meta["val"]`` holds the fake result of
            each node; ``get_attr`` nodes are constants; ``copy_`` nodes at the end write inputs.
        check: verify each kernel; accesses that only the sizes of a call decide are left to
            ``build(check=True)``.
        refused: names of nodes that aten shall compute although they have a lowering.
        policies: tried in turn.

    Returns:
        The plan: kernels for everything that has a lowering, aten calls for the rest.

    Raises:
        IllegalKernelError: with ``check``, when a kernel breaks a rule of the loop IR.
    """
    found = None if refused else _repeated(gm, policies)
    if found is None:
        found = _best_plan(gm, {n for n in gm.graph.nodes if n.name in refused}, policies)
    peak, eager, plan = found
    told = recorder.current_graph()
    if told is not None:
        told.peak_bytes, told.eager_peak_bytes = peak, eager
    if check:
        for step in plan.steps:
            if isinstance(step, Launch):
                verify(step.kernel, step.sizes)
    return plan


def _repeated(gm: fx.GraphModule, policies: Sequence[Policy]) -> _Planned | None:
    """The plan of a graph of equal parts."""
    found = find_repeats(gm)
    if found is None:
        return None
    modules = [found.rest, *(kind.module for kind in found.kinds)]
    peaks, eager, (rest, *plans) = zip(*(_best_plan(m, set(), policies) for m in modules))
    plan = found.join(rest, plans)
    if plan is None:
        return None
    held = [min(p * len(k.nodes), max(p, HELD)) for p, k in zip(peaks[1:], found.kinds)]
    return max(peaks[0], *held), max(eager), plan


def _best_plan(gm: fx.GraphModule, refused: set[fx.Node], policies: Sequence[Policy]) -> _Planned:
    policies = list(policies)
    best: tuple[int, Plan] | None = None
    limit: int | None = None
    bodies: dict[fx.Node, Body | None] = {}
    made = (node.meta.get("val") for node in gm.graph.nodes)
    kinds = {value.device.type for value in made if isinstance(value, Tensor)}
    if kinds <= fuse.QUICK_LAUNCH:  # nothing is gathered there
        policies = list(dict.fromkeys(replace(policy, gather=False) for policy in policies))
    facts, known = None, None
    while policies:
        asked = frozenset(refused), policies[0].inline, policies[0].again
        if facts is None or facts.changed or known != asked:
            facts, known = Facts(gm, asked[0], bodies, *asked[1:]), asked
        if not facts.computes_again:
            policies = list(dict.fromkeys(replace(p, again=policies[0].again) for p in policies))
        if facts.crowded:
            refused.update(facts.crowded)
            continue
        if limit is None:
            limit = eager_peak(facts) + SLACK
        try:
            # Fresh memory is dear on a CPU.
            peak, plan = plan_with(facts, policies[0], limit if kinds <= {"cpu"} else 0)
        except RefusedError as error:
            refused.add(error.node)
            continue
        policies.pop(0)
        if best is None or peak < best[0]:
            best = peak, plan
        if best[0] <= limit:
            break
    assert best is not None and limit is not None
    return best[0], limit - SLACK, best[1]


def plan_with(facts: Facts, policy: Policy, limit: int = 0) -> tuple[int, Plan]:
    """The plan under one policy, and the most bytes that it holds at once beyond its inputs.

    Dead buffers may wait up to ``limit`` bytes.
    """
    units = Fuser(facts, policy.reach, policy.share, policy.gather, policy.largest).run()
    names = facts.names
    planner = MemoryPlanner(facts, units, names, limit, policy.reuse)
    uses = None if limit else planner.uses()  # ``run`` changes what it is told from
    steps = planner.run()
    if planner.peak > limit:
        uses = uses or MemoryPlanner(facts, units, names, limit, policy.reuse).uses()
        better = lower_peak(facts, uses)
        if better is not None:
            other = MemoryPlanner(facts, better, names, limit, policy.reuse)
            moved = other.run()
            if other.peak <= planner.peak:
                planner, steps = other, moved
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
            value = attribute(facts.gm, node)
            assert isinstance(value, Tensor)
            constants.append((names[node], value))
    return planner.peak, Plan(
        inputs, tuple(constants), tuple(steps), outputs, is_boxed(facts.gm.graph)
    )
