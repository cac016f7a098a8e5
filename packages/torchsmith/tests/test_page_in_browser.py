"""The report's page in a real browser: what it draws, its keys, and pictures of it.

Runs where a Chromium is found. ``TORCHSMITH_SCREENSHOTS=folder`` keeps the pictures.
"""

import html
import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import torch
import torchsmith
from torch import nn
from torchsmith_tracer import trace_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser found: {', '.join(NAMES)}")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        h = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(h)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(2))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return x


def small(x, w, flag=True):
    n = x.shape[-1]
    h = nn.functional.layer_norm(x, (n,)) if flag else x
    total = float(h.sum())
    h = h @ w
    return torch.softmax(h + total, -1)


def loss(x, w):
    y = torch.tanh(x @ w)
    return y.square().mean()


def deep(x, w):
    for n in range(125):
        y = x @ w
        x = x + torch.tanh(y - y.mean(-1, keepdim=True)) * n + y.sigmoid()
    return x


def _small():
    return torchsmith.explain(small)(torch.ones(8, 16), torch.ones(16, 16))


def _model():
    model = Model().eval().requires_grad_(False)
    return torchsmith.explain(model)(torch.zeros(2, 4, dtype=torch.int64))


def _training():
    report = torchsmith.explain(loss)(torch.ones(4, 8), torch.ones(8, 8, requires_grad=True))
    report.result.backward()
    return report


def _deep():
    return torchsmith.explain(deep)(torch.ones(4, 8), torch.ones(8, 8))


PROGRAMS = {"small": _small, "model": _model, "training": _training, "deep": _deep}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of each program, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("pages")
    made = {}

    def page(name):
        if name not in made:
            made[name] = folder / f"{name}.html"
            assert PROGRAMS[name]().save(made[name]) is True
        return made[name]

    return page


def browse(page, tmp_path, *arguments, query=""):
    """What the browser prints, without what it says of itself; console errors are failures."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr"]
    command += ["--virtual-time-budget=2000", *arguments, f"{page.as_uri()}{query}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    errors = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    assert errors == []
    return done.stdout


def acted(page, tmp_path, script, *arguments):
    """What ``script``, the body of a function that is run within the page, returns."""
    copy = tmp_path / "acted.html"
    helpers = (
        "const key = (k) => (document.activeElement || document.body).dispatchEvent("
        "new KeyboardEvent('keydown', {key: k, bubbles: true}));"
        "const all = (q) => [...document.querySelectorAll(q)];"
    )
    addition = (
        "<pre id='seen'></pre><script>document.getElementById('seen').textContent ="
        f"JSON.stringify((() => {{ {helpers} {script} }})())</script></body>"
    )
    text = page.read_text("utf-8")
    copy.write_text(text.replace("</body>", addition), "utf-8")
    out = browse(copy, tmp_path, "--dump-dom", *arguments)
    return json.loads(html.unescape(re.search("<pre id=.seen.>(.*?)</pre>", out, re.S)[1]))


def test_an_error_on_the_page_is_noticed(pages, tmp_path):
    with pytest.raises(AssertionError, match="planted"):
        acted(pages("small"), tmp_path, "setTimeout(() => { throw Error('planted') }); return 1")


WIDTHS = {"wide": 1400, "tablet": 900, "phone": 500}


LOOKS = [
    ("small", "wide", "light"),
    ("small", "phone", "dark"),
    ("model", "wide", "dark"),
    ("training", "tablet", "light"),
    ("deep", "wide", "light"),
]


@pytest.mark.parametrize("name, width, theme", LOOKS)
def test_pictures(name, width, theme, pages, tmp_path):
    folder = Path(os.environ.get("TORCHSMITH_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / f"{name}-{width}-{theme}.png"
    size = f"--window-size={WIDTHS[width]},1400"
    browse(pages(name), tmp_path, size, f"--screenshot={picture}", query=f"?theme={theme}")
    data = picture.read_bytes()
    assert data[:4] == b"\x89PNG"
    assert struct.unpack(">II", data[16:24]) == (WIDTHS[width], 1400)
    assert len(data) > 20_000  # an empty page is far smaller


def test_every_kind_of_line_and_each_panel_is_drawn(pages, tmp_path):
    seen = acted(
        pages("small"),
        tmp_path,
        """return {
            title: document.getElementById("title").textContent,
            verdict: document.getElementById("verdict").textContent,
            states: [...new Set(all(".line[role]").map((r) => r.classList[2]))],
            nodes: all(".node").length, steps: all(".step").length,
            callout: all(".callout").map((c) => c.textContent),
            charts: all("svg.chart").map((c) => c.getAttribute("aria-label")),
            guards: all("#guards tbody tr").length,
            shown: all("main > section").filter((s) => !s.hidden).map((s) => s.id),
            sideways: document.documentElement.scrollWidth - innerWidth,
        }""",
    )
    assert seen["title"] == "small"
    assert "2 graphs, split by 1 break" in seen["verdict"]
    assert set(seen["states"]) >= {"captured", "folded", "broken"}
    assert seen["nodes"] == 5 and seen["steps"] >= 3
    assert "TS-T013" in seen["callout"][0] and "What to do" in seen["callout"][0]
    assert len(seen["charts"]) == 2 and "Eager" in seen["charts"][0]
    assert seen["guards"] > 5
    assert seen["shown"] == ["explore", "timeline", "memory", "work", "guards", "code"]
    assert seen["sideways"] <= 0


def test_a_line_leads_to_its_operators_and_kernels_and_back(pages, tmp_path):
    seen = acted(
        pages("model"),
        tmp_path,
        """
        const count = (q) => all(q + " .row.linked, " + q + " .row.near").length;
        const lines = all(".line.captured");
        const line = lines.find((r) => r.textContent.includes("gelu("));
        line.click();
        const out = {nodes: count("#graph"), steps: count("#runs"),
                     pressed: line.getAttribute("aria-pressed"),
                     status: document.getElementById("status").textContent};
        key("Escape");
        out.left = all(".linked").length;
        all("#runs .row").at(-1).click();
        out.back = all("#source .row.linked").map((r) => r.textContent);
        return out;
        """,
    )
    assert seen["nodes"] == 6 and seen["steps"] >= 4
    assert seen["pressed"] == "true" and seen["left"] == 0
    assert "captured in a graph" in seen["status"] and "runs as K" in seen["status"]
    assert any("self.down(h)" in text for text in seen["back"])


def test_keys(pages, tmp_path):
    seen = acted(
        pages("small"),
        tmp_path,
        """
        const now = () => document.activeElement.getAttribute("aria-label") || "";
        const out = {stops: all(".panel .row[tabindex='0']").length};
        document.querySelector("#source .row[tabindex='0']").focus();
        out.first = now(); key("ArrowDown"); out.second = now(); key("k"); out.third = now();
        key("n"); out.broken = now(); key("Escape");
        key("Enter"); out.kept = all("[aria-pressed='true']").length;
        key("ArrowRight"); out.panel = document.activeElement.closest(".body").id;
        key("ArrowRight"); key("o"); out.opened = all("#runs details[open]").length;
        const before = document.documentElement.dataset.theme || "";
        key("t"); out.theme = [before, document.documentElement.dataset.theme];
        key("g"); out.filter = document.activeElement.id;
        document.activeElement.value = "no such guard";
        document.activeElement.dispatchEvent(new Event("input"));
        out.none = all("#guards tbody tr").length;
        key("Escape"); key("?"); out.help = document.getElementById("help").open;
        return out;
        """,
    )
    assert seen["stops"] == 3
    assert seen["first"] == seen["third"] != seen["second"]
    assert "breaks the graph" in seen["broken"]
    assert (seen["kept"], seen["panel"], seen["opened"]) == (1, "graph", 1)
    assert seen["theme"][1] in ("light", "dark") and seen["theme"][0] != seen["theme"][1]
    assert (seen["filter"], seen["none"], seen["help"]) == ("guard-filter", 0, True)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast(theme, pages, tmp_path):
    """At least 4.5 to 1 between each text and what is behind it, as WCAG AA asks for."""
    script = """
        document.documentElement.dataset.theme = "THEME";
        const parse = (c) => (c.match(/[0-9.]+/g) || []).map(Number);
        const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 :
            ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const behind = (e) => { for (; e; e = e.parentElement) {
            const c = parse(getComputedStyle(e).backgroundColor);
            if (c.length === 3 || c[3] === 1) return c.slice(0, 3); } return [255, 255, 255]; };
        const bad = new Set();
        for (const e of all("body *")) {
            const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
            if (!own || !e.checkVisibility() || e.closest("noscript, script, style, svg, dialog"))
                continue;
            let shade = 1; for (let p = e; p; p = p.parentElement)
                shade *= getComputedStyle(p).opacity;
            const back = behind(e), mixed = parse(getComputedStyle(e).color).slice(0, 3)
                .map((v, i) => v * shade + back[i] * (1 - shade));
            const [a, b] = [light(mixed), light(back)].sort((x, y) => y - x);
            if ((a + 0.05) / (b + 0.05) < 4.5)
                bad.add(`${e.className || e.tagName}: ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
        }
        return [...bad];
    """
    assert acted(pages("small"), tmp_path, script.replace("THEME", theme)) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_sticks_out_of_the_window(width, pages, tmp_path):
    script = "return [innerWidth, document.documentElement.scrollWidth - innerWidth]"
    size = f"--window-size={WIDTHS[width]},900"
    inner, over = acted(pages("model"), tmp_path, script, size)
    assert inner == WIDTHS[width] and over <= 0


def _gpu_backend(gm, inputs):
    """Says what a backend on a GPU would; there is none where tests run."""

    def run(*args):
        return gm.forward(*args)

    roof = {"bandwidth": 4.8e12, "flops": 6e13, "basis": "The roof of a test."}
    sizes = [(1 << 20, 1 << 18, 4e-7), (1 << 24, 1 << 28, 9e-6), (1 << 22, 1 << 20, None)]
    kernels = [
        {"name": f"k{n}", "language": "Triton", "source": "pass", "seconds": time}
        for n, (*_, time) in enumerate(sizes)
    ]
    steps = [
        {"label": "add", "kernel": n, "nodes": ["add"], "bytes": b, "flops": f, "live": b}
        for n, (b, f, _) in enumerate(sizes)
    ]
    said = {"name": "inference", "device": "cuda:0", "peak": 1 << 24, "roof": roof}
    run.schedules = lambda: [{**said, "kernels": kernels, "steps": steps}]
    return run


def test_a_roofline_draws_what_was_measured_apart_from_what_was_not(tmp_path):
    page = tmp_path / "gpu.html"
    assert torchsmith.explain(lambda x: x + 1, backend=_gpu_backend)(torch.ones(2)).save(page)
    script = """
        const box = document.querySelector("#work svg").viewBox.baseVal;
        const dots = (kind) => all("#work circle." + kind).map((c) => [c.cx, c.cy].map((v) =>
            v.baseVal.value));
        return {measured: dots("dot"), bounds: dots("hollow"), size: [box.width, box.height],
                note: document.querySelector("#work figcaption").textContent,
                head: all("#work th").map((t) => t.textContent)};
    """
    seen = acted(page, tmp_path, script)
    assert len(seen["measured"]) == 2 and len(seen["bounds"]) == 1
    for x, y in seen["measured"] + seen["bounds"]:
        assert 0 < x < seen["size"][0] and 0 < y < seen["size"][1]
    assert "The roof of a test." in seen["note"] and "Hollow: not measured" in seen["note"]
    assert seen["head"][-1] == "Measured"
    folder = os.environ.get("TORCHSMITH_SCREENSHOTS")
    if folder:
        size = "--window-size=1200,1500"
        browse(page, tmp_path, size, f"--screenshot={Path(folder) / 'gpu-wide-light.png'}")


def test_a_thousand_operators(pages, tmp_path):
    page = pages("deep")
    assert page.stat().st_size <= 3_000_000
    seen = acted(
        page,
        tmp_path,
        "return [all('.node').length, all('#graph .tag').filter((t) => t.textContent).length]",
    )
    assert seen[0] >= 1_000 and seen[1] >= 990


def test_reasons_of_recompiles_are_said_once(tmp_path, monkeypatch):
    def fn(x, mode, n):
        return x * n if mode == "a" else x + n

    monkeypatch.setenv("TORCHSMITH_TRACE", str(tmp_path / "trace"))
    compiled = torchsmith.compile(fn)
    for mode, rows in (("a", 2), ("b", 2), ("c", 2), ("c", 3)):
        compiled(torch.ones(rows, 2), mode, 2.5)
    page = tmp_path / "page.html"
    assert trace_page(tmp_path / "trace", page)
    script = """
        const texts = (s) => [...document.querySelectorAll(s)].map((x) => x.textContent);
        return { notes: texts(".callout.recompile"),
                 changed: texts("#recompiles td:nth-child(3) code"),
                 times: texts("#recompiles td:nth-child(2)"), where: texts("#timeline .aside"),
                 runs: texts("#runs .group") };
    """
    seen = acted(page, tmp_path, script)
    (at_mode, *_) = [note for note in seen["notes"] if "mode was" in note]
    assert at_mode.startswith("Recompiled 3 times") and at_mode.count("each distinct constant") == 1
    changed = ["mode was a, is b", "mode was a, is c", "mode was b, is c"]
    assert {*changed} <= {*seen["changed"]}
    assert len(seen["changed"]) == len(set(seen["changed"])) and seen["times"][0] == "3"
    assert len(seen["where"]) == 4 and all("test_page_in_browser.py:" in x for x in seen["where"])
    assert len(seen["runs"]) == 4 and all("test_page_in_browser.py:" in x for x in seen["runs"])
