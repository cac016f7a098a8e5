"""The page of ``explain(...)(...).save``: what is in it, and that nothing can break it."""

import importlib.util
import linecache
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
import torchsmith_tracer
from torch import fx
from torchsmith_tracer import __main__ as command
from torchsmith_tracer._src.page import model as page_model
from torchsmith_tracer._src.page.memory import training_memory
from torchsmith_tracer.errors import TracerWarning

sys.path.insert(0, str(Path(__file__).parent))
from reading import Page, states  # noqa: E402


@pytest.fixture
def program(tmp_path):
    """Makes a module of a text; its functions are the user's own."""
    made = []

    def make(text, name="program_of_page"):
        path = tmp_path / f"{name}.py"
        path.write_text(text, "utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        made.append(name)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    yield make
    for name in made:
        sys.modules.pop(name, None)
        linecache.clearcache()


def shown(fn, *args, **options):
    return Page(torchsmith_tracer.explain(fn, **options)(*args).html())


WHOLE = """
import torch

def scaled(x, k):
    # a comment
    y = x * k
    return y.relu()

def whole(x, flag=True):
    n = x.shape[-1]
    if flag:
        h = scaled(x, n)
    else:
        h = x
    return torch.add(
        h,
        1,
    )
"""


def test_structure_and_content(program):
    page = shown(program(WHOLE).whole, torch.ones(2, 3))
    assert page.errors == []
    assert len(set(page.ids)) == len(page.ids)
    names = [tag for tag, _ in page.tags]
    for wanted in ("main", "h1", "header", "footer", "noscript", "dialog", "title"):
        assert wanted in names, wanted
    # One file: nothing is fetched, whatever the attribute.
    for _, attributes in page.tags:
        for key in ("src", "href", "action"):
            assert not attributes.get(key, "").startswith(("http", "//", "file")), attributes
    for tag, attributes in page.tags:
        for key in ("aria-labelledby",):
            assert attributes.get(key, page.ids[0]) in page.ids
    assert dict(page.tags[0][1])["lang"] == "en"
    data = page.data
    assert data["function"] == "whole" and data["problems"] == []
    (piece,) = data["pieces"]
    assert [row[1] for row in piece["nodes"]] == ["mul", ".relu", "torch.add"]
    assert [row[2] for row in piece["nodes"]] == ["f32[2, 3]"] * 3
    assert data["stacks"][piece["nodes"][0][3]] == [[0, 12], [0, 6]]
    assert any(g[0] == "flag" and g[2] == "True" for g in piece["guards"])
    assert all(g[5] > 0 for g in piece["guards"])
    assert data["phases"][0]["function"] == "whole" and data["phases"][0]["seconds"] > 0
    assert "def forward" in page.text["pre"]  # for browsers without scripts


LINES = {
    "captured, folded, missed": (
        WHOLE,
        "whole",
        {
            6: "captured",
            7: "captured",
            10: "folded",
            11: "folded",
            12: "captured",
            14: "missed",
            15: "captured",
            16: "captured",
            17: "captured",
        },
    ),
    "broken": (
        """
def broken(x):
    y = x + 1
    print("now",
          flush=True)
    z = 3
    return y * z
""",
        "broken",
        {3: "captured", 4: "broken", 5: "broken", 6: "folded", 7: "captured"},
    ),
    "eager from its start": (
        """
def eager(x):
    y = x + 1
    if x.sum() > 100:
        y = y * 2
    for n in range(2):
        try:
            print(n, flush=True)
        finally:
            y = y + n
    yield y
""",
        "eager",
        {3: "eager", 4: "eager", 5: "eager", 11: "eager"},
    ),
    "raises": (
        """
def raises(x, fail=True):
    y = x + 1
    if fail:
        raise KeyError("no")
    return y
""",
        "raises",
        {3: "captured", 5: "folded"},
    ),
    "a lambda and a comprehension": (
        """
twice = lambda x: x * 2
def listed(x):
    parts = [twice(p) for p in x.unbind()]
    return sum(parts)
""",
        "listed",
        {2: "captured", 4: "captured", 5: "captured"},
    ),
    "a loop of one line": (
        """
def short(x): return x + 1
def calls(x):
    for _ in range(3): x = short(x)
    return x
""",
        "calls",
        {2: "captured", 4: "captured"},
    ),
}


@pytest.mark.parametrize("case", LINES)
def test_what_became_of_each_line(program, case):
    text, name, wanted = LINES[case]
    fn = getattr(program(text), name)

    def run(x):
        try:
            return fn(x)
        except KeyError:
            return None

    if case == "raises":
        log = torchsmith_tracer.compile(fn)
        with pytest.raises(KeyError):
            log(torch.ones(2))
        report = torchsmith_tracer.explain(run)(torch.ones(2))
    else:
        report = torchsmith_tracer.explain(fn)(torch.ones(2))
    found = states(Page(report.html()).data, "program_of_page.py")
    assert {line: found.get(line) for line in wanted} == wanted


def test_a_break_stands_at_its_line_with_its_span_and_advice(program):
    page = shown(program(LINES["broken"][0]).broken, torch.ones(2))
    first, second = page.data["pieces"]
    assert first["break"]["id"] == "TS-T011" and first["break"]["advice"]
    assert first["break"]["at"] == [0, 4] and first["break"]["columns"] == [0, 12]
    assert second["break"] is None and second["at"][1] == 4


def test_recompiles_stand_at_the_line_that_needs_the_value(program):
    module = program(
        """
def inner(x, n):
    m = 3
    return x * (n + m)
"""
    )
    compiled = torchsmith_tracer.compile(module.inner, options={"specialize_int": True})
    log = compiled._torchsmith_region.log
    log.detailed = True
    for n in (1, 2):
        compiled(torch.ones(2), n)
    frames, notes = tuple(log.frames), tuple(log.recompiles)
    page = Page(torchsmith_tracer.Explanation("inner", frames, notes, None).html())
    (note,) = page.data["recompiles"]
    assert (note["function"], note["at"]) == ("inner", [0, 4])
    assert note["reasons"][0]["what"] == "n was 1, is 2" and note["reasons"][0]["hint"]


def test_memory_of_eager_counts_bytes_by_last_use_and_shares_views(program):
    text = """
def f(x):
    a = x + 1
    b = a.view(-1)
    c = b * 2
    d = c.sum()
    return d + x
"""
    (piece,) = shown(program(text).f, torch.ones(4, 25)).data["pieces"]
    assert piece["memory"]["live"] == [
        ["add", 400],
        ["view", 400],
        ["mul", 800],
        ["sum_1", 404],
        ["add_1", 404],
    ]
    assert piece["memory"]["peak"] == 800 and piece["memory"]["floor"] is False
    assert piece["inputs"] == [["x", "f32[4, 25]", 400]]


NASTY = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "%%DATA%% %%SCRIPT%% %%",
    "]]> & &amp; \" ' ` ${x}",
    "\u2028\u2029\x00\x1b[31m",
    "ünïcödé 🔥 \ud800",
]


@pytest.mark.parametrize("number", range(len(NASTY)))
def test_nothing_that_the_program_says_is_markup(program, number):
    nasty = NASTY[number]

    def f(x, name):
        # </script><script>alert("in the source")</script> %%TEXT%%
        return x + len(name)

    page = shown(f, torch.ones(2), nasty)
    assert page.errors == []
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert len(page.scripts) == 2 and "alert(" not in page.scripts[1]
    expected = [g[2] for g in page.data["pieces"][0]["guards"] if g[0] == "name"]
    assert expected == [nasty]


def test_names_with_markup():
    def f(x):
        return x + 1

    f.__qualname__ = "f</script><b>"
    f.__code__ = f.__code__.replace(co_qualname="g</title><i>", co_name="h<u>")
    page = shown(f, torch.ones(2))
    assert page.errors == []
    assert page.data["function"] == "f</script><b>"
    assert not {"b", "i", "u"} & {tag for tag, _ in page.tags}


def _typed(source, filename):
    space = {"torch": torch}
    exec(compile(source, filename, "exec"), space)
    return space["f"]


def _gone(tmp_path):
    path = tmp_path / "gone.py"
    fn = _typed("def f(x):\n    return x + 1\n", str(path))
    return fn, "The file is not there any more."


def _binary(tmp_path):
    path = tmp_path / "binary.py"
    path.write_bytes(bytes(range(256)) * 4)
    fn = _typed("def f(x):\n    return x + 1\n", str(path))
    return fn, "The file cannot be read as Python source."


def _repl(tmp_path):
    fn = _typed("def f(x):\n    return x + 1\n", "<stdin>")
    return fn, "This code was typed or generated; Python keeps no source of it."


def _shorter(tmp_path):
    path = tmp_path / "shorter.py"
    fn = _typed("\n" * 50 + "def f(x):\n    return x + 1\n", str(path))
    path.write_text("x = 1\n")
    return fn, ""


@pytest.mark.parametrize("make", [_gone, _binary, _repl, _shorter])
def test_source_that_is_not_there(tmp_path, make):
    fn, problem = make(tmp_path)
    page = shown(fn, torch.ones(2))
    assert page.errors == []
    (file,) = page.data["files"]
    assert file["problem"] == problem
    assert "captured" in file["states"].values()


def test_sources_of_other_encodings_and_very_long_lines(tmp_path):
    path = tmp_path / "latin.py"
    text = "# -*- coding: latin-1 -*-\n# gr\xf6\xdfe\ndef f(x):\n    return -x  # " + "\xe9" * 9000
    path.write_bytes(text.encode("latin-1"))
    fn = _typed(path.read_bytes(), str(path))
    (file,) = shown(fn, torch.ones(2)).data["files"]
    lines = file["spans"][0]["lines"]
    assert "\xe9" in lines[1] and len(lines[1]) < 500


def test_code_of_libraries_is_folded_away():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    page = shown(net, torch.ones(2, 3))
    assert page.data["files"] == []
    (piece,) = page.data["pieces"]
    assert piece["function"] == "Sequential" and piece["ops"] == 2 and piece["at"][0] == -1


def test_a_thousand_operators_make_a_page_of_bounded_size():
    def deep(x):
        for n in range(500):
            x = torch.sin(x) + n
        return x

    text = torchsmith_tracer.explain(deep)(torch.ones(4)).html()
    assert len(text.encode()) <= 3_000_000
    page = Page(text)
    assert page.errors == []
    assert len(page.data["pieces"][0]["nodes"]) == 1_000


def test_generated_code_is_left_out_when_it_gets_too_long():
    def backend(gm, inputs):
        def run(*args):
            return gm.forward(*args)

        run.kernels = [(f"k{n}", "x" * 400_000) for n in range(8)]
        return run

    text = torchsmith_tracer.explain(lambda x: x + 1, backend=backend)(torch.ones(2)).html()
    assert len(text) < 1_500_000
    kernels = Page(text).data["pieces"][0]["schedules"][0]["kernels"]
    assert kernels[0]["source"] == "x" * 400_000
    assert kernels[-1]["source"].startswith("(left out: 400,000 characters")


def test_a_backend_may_say_what_it_runs():
    step = {"label": "add", "kernel": 0, "nodes": ["add"], "bytes": 16, "flops": 2, "live": 8}
    said = {"name": "inference", "device": "cpu", "peak": 8, "steps": [step]}
    said["kernels"] = [{"name": "k</script>", "language": "C", "source": "<x>"}]

    def backend(gm, inputs):
        def run(*args):
            return gm.forward(*args)

        run.schedules = lambda: [said]
        return run

    page = shown(lambda x: x + 1, torch.ones(2), backend=backend)
    assert page.errors == []
    (found,) = page.data["pieces"][0]["schedules"]
    assert found["steps"] == [step] and found["kernels"] == said["kernels"]


HALVES = {  # bytes held at the end of the forward half, and the most in either half
    # Eager saves the result of tanh; its backward makes the gradient of that, then that of x.
    "saves a result": ("x.tanh() * 3", 800, 800, 800),
    "saves nothing": ("x * 3", 400, 400, 400),
    "drops what is not saved": ("(x * 3).cos() * 2 + 1", 1200, 1200, 1600),
    "a view is no memory": ("(x * 3).view(-1).t()", 400, 400, 400),
}


@pytest.mark.parametrize("case", HALVES)
def test_memory_of_eager_for_each_half_has_what_autograd_saves(case, program):
    expression, *expected = HALVES[case]
    graph = fx.symbolic_trace(program(f"def f(x):\n    return {expression}\n").f)
    x = torch.empty(100, requires_grad=True)
    for node in graph.graph.find_nodes(op="placeholder"):
        node.meta["example_value"] = x
    forward, backward = training_memory(graph).values()
    assert [forward["live"][-1], forward["peak"], backward["peak"]] == expected
    assert x.grad is None


def test_a_graph_that_does_not_run_has_no_halves():
    graph = fx.symbolic_trace(lambda x: x @ x.new_ones(7))
    for node in graph.graph.find_nodes(op="placeholder"):
        node.meta["example_value"] = torch.ones(2, requires_grad=True)
    assert training_memory(graph) is None


def test_halves_of_large_graphs_are_left_out_and_torchs_compiler_stays_out(program):
    """Tensors of the device "meta" would import ``torch._dynamo``."""
    text = """
import sys, torch
from torch import fx
from torchsmith_tracer._src.page.memory import MOST_NODES, training_memory

def graph(count):
    made = fx.Graph()
    node = made.placeholder("x")
    node.meta["example_value"] = torch.ones(4, requires_grad=True)
    for _ in range(count):
        node = made.call_method("mean", (made.call_method("expand", (node, 3, -1)), 0, True))
    made.output(node)
    return fx.GraphModule({}, made)

assert training_memory(graph(2)) is not None
assert training_memory(graph(MOST_NODES)) is None
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=300)


def test_the_page_of_a_training_graph_has_both_halves_and_a_trace_neither(program):
    f = program("def f(x, w):\n    return (x @ w).tanh().sum()\n").f
    report = torchsmith_tracer.explain(f)(torch.ones(4, 5), torch.ones(5, 5, requires_grad=True))
    (piece,) = Page(report.html()).data["pieces"]
    assert list(piece["memory"]["halves"]) == ["forward", "backward"]
    assert piece["memory"]["halves"]["backward"]["peak"] >= 100  # the gradient of w, at least
    (piece,) = page_model.model("f", report.frames, replay=False)["pieces"]
    assert "halves" not in piece["memory"]


class _Profile:
    """What a profiler on a GPU tells: microseconds in all, and how many launches."""

    def key_averages(self):
        def event(key, total, count):
            return types.SimpleNamespace(key=key, device_time_total=total, count=count)

        return [event("k1", 30.0, 3), event("never", 0.0, 4), event("k3", 7.0, 1)]


def test_times_come_from_a_profile_and_from_nowhere_else():
    def backend(gm, inputs):
        def run(*args):
            return gm.forward(*args)

        run.kernels = [("k1", ""), ("k2", ""), ("never", "")]
        return run

    report = torchsmith_tracer.explain(lambda x: x + 1, backend=backend)(torch.ones(2))
    for profile, seconds in ((None, [None] * 3), (_Profile(), [1e-5, None, None])):
        (piece,) = Page(report.html(profile)).data["pieces"]
        kernels = piece["schedules"][0]["kernels"]
        assert [k.get("seconds") for k in kernels] == [pytest.approx(s) for s in seconds]


def _failing_backend(gm, inputs):
    def run(*args):
        return gm.forward(*args)

    run.schedules = lambda: 1 / 0
    return run


def _raise(*args):
    raise RuntimeError("planted")


@pytest.mark.parametrize("part", ["memory", "schedule", "guards", "lines", "nodes"])
def test_a_part_that_fails_is_one_warning_and_loses_nothing_else(part, monkeypatch):
    monkeypatch.delenv("TORCHSMITH_STRICT", raising=False)
    backend = "eager"
    if part == "memory":
        monkeypatch.setattr(page_model, "eager_memory", _raise)
    elif part == "guards":
        monkeypatch.setattr(page_model, "estimated_ns", _raise)
    elif part == "lines":
        monkeypatch.setattr(page_model.Sources, "traced", _raise)
    elif part == "nodes":
        monkeypatch.setattr(page_model, "operator_name", _raise)
    else:
        backend = _failing_backend
    report = torchsmith_tracer.explain(lambda x: (x + 1) * 2, backend=backend)(torch.ones(2))
    assert torch.equal(report.result, torch.full((2,), 4.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        page = Page(report.html())
    assert [w.category for w in caught] == [TracerWarning]
    assert "TS-T909" in str(caught[0].message)
    assert page.errors == [] and page.data["problems"]
    (piece,) = page.data["pieces"]
    assert piece["ops"] == 2 and "def forward" in piece["code"]


def test_a_place_that_cannot_be_written_is_one_warning(tmp_path):
    report = torchsmith_tracer.explain(lambda x: x + 1)(torch.ones(2))
    for path in (tmp_path / "no folder" / "page.html", tmp_path):
        with pytest.warns(TracerWarning, match="TS-T909"):
            assert report.save(path) is False
    assert report.save(tmp_path / "page.html") is True
    assert Page((tmp_path / "page.html").read_text("utf-8")).data["function"]


def test_only_explain_keeps_details():
    compiled = torchsmith_tracer.compile(lambda x: x + 1)
    compiled(torch.ones(2))
    (frame,) = compiled._torchsmith_region.log.frames
    assert frame.details is None


def test_symbolic_sizes_and_sizes_of_data():
    (piece,) = shown(lambda x: x.view(-1) + 1, torch.ones(4, 25), dynamic=True).data["pieces"]
    assert piece["memory"]["peak"] == 400 and "s0" in piece["nodes"][0][2]

    def picked(x):
        return x.nonzero() + 1

    options = {"capture_dynamic_output_shape_ops": True}
    (piece,) = shown(picked, torch.ones(4), options=options).data["pieces"]
    assert piece["memory"] is None and len(piece["nodes"]) >= 2


def test_command_line(program, tmp_path, capsys):
    text = WHOLE + "\ndef example_inputs():\n    return (torch.ones(2, 3),)\n"
    module = program(text)
    out = tmp_path / "out.html"
    assert command.main([f"{module.__file__}::whole", "--html", str(out)]) == 0
    assert "1 graph, 0 breaks" in capsys.readouterr().out
    assert Page(out.read_text("utf-8")).data["function"] == "whole"
    with pytest.warns(TracerWarning, match="TS-T909"):
        assert command.main([f"{module.__file__}::whole", "--html", str(tmp_path)]) == 1
