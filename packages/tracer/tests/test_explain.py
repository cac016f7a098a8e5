"""``explain`` and the command line."""

import json
import subprocess
import sys

import pytest
import torch
import torchsmith_tracer
from torchsmith_tracer import __main__ as command

PROGRAM = """
import torch


def whole(a, k=2):
    return a.relu() * k


def parts(a):
    b = a + 1
    print("between", flush=True)
    return b * 2


def example_inputs():
    return (torch.ones(3),)
"""


def parts(a):
    b = a + 1
    print("between", flush=True)
    return b * 2


def test_71_report(capsys):
    report = torchsmith_tracer.explain(parts)(torch.ones(3))
    assert (report.graph_count, report.break_count, report.op_count) == (2, 1, 2)
    assert torch.equal(report.result, torch.full((3,), 4.0))
    found = report.breaks[0]
    assert (found.id, found.category.value) == ("TS-T011", "user code")
    assert found.place.line == parts.__code__.co_firstlineno + 2
    assert found.place.excerpt() == 'print("between", flush=True)\n^^^^^^^^^^^^^^^^^^^^^^^^^^^^'
    text = str(report)
    assert "2 graphs, 1 break, 2 ops" in text
    assert "def check(" in text and "Advice:" in text
    data = json.loads(json.dumps(report.to_json()))
    assert data["breaks"][0]["id"] == "TS-T011"
    assert data["frames"][0]["ops"] == 1 and "def check(" in data["frames"][0]["guards"]


def test_kernels_come_from_the_compiled_graph():
    def backend(gm, inputs):
        def run(*args):
            return gm.forward(*args)

        run.kernels = ["fused_add", ("fused_mul", "source of it")]
        return run

    report = torchsmith_tracer.explain(lambda a: a + 1, backend=backend)(torch.ones(2))
    assert [(k.name, k.source) for k in report.kernels] == [
        ("fused_add", ""),
        ("fused_mul", "source of it"),
    ]
    assert "fused_add" in str(report)


def test_explain_of_a_compiled_function_and_module():
    compiled = torchsmith_tracer.compile(lambda a: a + 1)
    assert torchsmith_tracer.explain(compiled)(torch.ones(2)).graph_count == 1
    net = torchsmith_tracer.compile(torch.nn.Linear(2, 2))
    assert torchsmith_tracer.explain(net)(torch.ones(2)).graph_count == 1


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program_for_explain.py"
    path.write_text(PROGRAM)
    return path


def test_command_line(program, capsys):
    assert command.main([f"{program}::whole"]) == 0
    assert "1 graph, 0 breaks" in capsys.readouterr().out
    assert command.main([f"{program}::parts"]) == 1
    assert "TS-T011" in capsys.readouterr().out
    assert command.main([f"{program}::whole", "--arg", "f64[2,3]", "--arg", "5", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["graph_count"] == 1


def test_command_line_usage(program, capsys):
    for target in (str(program), f"{program}::nothing", "no_such_file.py::f"):
        assert command.main([target]) == 2
    assert command.main([f"{program}::whole", "--arg", "f99[2]"]) == 2
    assert command.main([f"{program}::whole", "--backend", "nonesuch"]) == 2
    assert "eager" in capsys.readouterr().err


def test_command_line_as_a_process(program):
    done = subprocess.run(
        [sys.executable, "-m", "torchsmith_tracer", f"{program}::whole", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["break_count"] == 0
