"""Planted faults of every kind are found, their stage is named, and what is written fails alone."""

import pytest
import torch
import torchsmith_fx_backend._src.codegen.c as printer
from torchsmith.__main__ import main
from torchsmith._src.repro.cases import captured
from torchsmith._src.repro.judge import Failure
from torchsmith._src.repro.minify import minify, minify_case
from torchsmith._src.repro.program import fewer_statements, outcome
from torchsmith._src.repro.watch import Watch
from torchsmith.errors import MinifyError
from torchsmith_fx_backend._src.capture import rules
from torchsmith_fx_backend._src.loops import registry
from torchsmith_fx_backend._src.passes import CommonSubexpressions, DeadCode, fold
from torchsmith_fx_backend._src.runtime.launchers import launcher_for
from torchsmith_guards import GuardKind, GuardSet

aten = torch.ops.aten


def calls(graph, op):
    return graph.find_nodes(op="call_function", target=op)


def change_kernels(patch, change):
    """Another C text for the kernels that compute a hyperbolic tangent."""
    right = printer.kernel_function
    forget_kernels()

    def wrong(kernel, name):
        text = right(kernel, name)
        return change(text) if "tanh" in text else text

    patch.setattr(printer, "kernel_function", wrong)


def body_first(statement):
    """A change of a C function: ``statement`` comes first."""
    return lambda text: text.replace("{", "{\n  " + statement, 1)


def add_to_pass(patch, kind, change):
    """A pass that also does ``change(graph)``."""
    right = kind.run

    def run(self, graph):
        right(self, graph)
        change(graph)

    patch.setattr(kind, "run", run)


def forget_kernels():
    """The text of a kernel is kept for as long as the process lives."""
    launcher_for(torch.device("cpu"))._texts.clear()


# Each plants a fault.


def wrong_lowering(patch):
    replace = {"emit": registry.LOWERINGS[aten.sin.default].emit}
    swap(patch, aten.tanh.default, **replace)


def wrong_index(patch):
    swap(patch, aten.roll.default, emit=lambda p: p.at_of(p.node.args[0], p.at))


def swap(patch, op, **changes):
    import dataclasses

    patch.setitem(registry.LOWERINGS, op, dataclasses.replace(registry.LOWERINGS[op], **changes))


def dropped_write(patch):
    def drop(graph):
        for node in calls(graph, aten.copy_.default):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)

    add_to_pass(patch, DeadCode, drop)


def wrong_dtype(patch):
    def widen(mode, x, *args, **kwargs):
        return mode.tensor(
            aten._to_copy.default, right(mode, x, *args, **kwargs), dtype=torch.float64
        )

    right = rules.RULES[aten.silu.default]
    patch.setitem(rules.RULES, aten.silu.default, widen)


def swapped_arguments(patch):
    def change(graph):
        for node in calls(graph, aten.sub.Tensor):
            if isinstance(node.args[1], torch.fx.Node):
                node.args = node.args[::-1]

    add_to_pass(patch, CommonSubexpressions, change)


def pass_that_raises(patch):
    def change(graph):
        if calls(graph, aten.tanh.default):
            raise LookupError(f"no rule for {calls(graph, aten.tanh.default)[0].name}")

    add_to_pass(patch, CommonSubexpressions, change)


def bad_code(patch):
    change_kernels(patch, body_first("this is not C;"))


def crash(patch):
    change_kernels(patch, body_first("*(volatile int *)8 = 1;"))


def hang(patch):
    change_kernels(patch, body_first("for (volatile int forever = 1; forever;) {}"))


def wrong_folding(patch):
    right = fold._compute

    def compute(node):
        number = right(node)
        return number + 1 if node.target is aten.mul.Tensor else number

    patch.setattr(fold, "_compute", compute)


def wrong_gradient(patch):
    def rule(mode, grad, result):
        return mode.tensor(aten.mul.Tensor, grad, result)

    patch.setitem(rules.JOINT_RULES, aten.tanh_backward.default, rule)


def wrong_fusion(patch):
    change_kernels(patch, lambda text: text.replace("ts_sin", "ts_cos"))


X, W = torch.linspace(-2, 2, 12).reshape(3, 4), torch.eye(4) / 2


def around(middle):
    """A program around what is at fault."""

    def program(x, w):
        y = (x @ w).relu() + x
        y = middle((y + w[0]) * 1.5)
        return y.abs().log1p() @ w, y.mean(1)

    return program


def folded(y):
    return y + torch.full((4,), 2.0) * 3


def program_that_writes(x, w):
    y = (x @ w).relu() + 1
    x.mul_(2)
    return y.sum(0) * w[1]


LOWERED = "lowering of aten.tanh.default"
# what is planted, a program that meets it, the stage that is named, what is in the small program
PLANTED = {
    "wrong lowering": (wrong_lowering, around(torch.tanh), LOWERED, "tanh"),
    "wrong index": (
        wrong_index,
        around(lambda y: y.roll(1, 0)),
        "lowering of aten.roll.default",
        "roll",
    ),
    "dropped write": (dropped_write, program_that_writes, "pass dead-code", "mul_"),
    "wrong dtype": (wrong_dtype, around(torch.nn.functional.silu), "decompositions", "silu"),
    "swapped arguments": (
        swapped_arguments,
        around(lambda y: y - y.cos()),
        "pass common-subexpressions",
        " - ",
    ),
    "pass that raises": (
        pass_that_raises,
        around(torch.tanh),
        "pass common-subexpressions",
        "tanh",
    ),
    "bad code": (bad_code, around(torch.tanh), LOWERED, "tanh"),
    "crash": (crash, around(torch.tanh), LOWERED, "tanh"),
    "wrong folding": (wrong_folding, around(folded), "pass fold-constants", "full"),
    "wrong gradient": (
        wrong_gradient,
        lambda x, w: (x @ w).tanh() * 2 + x,
        "decompositions",
        "tanh",
    ),
    "wrong fusion": (wrong_fusion, around(lambda y: y.sin().tanh()), "fusion", "sin"),
}
KINDS = {
    "pass that raises": "compile",
    "bad code": "compile",
    "crash": "crash",
    "wrong dtype": "run",  # a product of two dtypes
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults(name, monkeypatch):
    plant, program, stage, text = PLANTED[name]
    x = X.clone().requires_grad_() if name == "wrong gradient" else X
    case = captured(program, [x, W])
    assert minify_case(case) is None
    plant(monkeypatch)
    found = minify_case(case, limit=20)
    assert found.failure.kind == KINDS.get(name, "accuracy")
    assert found.stage == stage
    assert int(found.size.split()[0]) <= 3, found.text
    assert text in found.text and "log1p" not in found.text
    alone = outcome("small.py", found.text, Watch(), 20)
    assert alone is not None
    assert "ends otherwise" not in found.text
    if name == "crash":
        assert alone.key == found.failure.key == ("crash", "SIGSEGV", "ended by SIGSEGV")
    else:
        said = "BackendError" if found.failure.kind == "compile" else "VerificationError"
        assert alone.error == said
    monkeypatch.undo()
    forget_kernels()
    monkeypatch.setenv("TORCHSMITH_GRAPH_CACHE", "0")
    assert outcome("small.py", found.text, Watch(), 20) is None  # without the fault it is right


def test_a_kernel_that_hangs(monkeypatch):
    hang(monkeypatch)
    case = captured(lambda x: x.tanh(), [X[:, :3]])
    found = minify_case(case, limit=1.5)
    assert found.failure.key == ("hang", "timeout", "not done after # s")


PROGRAM = """
import torch
import torchsmith

MODE = "sine"
UNUSED = [n for n in range(10)]

def helper(x):
    return x + 1

def f(x):
    y = helper(x) * 2
    if MODE == "sine":
        return y.sin()
    return y.cos()

compiled = torchsmith.compile(f)
x = torch.ones(3)
print("unimportant")
assert torch.allclose(compiled(x), f(x))
for unused in UNUSED:
    helper(x)
MODE = "cosine"
assert torch.allclose(compiled(x), f(x)), "wrong"
print("done")
"""


def test_a_missing_guard(monkeypatch, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    with pytest.raises(MinifyError, match="does not fail"):
        minify(path, limit=20)
    right = GuardSet.add

    def add(self, guard):
        if guard.kind is not GuardKind.CONSTANT:
            right(self, guard)

    monkeypatch.setattr(GuardSet, "add", add)
    said = []
    found = minify(path, limit=20, say=said.append)
    assert found.failure == Failure("error", "AssertionError", "wrong")
    assert found.stage == "guards" and any("statements" in line for line in said)
    assert (
        "UNUSED" not in found.text and "print" not in found.text and "MODE = 'cosine'" in found.text
    )
    assert outcome(str(path), found.text, Watch(), 20).key == found.failure.key
    monkeypatch.undo()
    forget_kernels()
    assert outcome(str(path), found.text, Watch(), 20) is None


def test_no_program_is_run_twice():
    """Statements of a function that is left out are left out with it."""
    text = "def f(x):\n    y = x\n    return y\n\ndef g(x):\n    y = x\n    return y\n\nkept = f\n"
    tried = []

    def fails(rest):
        tried.append(rest)
        return "def f" in rest and "kept = f" in rest

    small = fewer_statements(text, fails, lambda told: None, 60)
    assert small == "def f(x):\n    pass\nkept = f\n"
    assert len(tried) == len(set(tried)) > 4


def test_programs_that_are_not_ours_to_mend(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import torch\nimport torchsmith\nraise ValueError('mine')\n")
    with pytest.raises(MinifyError, match="TS-S005.*without being compiled, too.*mine"):
        minify(path, limit=20)
    with pytest.raises(FileNotFoundError):
        minify(tmp_path / "nowhere.py")
    with pytest.raises(MinifyError, match="no graph"):
        minify(tmp_path, limit=20)


def test_programs_and_records(monkeypatch, tmp_path):
    wrong_lowering(monkeypatch)
    path = tmp_path / "program.py"
    path.write_text(
        "import torch, torchsmith\n"
        "f = torchsmith.compile(lambda x: (x * 3).tanh().sum(0) + 1)\n"
        "f(torch.linspace(-2, 2, 18).reshape(6, 3))\n"
    )
    found = minify(path, limit=20)
    assert found.stage == "lowering of aten.tanh.default" and found.size == "1 operator"
    records = tmp_path / "records"
    monkeypatch.setenv("TORCHSMITH_REPRO", str(records))
    assert outcome(str(path), path.read_text(), Watch(str(records), verify=True), 20) is not None
    again = minify(records, limit=20)
    assert again.text == found.text
    (program,) = records.rglob("repro.py")
    assert minify(program, limit=20).text == found.text


def test_a_crash_leaves_a_record(monkeypatch, tmp_path):
    crash(monkeypatch)
    program = (
        "import torch, torchsmith\n"
        "f = torchsmith.compile(lambda x: x.tanh() + 1)\n"
        "f(torch.linspace(-2, 2, 9))\n"
    )
    ended = outcome("program.py", program, Watch(str(tmp_path)), 20)
    assert ended == Failure("crash", "SIGSEGV", "ended by SIGSEGV")
    found = minify(tmp_path, limit=20)
    assert found.failure.kind == "crash" and "tanh" in found.text


def test_graphs_become_small(monkeypatch):
    """Five hundred operators, of which two together are wrong."""

    def program(x, w):
        kept = []
        for step in range(62):
            y = (x @ w + x).relu() * 0.5
            x = (y - y.mean(0)).sigmoid() + x * 0.1
            if step == 40:
                x = x.sin().tanh()
                kept.append(x)
        return x, kept

    wrong_fusion(monkeypatch)
    case = captured(program, [X, W])
    assert len(case.ops) >= 500
    found = minify_case(case, limit=120)
    assert int(found.size.split()[0]) <= 10 and found.stage == "fusion"


def test_the_command(monkeypatch, tmp_path, capsys):
    pass_that_raises(monkeypatch)
    program, small = tmp_path / "program.py", tmp_path / "small.py"
    program.write_text(
        "import torch, torchsmith\n"
        "torchsmith.compile(lambda x: (x * 3).tanh().sum(0) + 1)(torch.ones(3))\n"
    )
    assert main(["minify", str(program), "--out", str(small), "--limit", "20"]) == 0
    said = capsys.readouterr()
    assert "compile failure, StageError" in said.out and "1 operator" in said.out
    assert "stage at fault: pass common-subexpressions" in said.out and "operators" in said.err
    assert outcome("small.py", small.read_text(), Watch(), 20).error == "BackendError"
    program.write_text("import torchsmith\n")
    assert main(["minify", str(program)]) == 1
    assert "TS-S005" in capsys.readouterr().err
    assert main(["minify", str(tmp_path / "nowhere.py")]) == 2


def test_a_backend_of_the_users(tmp_path):
    (tmp_path / "mistakes.py").write_text(
        "import torch\n"
        "def mistaken(gm, inputs):\n"
        "    for node in gm.graph.nodes:\n"
        "        if node.target is torch.exp:\n"
        "            node.target = torch.exp2\n"
        "    gm.recompile()\n"
        "    return gm.forward\n"
    )
    program = tmp_path / "program.py"
    text = (
        "import torch, torchsmith\n{}\n"
        "def f(x):\n    return torch.exp(x * 2).sum(0) + 1\n"
        "torchsmith.compile(f, backend=mistaken)(torch.ones(3))\n"
    )
    program.write_text(text.format("from mistakes import mistaken"))
    found = minify(program, limit=20)
    assert found.stage == "backend mistaken" and found.size == "1 operator"
    assert "from mistakes import mistaken" in found.text and "ends otherwise" not in found.text
    # one that only the program has: statements are taken out of that
    program.write_text(text.format((tmp_path / "mistakes.py").read_text() + "print(1)"))
    found = minify(program, limit=20)
    assert found.failure.error == "VerificationError" and "exp2" in found.text
    assert "print" not in found.text
