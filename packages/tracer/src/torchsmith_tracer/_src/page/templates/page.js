"use strict";
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const MARKS = { captured: "●", folded: "○", eager: "▲", broken: "✕", missed: "–" };
  const MEANING = {
    captured: "captured in a graph",
    folded: "done while tracing, free at run time",
    eager: "runs eagerly",
    broken: "breaks the graph",
    missed: "not reached",
  };

  // ------------------------------------------------------------------------------ small helpers
  // Everything that the program supplies goes in as text, never as markup.
  function h(tag, props, ...children) {
    const e = document.createElement(tag);
    for (const [key, value] of Object.entries(props || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key === "class") e.className = value;
      else if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
      else if (key === "style") for (const [k, v] of Object.entries(value)) e.style.setProperty(k, v);
      else e.setAttribute(key, value === true ? "" : value);
    }
    e.append(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== ""));
    return e;
  }
  function s(tag, props, ...children) {
    const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(props || {})) e.setAttribute(key, value);
    e.append(...children);
    return e;
  }
  // Long names may be broken after their separators.
  const soft = (text) => text.split(/(?<=[_.])(?=.)/).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
  // A function that was made in another one goes by its own name; the whole is in the title.
  const brief = (name) => name.split(".<locals>.").pop();
  const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
  function scaled(value, units, base) {
    let unit = 0;
    while (unit < units.length - 1 && Math.abs(value) >= base) { value /= base; unit += 1; }
    const digits = value >= 100 || (unit === 0 && Number.isInteger(value)) ? 0 : value >= 10 ? 1 : 2;
    return `${value.toFixed(digits)} ${units[unit]}`;
  }
  const bytes = (n) => scaled(n, ["B", "kB", "MB", "GB", "TB"], 1000);
  const flops = (n) => scaled(n, ["flop", "kflop", "Mflop", "Gflop", "Tflop"], 1000);
  const seconds = (t) => scaled(t * 1e9, ["ns", "µs", "ms", "s"], 1000);
  const known = (x) => x !== null && x !== undefined;
  const short = (path) => path.replace(/\\/g, "/").split("/").pop();
  const at = (place) => (place && place[0] >= 0 ? `${D.files[place[0]].name}:${place[1]}` : "");

  // --------------------------------------------------------------------------------- what links
  let numbered = 0;
  const nodes = [], steps = [], nodesAt = new Map(), byName = D.pieces.map(() => new Map());
  D.pieces.forEach((piece, p) => {
    piece.nodes.forEach(([name, op, form, stack, module]) => {
      const node = { id: nodes.length, p, name, op, form, module, lines: [], own: null, steps: [] };
      for (const [file, line] of stack >= 0 ? D.stacks[stack] : []) {
        node.own = `${file}:${line}`;
        node.lines.push(node.own);
        if (!nodesAt.has(node.own)) nodesAt.set(node.own, new Set());
        nodesAt.get(node.own).add(node);
      }
      byName[p].set(name, node);
      nodes.push(node);
    });
    piece.schedules.forEach((schedule) => {
      const tags = new Map();
      schedule.steps.forEach((step) => {
        const made = { ...step, id: steps.length, p, schedule, members: [] };
        if (known(step.kernel)) {
          if (!tags.has(step.kernel)) tags.set(step.kernel, `K${(numbered += 1)}`);
          made.tag = tags.get(step.kernel);
        }
        for (const name of step.nodes) {
          const node = byName[p].get(name);
          if (node) { made.members.push(node); node.steps.push(made); }
        }
        steps.push(made);
      });
    });
  });
  const breaks = D.pieces.map((p) => p.break).filter(Boolean)
    .filter((b, i, all) => all.findIndex((o) => o.id === b.id && o.where === b.where) === i);

  // What eager holds where one schedule of a piece runs: its half, where autograd keeps values.
  const eagerOf = (piece, schedule) => {
    const eager = piece.memory && piece.memory.peak > 0 ? piece.memory : null;
    return eager && eager.halves && eager.halves[schedule.name] ? eager.halves[schedule.name] : piece.schedules.length === 1 ? eager : null;
  };

  // ------------------------------------------------------------------------------------- header
  const graphs = D.pieces.filter((p) => p.state === "compiled");
  const eager = D.pieces.filter((p) => p.state === "eager");
  const operators = D.pieces.reduce((n, p) => n + p.ops, 0);
  const launches = steps.filter((step) => known(step.kernel)).length;
  const calls = steps.length - launches;
  const kernels = D.pieces.reduce((n, p) => n + p.schedules.reduce((m, x) => m + x.kernels.length, 0), 0);
  const guards = D.pieces.reduce((n, p) => n + p.guards.length + (p.guards_left_out || 0), 0);
  $("title").textContent = brief(D.function);
  $("title").title = D.function;
  {
    const words = [];
    if (graphs.length === 1 && !breaks.length && !eager.length) words.push("Captured whole, in one graph.");
    else if (graphs.length) words.push(`Captured in ${plural(graphs.length, "graph")}${breaks.length ? `, split by ${plural(breaks.length, "break")}` : ""}.`);
    else words.push("Nothing was compiled.");
    if (eager.length) words.push(`${plural(eager.length, "piece")} ${eager.length === 1 ? "runs" : "run"} eagerly.`);
    if (steps.length) words.push(`${plural(operators, "operator")} became ${plural(launches, "kernel launch").replace("launchs", "launches")}${calls ? ` and ${plural(calls, "library call")}` : ""}.`);
    $("verdict").textContent = words.join(" ");
    const one = (n, word) => (n === 1 ? word : `${word}s`);
    const facts = [[one(graphs.length, "graph"), graphs.length], [one(breaks.length, "break"), breaks.length, breaks.length ? "broken" : ""], [one(operators, "operator"), operators]];
    if (kernels) facts.push([`distinct ${one(kernels, "kernel")}`, kernels]);
    const cost = D.pieces.reduce((n, p) => n + (p.guard_ns || 0), 0);
    if (guards) facts.push(["guards, a full check by estimate", guards, "", seconds(cost * 1e-9)]);
    if (D.recompiles.length) facts.push(["recompiles", D.recompiles.length]);
    // Of the piece that holds most: the most of its halves, each system's own.
    const held = D.pieces.map((p) => p.schedules.filter((x) => x.peak > 0).map((x) => [x.peak, eagerOf(p, x)])).filter((list) => list.length)
      .map((list) => [Math.max(...list.map((x) => x[0])), list.every((x) => x[1]) ? Math.max(...list.map((x) => x[1].peak)) : 0, list.some((x) => x[1] && x[1].floor)])
      .sort((a, b) => b[0] - a[0])[0];
    if (held) facts.push([held[1] ? `held at most; eager ${held[2] ? "at least " : ""}${bytes(held[1])}` : "held at most", bytes(held[0])]);
    if (D.phases.length) facts.push(["to compile", seconds(D.phases.reduce((n, f) => n + f.seconds, 0))]);
    $("facts").append(...facts.map(([name, value, kind, small]) =>
      h("div", { class: kind }, h("dt", {}, name), h("dd", {}, value.toLocaleString("en"), small ? h("small", {}, ` ≈ ${small}`) : ""))));
    $("made").textContent = `${D.made} · one file, works offline`;
    if (D.problems.length) {
      $("problems").hidden = false;
      $("problems").append(h("p", {}, "Parts of this report could not be made; the program was not affected."), h("ul", {}, D.problems.map((p) => h("li", {}, p))));
    }
  }

  // ------------------------------------------------------------------------------------- source
  const KEYWORDS = new Set("False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield".split(" "));
  const TOKEN = /(#.*$)|([rbfuRBFU]{0,2}(?:"""|'''))|([rbfuRBFU]{0,2}(?:"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?))|([^\W\d]\w*)|(\s+|\d[\w.]*|.)/gu;
  function coloured(text, state) {
    const out = [];
    let rest = text;
    const push = (kind, t) => out.push([kind, t]);
    while (rest) {
      if (state.quote) {
        const end = rest.indexOf(state.quote);
        const cut = end < 0 ? rest.length : end + 3;
        push("s", rest.slice(0, cut));
        rest = rest.slice(cut);
        if (end >= 0) state.quote = null;
        continue;
      }
      TOKEN.lastIndex = 0;
      let match, done = 0;
      while ((match = TOKEN.exec(rest))) {
        done = TOKEN.lastIndex;
        if (match[1]) push("c", match[1]);
        else if (match[2]) { push("s", match[2]); state.quote = match[2].slice(-3); break; }
        else if (match[3]) push("s", match[3]);
        else if (match[4]) push(KEYWORDS.has(match[4]) ? "k" : "", match[4]);
        else push("", match[5]);
      }
      rest = rest.slice(done);
      if (!done) break;
    }
    return out;
  }
  function code(text, state, columns) {
    const out = [];
    let column = 0;
    for (const [kind, t] of coloured(text, state)) {
      const make = (part, under) => {
        if (!part) return;
        const inner = under ? h("u", {}, part) : part;
        out.push(kind ? h("span", { class: `tok-${kind}` }, inner) : inner);
      };
      const [from, to] = columns || [Infinity, Infinity];
      const a = Math.min(Math.max(from - column, 0), t.length), b = Math.min(Math.max(to - column, 0), t.length);
      make(t.slice(0, a), false);
      make(t.slice(a, b), true);
      make(t.slice(b), false);
      column += t.length;
    }
    return out;
  }

  const lineRows = new Map(), nodeRows = [], stepRows = [];
  const pieceAt = new Map();
  D.pieces.forEach((piece, p) => { const key = piece.at.join(":"); if (!pieceAt.has(key)) pieceAt.set(key, []); pieceAt.get(key).push(p); });
  const guardsAt = new Map();
  D.pieces.forEach((piece) => piece.guards.forEach((g) => { if (g[4]) { const k = g[4].join(":"); guardsAt.set(k, (guardsAt.get(k) || 0) + 1); } }));
  const recompilesAt = new Map();
  D.recompiles.forEach((r) => { if (r.at) { const k = r.at.join(":"); if (!recompilesAt.has(k)) recompilesAt.set(k, []); recompilesAt.get(k).push(r); } });

  function breakCallout(b) {
    return h("div", { class: "callout" },
      h("p", { class: "kind" }, `Graph break, ${b.category} `, h("code", {}, b.id)),
      h("p", {}, b.what),
      b.resumed ? null : h("p", {}, "The function runs eagerly from its start for such inputs."),
      h("p", {}, h("b", {}, "What to do: "), b.advice));
  }
  // Each version that did not fit gives a reason: equal ones are said once, and so is advice.
  function reasonsOf(list) {
    const found = new Map();
    for (const r of list) for (const x of r.reasons.length ? r.reasons : [{ what: "No compiled version matches." }]) {
      const key = `${x.why || ""}\n${x.hint || ""}`;
      if (!found.has(key)) found.set(key, { why: x.why, hint: x.hint, whats: new Set() });
      found.get(key).whats.add(x.what);
    }
    return [...found.values()];
  }
  function recompileCallout(list) {
    return h("div", { class: "callout recompile" },
      h("p", { class: "kind" }, list.length > 1 ? `Recompiled ${list.length} times` : `Recompiled: ${brief(list[0].function)}`),
      reasonsOf(list).map((x) => [[...x.whats].map((what) => h("p", { class: "mono" }, what)), x.hint ? h("p", {}, h("b", {}, "What to do: "), x.hint) : ""]));
  }

  function drawSource() {
    const box = $("source");
    D.files.forEach((file, f) => {
      box.append(h("div", { class: "group" }, h("b", { title: file.path }, file.name), h("span", {}, "")));
      if (!file.spans.length) {
        const places = D.pieces.filter((p) => p.at[0] === f).map((p) => p.function);
        box.append(h("p", { class: "empty" }, `${file.problem || "No source."} ${[...new Set(places)].join(", ")}`));
        // Without text, the lines that are known of are still shown.
        for (const line of Object.keys(file.states)) box.append(lineRow(f, Number(line), "", file.states[line], { quote: null }), ...callouts(`${f}:${line}`));
        return;
      }
      let last = 0;
      file.spans.forEach((span) => {
        if (span.first > last + 1) box.append(h("div", { class: "gap", title: span.name }, `⋯ ${brief(span.name)}`));
        const indent = Math.min(...span.lines.filter((t) => t.trim()).map((t) => t.length - t.trimStart().length), 40);
        const state = { quote: null };
        span.lines.forEach((text, i) => {
          const line = span.first + i;
          box.append(lineRow(f, line, text, file.states[line], state, Number.isFinite(indent) ? indent : 0), ...callouts(`${f}:${line}`));
        });
        last = span.first + span.lines.length - 1;
      });
    });
    if (!D.files.length) box.append(h("p", { class: "empty" }, "None of the code that ran is the user's own."));
  }
  function callouts(key) {
    return [
      ...breaks.filter((b) => b.at && b.at.join(":") === key).map(breakCallout),
      ...(recompilesAt.has(key) ? [recompileCallout(recompilesAt.get(key))] : []),
    ];
  }
  function lineRow(f, line, text, state, quote, indent = 0) {
    const key = `${f}:${line}`;
    const found = breaks.find((b) => b.at && b.at.join(":") === key);
    const own = nodesAt.get(key);
    const counts = [];
    if (own) counts.push(plural(own.size, "op"));
    if (recompilesAt.has(key)) counts.push("↻");
    const columns = found && found.columns ? found.columns.map((c) => c + text.length - text.trimStart().length) : null;
    const lead = text.length - text.trimStart().length;
    const row = h("div", {
      class: `row line ${state || "plain"}`, "data-line": key,
      "aria-label": `line ${line}${state ? `, ${MEANING[state]}` : ""}${own ? `, ${plural(own.size, "operator")}` : ""}: ${text.trim()}`,
    },
      h("span", { class: "no" }, String(line)),
      h("span", { class: `mark ${state || ""}`, title: state ? MEANING[state] : null }, state ? MARKS[state] : ""),
      h("span", { class: "text", style: { "--hang": `${Math.max(lead - indent, 0) + 2}ch` } }, code(text, quote, columns)),
      h("span", { class: "counts" }, counts.join(" ")));
    if (state) button(row, { line: key });
    lineRows.set(key, row);
    return row;
  }

  // --------------------------------------------------------------------------- graph and kernels
  function heading(name, small, title) {
    return h("div", { class: "group", title }, h("b", {}, name), h("span", {}, small));
  }
  function drawGraph() {
    const box = $("graph");
    D.pieces.forEach((piece, p) => {
      const where = at(piece.at);
      box.append(heading(brief(piece.function), `${where ? `${where} · ` : ""}${piece.state === "compiled" ? plural(piece.ops, "op") : piece.state === "eager" ? "eager" : "no ops"}`, `${piece.function}, ${piece.where}`));
      if (piece.note) box.append(h("p", { class: "inputs" }, piece.note));
      if (piece.inputs.length) {
        const size = piece.inputs.reduce((n, i) => n + i[2], 0);
        box.append(h("details", { class: "inputs" }, h("summary", { tabindex: "-1" }, `${plural(piece.inputs.length, "input")}, ${bytes(size)}`),
          h("table", {}, h("tbody", {}, piece.inputs.map(([name, form, n]) => h("tr", {}, h("td", {}, name), h("td", {}, form), h("td", {}, bytes(n))))))));
      }
      nodes.filter((node) => node.p === p).forEach((node) => {
        const tag = node.steps.length ? node.steps[0].tag || "lib" : "";
        const row = h("div", { class: "row node", title: [node.name, node.module && `in ${node.module}`].filter(Boolean).join(", ") },
          h("span", { class: "op" }, soft(node.op)), h("span", { class: "form" }, node.form), h("span", { class: `tag${tag === "lib" ? " none" : ""}` }, tag));
        button(row, { node });
        nodeRows[node.id] = row;
        box.append(row);
      });
    });
  }
  function sourceOf(kernel) {
    const name = h("span", { class: "mono" }, kernel.name);
    const tuned = kernel.tuned ? h("p", { class: "inputs" }, kernel.tuned) : "";
    if (!kernel.source) return tuned ? h("div", {}, name, tuned) : name;
    const box = h("details", {}, h("summary", { tabindex: "-1" }, name, kernel.language ? `, ${kernel.language}` : ""), tuned);
    box.addEventListener("toggle", () => { if (box.open && !box.querySelector("pre")) box.append(h("pre", { class: "code", tabindex: "0" }, kernel.source)); });
    return box;
  }
  function drawRuns() {
    const box = $("runs");
    let shown = 0;
    D.pieces.forEach((piece, p) => piece.schedules.forEach((schedule) => {
      shown += 1;
      const mine = steps.filter((step) => step.p === p && step.schedule === schedule);
      const named = schedule.name && schedule.name !== "inference" ? `, ${schedule.name}` : "";
      // Pieces of one function are told apart by where they begin.
      const where = D.pieces.some((other) => other !== piece && other.function === piece.function) ? at(piece.at) : "";
      box.append(heading(`${brief(piece.function)}${named}`, [where, schedule.device, known(schedule.peak) ? `peak ${bytes(schedule.peak)}` : ""].filter(Boolean).join(" · ")));
      const opened = new Set();
      mine.forEach((step) => {
        const kernel = known(step.kernel) ? schedule.kernels[step.kernel] : null;
        const size = [known(step.bytes) ? bytes(step.bytes) : "", step.flops ? flops(step.flops) : ""].filter(Boolean).join(" · ");
        const row = h("div", { class: "row step" },
          h("div", { class: "head" }, h("span", { class: `tag${kernel ? "" : " none"}` }, kernel ? step.tag : "lib"), h("span", { class: "label" }, soft(step.label)), h("span", { class: "size" }, size)),
          kernel && !opened.has(step.kernel) ? h("div", { class: "name" }, sourceOf(kernel)) : "");
        if (kernel) opened.add(step.kernel);
        button(row, { step });
        stepRows[step.id] = row;
        box.append(row);
      });
      if (!mine.length) schedule.kernels.forEach((kernel) => box.append(h("div", { class: "step" }, sourceOf(kernel))));
      if (schedule.note) box.append(h("p", { class: "inputs" }, schedule.note));
    }));
    if (!shown) box.append(h("p", { class: "empty" }, graphs.length ? "This backend runs the graph as it was captured: each operator on its own." : "Nothing was compiled."));
  }

  // ---------------------------------------------------------------------------------- selection
  let pinned = null, marked = [];
  const focusable = [];
  function button(row, what) {
    row.tabIndex = -1;
    row.setAttribute("role", "button");
    row.setAttribute("aria-pressed", "false");
    row.what = what;
    row.addEventListener("mouseenter", () => { if (!pinned) mark(what, "near"); });
    row.addEventListener("mouseleave", () => { if (!pinned) clear(); });
    row.addEventListener("click", (event) => {
      if (event.target.closest("details") || String(getSelection())) return;
      pin(pinned === row ? null : row);
    });
    row.addEventListener("focus", () => { rove(row); if (!pinned) mark(what, "near"); });
    focusable.push(row);
  }
  function related(what) {
    let found;
    if (what.line) found = [...(nodesAt.get(what.line) || [])];
    else if (what.node) found = [what.node];
    else found = what.step.members;
    const lines = what.line ? [what.line] : [...new Set(found.map((n) => n.own).filter(Boolean))];
    const runs = what.step ? [what.step] : [...new Set(found.flatMap((n) => n.steps))];
    return { lines, nodes: found, runs };
  }
  function clear() {
    for (const row of marked) row.classList.remove("linked", "near");
    marked = [];
    $("status").textContent = "";
  }
  function mark(what, own) {
    clear();
    const { lines, nodes: some, runs } = related(what);
    marked = [...lines.map((l) => lineRows.get(l)), ...some.map((n) => nodeRows[n.id]), ...runs.map((r) => stepRows[r.id])].filter(Boolean);
    for (const row of marked) row.classList.add(row.what === what ? own : "linked");
    const tags = [...new Set(runs.map((r) => r.tag).filter(Boolean))];
    const lib = runs.filter((r) => !r.tag).length;
    const parts = [];
    if (what.line) {
      const [file, line] = what.line.split(":");
      const state = D.files[file].states[line];
      parts.push(`Line ${line}: ${state ? MEANING[state] : ""}`);
    } else if (what.node) parts.push(`${what.node.op} (${what.node.name})${what.node.own ? ` from ${at(what.node.own.split(":").map(Number))}` : ", made in library code"}`);
    else parts.push(`${what.step.tag || "Library call"}: ${what.step.label}`);
    if (!what.node && some.length) parts.push(plural(some.length, "operator"));
    if (!what.step && (tags.length || lib)) parts.push(`runs as ${[...tags.slice(0, 12), tags.length > 12 ? `${tags.length - 12} more` : "", lib ? plural(lib, "library call") : ""].filter(Boolean).join(", ")}`);
    if (what.line && guardsAt.has(what.line)) parts.push(plural(guardsAt.get(what.line), "guard"));
    $("status").textContent = parts.join(" · ");
  }
  function pin(row) {
    if (pinned) pinned.setAttribute("aria-pressed", "false");
    pinned = row;
    $("explore").classList.toggle("pinned", !!row);
    clear();
    if (!row) return;
    row.setAttribute("aria-pressed", "true");
    mark(row.what, "near");
    for (const id of ["source", "graph", "runs"]) {
      const box = $(id);
      if (box.contains(row)) continue;
      const first = marked.filter((r) => box.contains(r)).sort((a, b) => a.offsetTop - b.offsetTop)[0];
      if (first) box.scrollTop = first.offsetTop - box.clientHeight / 3;
    }
  }
  function rove(row) {
    const box = row.closest(".body");
    for (const other of box.querySelectorAll('.row[tabindex="0"]')) other.tabIndex = -1;
    row.tabIndex = 0;
  }
  function go(row) {
    if (!row) return;
    row.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  }
  function goToLine(key) {
    const row = lineRows.get(key);
    if (!row) return;
    $("explore").scrollIntoView({ block: "start" });
    const box = row.closest(".body");
    box.scrollTop = row.offsetTop - box.clientHeight / 3;
    if (pinned !== row) pin(row);
    row.focus({ preventScroll: true });
  }
  function lineButton(place) {
    const text = at(place);
    return text ? h("button", { type: "button", class: "linkish", onclick: () => goToLine(place.join(":")) }, text) : "";
  }

  // ------------------------------------------------------------------------------------- charts
  function steppedPath(points, x, y) {
    return points.map((v, i) => `${i ? "V" : "M0 "}${i ? y(v) : y(v)} H${x(i + 1)}`).join(" ");
  }
  function ticks(most) {
    const raw = most / 4, power = 10 ** Math.floor(Math.log10(raw || 1));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= raw) || raw;
    const out = [];
    for (let v = 0; v <= most * 1.001; v += step) out.push(v);
    return out;
  }
  function drawMemory() {
    const box = $("memory").querySelector(".figures");
    let shown = 0;
    D.pieces.forEach((piece, p) => {
      const eager = piece.memory && piece.memory.peak > 0 ? piece.memory : null;
      const list = piece.schedules.filter((x) => x.peak > 0 && x.steps.some((t) => known(t.live)));
      if (!list.length && !eager) return;
      (list.length ? list : [null]).forEach((schedule) => {
        if (shown >= 12) return;
        shown += 1;
        const mine = schedule ? steps.filter((t) => t.p === p && t.schedule === schedule && known(t.live)) : [];
        const theirs = schedule ? eagerOf(piece, schedule) : eager;
        const W = 560, H = 190, top = 14, left = 58, bottom = 22;
        const most = Math.max(schedule ? schedule.peak : 0, theirs ? theirs.peak : 0) || 1;
        const y = (v) => top + (H - top - bottom) * (1 - v / most);
        const across = (count) => (i) => left + ((W - left) * i) / Math.max(count, 1);
        const svg = s("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img" });
        for (const v of ticks(most)) {
          svg.append(s("line", { class: "grid", x1: left, x2: W, y1: y(v), y2: y(v) }), s("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, v ? bytes(v) : "0"));
        }
        // Of many steps, each column shows the most.
        const thin = (values) => {
          const per = Math.ceil(values.length / 140);
          return per < 2 ? values : Array.from({ length: Math.ceil(values.length / per) }, (_, i) => Math.max(...values.slice(i * per, (i + 1) * per)));
        };
        const path = (all) => { const values = thin(all); const x = across(values.length);
          return `M${left} ${y(0)} V` + values.map((v, i) => `${y(v)} H${x(i + 1)}`).join(" V"); };
        const words = [];
        if (mine.length) {
          const live = mine.map((t) => t.live);
          svg.append(s("path", { class: "area", d: `${path(live)} V${y(0)} Z` }), s("path", { class: "ours", d: path(live) }));
          words.push(`The schedule holds at most ${bytes(schedule.peak)}.`);
        }
        if (theirs) {
          svg.append(s("path", { class: "eager", d: path(theirs.live.map((l) => (known(l.length) ? l[1] : l))) }));
          words.push(`Eager (dashed) holds ${theirs.floor ? "at least " : ""}${bytes(theirs.peak)}${theirs.floor ? ", more with what autograd saves" : ""}.`);
        }
        svg.append(s("text", { x: left, y: H - 6 }, "first step"), s("text", { x: W, y: H - 6, "text-anchor": "end" }, "last step"));
        svg.setAttribute("aria-label", words.join(" "));
        const name = `${brief(piece.function)}${schedule && schedule.name && schedule.name !== "inference" ? `, ${schedule.name}` : ""}`;
        box.append(h("figure", {}, h("figcaption", {}, h("b", {}, name), `${at(piece.at) ? ` (${at(piece.at)})` : ""}. ${words.join(" ")}`), svg));
      });
    });
    if (shown) {
      $("memory").hidden = false;
      box.before(h("p", { class: "note" }, "Simulated from the sizes and last uses of the values: bytes held beyond the inputs, over the steps in the order in which they run. Each curve has its own steps. What a forward half keeps is an input of the backward one."));
      box.style.marginTop = "12px";
    }
  }
  function drawTimeline() {
    if (!D.phases.length) return;
    $("timeline").hidden = false;
    const total = D.phases.reduce((n, f) => n + f.seconds, 0);
    const box = h("div", { class: "bars" });
    let base = 0;
    D.phases.slice(0, 60).forEach((frame) => {
      const cache = frame.cache.map(([result, reason]) => (result === "hit" ? "graph from the cache" : `cache ${result}${reason ? `: ${reason}` : ""}`)).filter((text, i, all) => all.indexOf(text) === i).join("; ");
      const aside = [frame.where, cache].filter(Boolean).join(" · ");
      box.append(h("span", { class: "who all mono", title: frame.function }, brief(frame.function)), h("span", { class: "note all aside" }, aside), h("span", { class: "time all" }, seconds(frame.seconds)));
      const spans = frame.phases.filter((x) => x.depth <= 1 && x.seconds > total / 300);
      for (const phase of spans) {
        const deep = phase.depth ? " deep" : "";
        box.append(h("span", { class: `who${deep}` }, phase.name),
          h("span", { class: `track${deep}` }, h("span", { class: "bar", style: { left: `${(100 * (base + phase.start)) / total}%`, width: `${(100 * phase.seconds) / total}%` } })),
          h("span", { class: "time" }, seconds(phase.seconds)));
      }
      base += frame.seconds;
    });
    $("timeline").querySelector("div").append(h("p", { class: "note" }, `${seconds(total)} in all, within the first calls. Later calls with inputs like these only check the guards.`), box);
  }

  function totals() {
    const found = new Map();
    for (const step of steps) {
      if (!known(step.kernel)) continue;
      const kernel = step.schedule.kernels[step.kernel];
      const row = found.get(kernel) || { kernel, step, tag: step.tag, label: step.label, launches: 0, bytes: 0, flops: 0, roof: step.schedule.roof };
      row.launches += 1;
      row.bytes = known(step.bytes) && known(row.bytes) ? row.bytes + step.bytes : null;
      row.flops = known(step.flops) && known(row.flops) ? row.flops + step.flops : null;
      found.set(kernel, row);
    }
    return [...found.values()].sort((a, b) => (b.bytes || 0) - (a.bytes || 0));
  }
  function drawWork() {
    const rows = totals();
    if (!rows.length) return;
    $("work").hidden = false;
    const timed = rows.some((r) => known(r.kernel.seconds));
    const roofed = rows.filter((r) => r.roof && r.bytes && r.flops);
    const box = $("work").querySelector("div");
    const all = rows.reduce((n, r) => n + (r.bytes || 0), 0);
    box.append(h("p", { class: "note" }, `${plural(rows.length, "distinct kernel")}, ${bytes(all)} read and written per call, each operand counted once.${timed ? "" : " Times are not shown: none were measured."}`));
    if (roofed.length) box.append(roofline(roofed));
    box.append(h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Kernels" }, h("table", { class: "data" },
      h("thead", {}, h("tr", {}, ["Kernel", "Computes", "Launches", "Bytes", "Arithmetic", "Flop per byte", timed ? "Measured" : null].filter(Boolean).map((t, i) => h("th", { class: i > 1 ? "num" : "", scope: "col" }, t)))),
      h("tbody", {}, rows.slice(0, 400).map((r) => h("tr", {},
        h("td", {}, h("button", { type: "button", class: "linkish", title: r.kernel.name, onclick: () => { const row = stepRows[r.step.id]; if (pinned !== row) pin(row); $("explore").scrollIntoView(); const b = $("runs"); b.scrollTop = row.offsetTop - b.clientHeight / 3; row.focus({ preventScroll: true }); } }, r.tag)),
        h("td", { class: "mono" }, r.label), h("td", { class: "num" }, String(r.launches)),
        h("td", { class: "num" }, known(r.bytes) ? bytes(r.bytes) : "unknown"), h("td", { class: "num" }, known(r.flops) ? flops(r.flops) : "unknown"),
        h("td", { class: "num" }, r.bytes && known(r.flops) ? (r.flops / r.bytes).toFixed(2) : ""),
        timed ? h("td", { class: "num" }, known(r.kernel.seconds) ? seconds(r.kernel.seconds) : "") : ""))))));
  }
  function roofline(rows) {
    const roof = rows[0].roof, W = 640, H = 280, left = 76, top = 16, bottom = 40, right = 20;
    const intensity = (r) => r.flops / r.bytes;
    const bound = (x) => Math.min(roof.flops, roof.bandwidth * x);
    const xs = rows.map(intensity), knee = roof.flops / roof.bandwidth;
    const low = Math.floor(Math.log10(Math.min(...xs, 0.1))), high = Math.ceil(Math.log10(Math.max(...xs, knee * 3)));
    const speeds = rows.filter((r) => r.kernel.seconds).map((r) => r.flops / r.launches / r.kernel.seconds);
    const floor = Math.floor(Math.log10(Math.min(...speeds, bound(10 ** low)))), ceiling = Math.log10(roof.flops) + 0.3;
    const x = (v) => left + ((W - left - right) * (Math.log10(v) - low)) / (high - low);
    const y = (v) => top + (H - top - bottom) * (1 - (Math.log10(v) - floor) / (ceiling - floor));
    const svg = s("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Roofline of ${rows.length} kernels. ${roof.basis}` });
    for (let e = low; e <= high; e += 1) svg.append(s("line", { class: "grid", x1: x(10 ** e), x2: x(10 ** e), y1: top, y2: H - bottom }), s("text", { x: x(10 ** e), y: H - bottom + 16, "text-anchor": "middle" }, String(Number((10 ** e).toPrecision(1)))));
    for (let e = floor; e <= ceiling; e += 1) svg.append(s("line", { class: "grid", x1: left, x2: W - right, y1: y(10 ** e), y2: y(10 ** e) }), s("text", { x: left - 8, y: y(10 ** e) + 4, "text-anchor": "end" }, `${flops(10 ** e)}/s`));
    svg.append(s("path", { class: "roof", d: `M${x(10 ** low)} ${y(bound(10 ** low))} L${x(knee)} ${y(roof.flops)} H${W - right}` }));
    svg.append(s("text", { x: (left + W - right) / 2, y: H - 6, "text-anchor": "middle" }, "flop per byte"));
    for (const r of rows) {
      const measured = r.kernel.seconds ? r.flops / r.launches / r.kernel.seconds : null;
      svg.append(s("circle", { class: measured ? "dot" : "hollow", cx: x(intensity(r)), cy: y(measured || bound(intensity(r))), r: 4.5 }, s("title", {}, `${r.tag} ${r.label}: ${intensity(r).toFixed(2)} flop per byte${measured ? `, ${flops(measured)}/s measured` : ", no measured time: shown at its bound"}`)));
    }
    const some = rows.some((r) => r.kernel.seconds);
    return h("figure", { style: { "max-width": "760px", margin: "12px 0" } }, h("figcaption", {}, `${roof.basis} ${some ? "Filled: measured." : ""} ${rows.some((r) => !r.kernel.seconds) ? "Hollow: not measured, drawn at the bound that its bytes and arithmetic set." : ""}`), svg);
  }

  function drawGuards() {
    const list = D.pieces.flatMap((piece, p) => piece.guards.map((g) => ({ piece: p, g })));
    if (!list.length) return;
    $("guards").hidden = false;
    const input = h("input", { type: "search", id: "guard-filter", placeholder: "Filter", "aria-label": "Filter the guards" });
    const body = h("tbody");
    const count = h("span", { role: "status" });
    const sorted = [...list].sort((a, b) => b.g[5] - a.g[5]);
    function fill() {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const found = sorted.filter(({ g, piece }) => { const text = [...g.slice(0, 4), at(g[4]), D.pieces[piece].function].join(" ").toLowerCase(); return words.every((w) => text.includes(w)); });
      body.replaceChildren(...found.slice(0, 300).map(({ g }) => h("tr", {},
        h("td", {}, h("code", {}, g[0])), h("td", {}, g[1]), h("td", {}, h("code", {}, g[2])), h("td", {}, g[3]), h("td", { class: "where" }, g[4] ? lineButton(g[4]) : ""), h("td", { class: "num" }, seconds(g[5] * 1e-9)))));
      count.textContent = found.length > 300 ? `the 300 dearest of ${found.length.toLocaleString("en")}` : plural(found.length, "guard");
    }
    input.addEventListener("input", fill);
    fill();
    $("guards").querySelector("div").append(
      h("p", { class: "note" }, "What is compared before compiled code runs. Costs are estimates for one comparison on its own; checks that share a path, and what is known not to have changed, cost less."),
      h("div", { class: "controls", style: { "margin-top": "8px" } }, input, count),
      h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Guards" }, h("table", { class: "data" },
        h("thead", {}, h("tr", {}, ["Value", "Compared", "Expected", "Because", "Line", "Cost"].map((t, i) => h("th", { scope: "col", class: i === 5 ? "num" : "" }, t)))), body)));
  }
  function drawRecompiles() {
    const rest = D.recompiles;
    if (!rest.length) return;
    $("recompiles").hidden = false;
    const groups = new Map();
    for (const r of rest) {
      const key = `${r.function}\n${r.at}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(r);
    }
    const cells = (list) => reasonsOf(list).map((x, i) => h("tr", {},
      h("td", {}, i ? "" : h("code", { title: list[0].function }, brief(list[0].function))),
      h("td", { class: "num" }, i ? "" : String(list.length)),
      h("td", { class: "what" }, [...x.whats].map((what) => h("div", {}, h("code", {}, what)))),
      h("td", { class: "where" }, !i && list[0].at ? lineButton(list[0].at) : ""),
      h("td", {}, x.why || ""), h("td", {}, x.hint || "")));
    const head = ["Function", "Times", "What changed", "Line", "Because", "What to do"];
    $("recompiles").querySelector("div").append(h("div", { class: "table", tabindex: "0" },
      h("table", { class: "data" }, h("thead", {}, h("tr", {}, head.map((t, i) => h("th", { class: i === 1 ? "num" : "" }, t)))), h("tbody", {}, [...groups.values()].map(cells)))));
  }
  function drawCode() {
    const found = D.pieces.flatMap((piece) => [["graph", piece.code], ["body", piece.body], ...piece.schedules.map((x) => [`wrapper${x.name ? `, ${x.name}` : ""}`, x.wrapper])].filter(([, text]) => text && text.trim()).map(([kind, text]) => ({ piece, kind, text })));
    if (!found.length) return;
    $("code").hidden = false;
    $("code").querySelector("div").append(...found.map(({ piece, kind, text }) => {
      const box = h("details", { class: "generated" }, h("summary", {}, h("span", { class: "mono" }, brief(piece.function)), ` ${at(piece.at)} · ${kind}`));
      box.addEventListener("toggle", () => { if (box.open && !box.querySelector("pre")) box.append(h("pre", { class: "code", tabindex: "0" }, text)); });
      return box;
    }));
  }

  // ------------------------------------------------------------------------------ theme and keys
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const remember = (value) => { try { if (value) localStorage.setItem("torchsmith-theme", value); return localStorage.getItem("torchsmith-theme"); } catch { return null; } };
  const label = () => { $("theme-button").textContent = dark() ? "Light" : "Dark"; };
  const wanted = new URLSearchParams(location.search).get("theme") || remember();
  if (wanted === "dark" || wanted === "light") root.dataset.theme = wanted;
  function toggle() { root.dataset.theme = dark() ? "light" : "dark"; remember(root.dataset.theme); label(); }
  $("theme-button").addEventListener("click", toggle);
  $("help-button").addEventListener("click", () => $("help").showModal());
  label();

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
    const active = document.activeElement;
    if (active && active.matches("input")) { if (event.key === "Escape") active.blur(); return; }
    const row = active && active.closest ? active.closest(".row") : null;
    const box = row ? row.closest(".body") : $("source");
    const rows = () => focusable.filter((r) => box.contains(r));
    const move = (by) => { const all = rows(), i = all.indexOf(row); go(all[Math.min(Math.max(i < 0 ? 0 : i + by, 0), all.length - 1)]); };
    const inside = active && active.matches("pre, .table");
    const key = event.key;
    if (inside && key.startsWith("Arrow")) return;
    if (key === "j" || (key === "ArrowDown" && row)) move(1);
    else if (key === "k" || (key === "ArrowUp" && row)) move(-1);
    else if (key === "Home" && row) go(rows()[0]);
    else if (key === "End" && row) go(rows().at(-1));
    else if ((key === "ArrowRight" || key === "ArrowLeft") && row) {
      const all = [$("source"), $("graph"), $("runs")], next = all[all.indexOf(box) + (key === "ArrowRight" ? 1 : -1)];
      if (next) go(marked.find((r) => next.contains(r)) || next.querySelector('.row[tabindex="0"]') || next.querySelector(".row[role]"));
    } else if ((key === "Enter" || key === " ") && row && active === row) pin(pinned === row ? null : row);
    else if (key === "o" && row) { const d = row.querySelector("details"); if (d) d.open = !d.open; }
    else if (key === "n" || key === "p") {
      const keys = breaks.filter((b) => b.at && lineRows.has(b.at.join(":"))).map((b) => b.at.join(":"));
      const now = keys.indexOf(row && row.what && row.what.line);
      if (keys.length) goToLine(keys[(now + (key === "n" ? 1 : now < 0 ? 0 : -1) + keys.length) % keys.length]);
    } else if (key === "g" && $("guard-filter")) { $("guard-filter").focus(); $("guards").scrollIntoView(); }
    else if (key === "t") toggle();
    else if (key === "?") $("help").showModal();
    else if (key === "Escape") pin(null);
    else return;
    event.preventDefault();
  });

  // ---------------------------------------------------------------------------------------- draw
  function drawLegend() {
    const count = {};
    for (const file of D.files) for (const state of Object.values(file.states)) count[state] = (count[state] || 0) + 1;
    $("legend").append(...Object.keys(MARKS).filter((k) => count[k]).map((k) => h("li", {}, h("span", { class: `mark ${k}`, "aria-hidden": "true" }, MARKS[k]), h("b", {}, String(count[k])), ` ${MEANING[k]}`)));
  }
  drawLegend();
  drawSource();
  drawGraph();
  drawRuns();
  drawRecompiles();
  drawTimeline();
  drawMemory();
  drawWork();
  drawGuards();
  drawCode();
  for (const id of ["source", "graph", "runs"]) { const first = $(id).querySelector(".row[role]"); if (first) first.tabIndex = 0; }
})();
