"use strict";
// Sorting, filtering, keys, and one selection that every part of the page follows. The page is whole without it.
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const d = JSON.parse($("#data").textContent);
  const count = d.name.length;
  const text = (column, row) => d.texts[d[column][row]];
  const agrees = new Set(["clean", "benign", "approximation"]);
  const isFault = new Set(["culprit", "masked"]);
  const PAGE = 200, FIRST_PAGE = 50;
  const WIDTH = 1230;

  const readers = new Map();
  d.sources.forEach((many, row) => many.forEach((source) => (readers.get(source) || readers.set(source, []).get(source)).push(row)));
  const firstOfStep = new Map();
  for (let row = 0; row < count; row++) if (!firstOfStep.has(text("step", row))) firstOfStep.set(text("step", row), row);

  const number = (x) => (x === null ? "infinite" : x === 0 ? "0" : Math.abs(x) >= 1e-4 && Math.abs(x) < 1e5 ? String(+x.toPrecision(2)) : x.toExponential(1).replace(".0e", "e").replace(/e([+-])(\d)$/, "e$10$2"));
  const times = (x) => (x === null ? "∞" : x >= 10 ? Math.round(x).toLocaleString("en") : String(+x.toPrecision(2)));
  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) key in made ? (made[key] = value) : made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const svg = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  // The state of the page is in its address: #value-NAME@STEP&sort=-local&q=fc1&all=1
  const state = { row: -1, sort: "index", down: false, q: "", all: false };
  const anchor = (row) => "value-" + text("name", row) + "@" + text("step", row);
  const byAnchor = new Map();
  for (let row = count - 1; row >= 0; row--) byAnchor.set("value-" + text("name", row), row);
  for (const row of [...d.faults].reverse()) byAnchor.set("value-" + text("name", row), row);
  for (let row = 0; row < count; row++) byAnchor.set(anchor(row), row);
  let ours = "";
  const write = () => {
    const parts = [state.row >= 0 && state.chosen ? encodeURIComponent(anchor(state.row)).replace(/%40/g, "@").replace(/%3A/g, ":") : ""];
    if (state.sort !== "index" || state.down) parts.push("sort=" + (state.down ? "-" : "") + state.sort);
    if (state.q) parts.push("q=" + encodeURIComponent(state.q));
    if (state.all) parts.push("all=1");
    ours = parts.length > 1 || parts[0] ? "#" + parts.join("&") : " ";
    try { history.replaceState(null, "", ours === " " ? location.pathname + location.search : ours); } catch { /* a sandbox may forbid it */ }
  };
  const decoded = (part) => { try { return decodeURIComponent(part); } catch { return part; } };
  const read = () => {
    const [first, ...rest] = location.hash.slice(1).split("&");
    for (const part of rest) {
      const [key, value] = part.split("=");
      if (key === "sort" && value) { state.down = value[0] === "-"; const named = value.replace(/^-/, ""); if (named in sorters) state.sort = named; }
      if (key === "q") state.q = decoded(value || "");
      if (key === "all") state.all = value === "1";
    }
    return byAnchor.get(decoded(first));
  };

  // The table.
  const byNumber = (column) => (a, b) => (d[column][a] ?? Infinity) - (d[column][b] ?? Infinity) || a - b;
  const byText = (column) => (a, b) => text(column, a).localeCompare(text(column, b), "en", { numeric: true }) || a - b;
  const sorters = { index: (a, b) => a - b };
  for (const column of ["local", "floor", "times", "cumulative"]) sorters[column] = byNumber(column);
  for (const column of ["name", "step", "op", "shape", "verdict", "test"]) sorters[column] = byText(column);
  const body = $(".values tbody"), form = $(".filters"), more = $(".table-more");
  let order = [], shown = 0;
  const disagreeing = d.verdict.some((v) => !agrees.has(d.texts[v]));
  const compute = () => {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    order = [];
    for (let row = 0; row < count; row++) {
      if (!state.all && !words.length && disagreeing && agrees.has(text("verdict", row))) continue;
      const all = `${text("name", row)} ${text("step", row)} ${text("op", row)} ${text("verdict", row)}`.toLowerCase();
      if (words.every((word) => all.includes(word))) order.push(row);
    }
    if (!disagreeing && !state.all && !words.length && state.sort === "index") { order.sort(sorters.times).reverse(); order.length = Math.min(order.length, 40); }
    else { order.sort(sorters[state.sort]); if (state.down) order.reverse(); }
  };
  const cells = ["index", "name", "step", "op", "shape", "verdict", "local", "floor", "times", "cumulative", "test"];
  const tag = (row) => {
    const verdict = text("verdict", row);
    return element("span", { className: "tag tag-" + verdict }, (isFault.has(verdict) ? "✗ " : agrees.has(verdict) ? "✓ " : "• ") + verdict);
  };
  const line = (row) => {
    const made = element("tr", { className: "is-" + text("verdict", row) });
    made.dataset.row = row;
    for (const key of cells) {
      const cell = element("td", { className: "col-" + key });
      if (key === "index") cell.append(row);
      else if (key === "name") cell.append(element("a", { href: "#" + encodeURIComponent(anchor(row)) }, element("bdi", {}, ...text("name", row).split(/(?<=[./])/).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part])))));
      else if (key === "verdict") cell.append(tag(row));
      else if (key === "times") cell.append(times(d.times[row]));
      else if (key === "cumulative") {
        const box = svg("svg", { width: 10, height: 10, "aria-hidden": "true" });
        box.append(svg("rect", { class: "c" + d.colour[row], width: 10, height: 10, rx: 2 }));
        cell.append(box, " " + number(d.cumulative[row]));
      } else if (key === "local" || key === "floor") cell.append(number(d[key][row]));
      else cell.append(text(key, row));
      made.append(cell);
    }
    if (row === state.row) made.classList.add("selected");
    return made;
  };
  const grow = (upTo) => {
    const part = document.createDocumentFragment();
    const end = Math.min(order.length, upTo || shown + PAGE);
    for (; shown < end; shown++) part.append(line(order[shown]));
    body.append(part);
    const left = order.length - shown;
    more.replaceChildren(...(left ? [element("button", { type: "button", onclick: () => grow(0) }, `Show ${Math.min(PAGE, left)} more of ${left.toLocaleString("en")}`)] : []));
  };
  const draw = () => {
    compute();
    shown = 0;
    body.replaceChildren();
    grow(FIRST_PAGE);
    if (!order.length) body.append(element("tr", {}, element("td", { colSpan: cells.length }, "no value matches the filter")));
    $(".count").textContent = `${order.length.toLocaleString("en")} of ${count.toLocaleString("en")} values`;
    for (const head of $$(".values th")) head.dataset.key === state.sort ? head.setAttribute("aria-sort", state.down ? "descending" : "ascending") : head.removeAttribute("aria-sort");
  };
  for (const head of $$(".values th")) {
    const button = element("button", { type: "button" }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const key = head.dataset.key, numeric = ["local", "floor", "times", "cumulative"].includes(key);
      state.down = state.sort === key ? !state.down : numeric;
      state.sort = key;
      draw(); write();
      const arrow = state.down ? "descending" : "ascending";
      say(`sorted by ${button.textContent}, ${arrow}`);
    });
  }
  form.addEventListener("input", () => { state.q = form.q.value.trim(); state.all = form.all.checked; draw(); write(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr")?.dataset.row;
    if (row === undefined) return;
    if (event.target.closest("a")) { event.preventDefault(); select(+row); inspect(event.target.closest("a")); } else select(+row);
  });

  // Small pictures: parts of one large one.
  const sheet = $("#thumbnails");
  const thumbnail = (row) => {
    const place = d.thumb[row];
    if (!sheet || place < 0 || !sheet.complete) return null;
    const w = +sheet.dataset.width, h = +sheet.dataset.height, across = +sheet.dataset.across;
    const made = element("canvas", { width: w, height: h });
    made.getContext("2d").drawImage(sheet, (place % across) * w, Math.floor(place / across) * h, w, h, 0, 0, w, h);
    return made;
  };

  // The map.
  const maps = $$(".map"), radios = $$('input[name="step"]');
  const mapOfStep = new Map();
  d.maps.forEach((one, i) => one.steps.forEach((step) => mapOfStep.set(step, i)));
  const showing = d.maps.map((one) => one.step);
  const paint = (i, step) => {
    if (showing[i] === step) return;
    const first = firstOfStep.get(step), before = firstOfStep.get(showing[i]), one = d.maps[i];
    showing[i] = step;
    if (one.pitch) {
      const paths = {};
      const size = one.size, end = stepEnd(step);
      for (let row = first; row < end; row++) {
        const at = row - first;
        (paths[d.colour[row]] ||= []).push(`M${(at % one.across) * one.pitch} ${Math.floor(at / one.across) * one.pitch}h${size}v${size}h-${size}z`);
      }
      $$("svg > path", maps[i]).filter((p) => /^c\d$/.test(p.getAttribute("class"))).forEach((p) => p.remove());
      const cursor = $(".cursor", maps[i]);
      for (const [colour, parts] of Object.entries(paths)) cursor.before(svg("path", { class: "c" + colour, d: parts.join("") }));
    }
    for (const cell of $$(".cell", maps[i])) {
      const row = +cell.dataset.row - before + first, colour = d.colour[row], fault = isFault.has(text("verdict", row));
      cell.dataset.row = row;
      cell.setAttribute("class", `cell c${colour}${fault ? " fault" : ""}`);
      cell.setAttribute("href", "#" + encodeURIComponent(anchor(row)));
      cell.setAttribute("aria-label", `${text("name", row)}: ${text("verdict", row)}, cumulative error ${number(d.cumulative[row])}`);
      $("title", cell).textContent = `${text("name", row)}\n${text("verdict", row)}, cumulative error ${number(d.cumulative[row])}, local ${number(d.local[row])}`;
      $("rect", cell).setAttribute("class", "c" + colour);
      colour < 4 ? $(".notch", cell).setAttribute("display", "none") : $(".notch", cell).removeAttribute("display");
      $$(".ring, .mark", cell).forEach((part) => part.remove());
      const width = +$("rect", cell).getAttribute("width");
      if (fault) cell.append(svg("rect", { class: "ring", x: -3, y: -3, width: width + 6, height: 38, rx: 9, fill: "none", "stroke-width": 3 }));
      if (fault && !$("text", cell)) cell.append(svg("path", { class: "mark", transform: `translate(${width / 2 - 6} 10)`, d: "M0 0l12 12m0-12l-12 12", stroke: "#fff", "stroke-width": 3, "stroke-linecap": "round" }));
    }
    $$(".field .ring", maps[i]).forEach((ring) => ring.setAttribute("visibility", step === one.step ? "visible" : "hidden"));
    $$(".halo, path.wire-is, path.wire-should", maps[i]).forEach((wire) => wire.setAttribute("visibility", step === one.step ? "visible" : "hidden"));
    const name = $(".map-step b", maps[i]);
    if (name) name.textContent = step;
  };
  const stepEnd = (step) => { let row = firstOfStep.get(step); while (row < count && text("step", row) === step) row++; return row; };
  const strips = [];
  maps.forEach((map, i) => {
    const strip = $(".strip", map);
    if (!strip) return;
    const rowsOfMap = new Map();
    for (const cell of $$(".cell", map)) { const y = cell.getAttribute("transform").split(" ")[1]; (rowsOfMap.get(y) || rowsOfMap.set(y, []).get(y)).push(+cell.dataset.row - firstOfStep.get(d.maps[i].step)); }
    for (const step of d.maps[i].steps.slice(0, 600)) {
      const first = firstOfStep.get(step), layers = [...rowsOfMap.values()];
      const mini = svg("svg", { width: 20, height: Math.max(8, layers.length * 7), "aria-hidden": "true" });
      layers.forEach((many, y) => mini.append(svg("rect", { class: "c" + Math.max(...many.map((offset) => +d.colour[first + offset])), y: y * 7, width: 20, height: 6, rx: 1.5 })));
      const button = element("button", { type: "button", title: step }, mini, step.replace(/^.*\./, ""));
      button.setAttribute("aria-pressed", step === d.maps[i].step);
      button.setAttribute("aria-label", "step " + step);
      button.addEventListener("click", () => {
        const offset = mapOfStep.get(text("step", state.row)) === i ? state.row - firstOfStep.get(text("step", state.row)) : 0;
        select(first + offset);
      });
      strip.append(button);
      strips.push({ step, button });
    }
    strip.hidden = false;
  });
  const cellOf = (row) => $(`.cell[data-row="${row}"]`, maps[mapOfStep.get(text("step", row))] || document);
  for (const map of maps) {
    const i = +map.dataset.map, one = d.maps[i], drawing = $(".map-svg", map);
    drawing.addEventListener("click", (event) => {
      const cell = event.target.closest(".cell");
      if (cell) { event.preventDefault(); select(+cell.dataset.row); cell.focus({ preventScroll: true }); return; }
      if (!one.pitch) return;
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
      const row = firstOfStep.get(showing[i]) + Math.floor(point.y / one.pitch) * one.across + Math.floor(point.x / one.pitch);
      if (row < stepEnd(showing[i])) select(row);
    });
    map.addEventListener("keydown", (event) => {
      if (!event.key.startsWith("Arrow") || event.altKey || event.ctrlKey || event.metaKey) return;
      const here = state.row >= 0 && mapOfStep.get(text("step", state.row)) === i ? state.row : firstOfStep.get(showing[i]);
      let next = here;
      if (one.pitch) next += { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -one.across, ArrowDown: one.across }[event.key];
      else {
        const at = (cell) => { const [x, y] = cell.getAttribute("transform").match(/-?[\d.]+/g).map(Number); return [x + $("rect", cell).getAttribute("width") / 2, y]; };
        const cell = cellOf(here);
        if (!cell) return;
        const [x, y] = at(cell);
        const dx = { ArrowLeft: -1, ArrowRight: 1 }[event.key] || 0, dy = { ArrowUp: -1, ArrowDown: 1 }[event.key] || 0;
        let best = Infinity;
        for (const other of $$(".cell", map)) {
          const [ox, oy] = at(other), along = (ox - x) * dx + (oy - y) * dy, aside = Math.abs(dx ? oy - y : ox - x);
          if (along > 1 && along + 3 * aside < best) { best = along + 3 * aside; next = +other.dataset.row; }
        }
      }
      if (next < firstOfStep.get(showing[i]) || next >= stepEnd(showing[i])) return;
      event.preventDefault();
      select(next);
      cellOf(next)?.focus({ preventScroll: true });
    });
  }
  radios.forEach((radio, i) => radio.addEventListener("change", () => { if (mapOfStep.get(text("step", Math.max(0, state.row))) !== i) select(firstOfStep.get(showing[i])); }));

  // The chart.
  const chart = $(".depth"), chartText = $(".depth-text");
  if (chart) {
    const describe = (row) => `${text("name", row)} (${text("step", row)}): cumulative ${number(d.cumulative[row])}, local ${number(d.local[row])}, ${times(d.times[row])} × noise, ${text("verdict", row)}`;
    const rowAt = (event) => {
      const box = chart.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * WIDTH;
      const span = d.spans.find(([, , , end]) => x < end) || d.spans[d.spans.length - 1], [first, end, left, right] = span;
      return Math.max(first, Math.min(end - 1, first + Math.floor(((x - left) / (right - left)) * (end - first))));
    };
    chart.addEventListener("pointermove", (event) => { const row = rowAt(event); hair(row); chartText.textContent = describe(row); });
    chart.addEventListener("pointerleave", () => { if (state.row >= 0) { hair(state.row); chartText.textContent = describe(state.row); } });
    chart.addEventListener("click", (event) => select(rowAt(event)));
    chart.parentElement.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      select(Math.max(0, Math.min(count - 1, Math.max(0, state.row) + step * (event.shiftKey ? 10 : 1))));
    });
    chart.describe = describe;
  }
  const hair = (row) => {
    const [first, end, left, right] = d.spans.find(([, last]) => row < last);
    const x = left + ((row - first + 0.5) * (right - left)) / (end - first);
    $(".hair", chart).setAttribute("d", `M${x.toFixed(1)} 24V266`);
  };

  // Selecting, inspecting, going back.
  const panels = new Map($$(".panel[data-row]").map((panel) => [+panel.dataset.row, panel]));
  const live = $(".live-panel"), bar = $(".selection");
  const command = (row) => `firstbad show ${quoted(d.candidate)} ${quoted(text("name", row))} --step ${quoted(text("step", row))}`;
  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replace(/'/g, `'"'"'`) + "'");
  const say = (words) => { $(".live").textContent = words; };
  const links = (many) => many.length ? many.flatMap((row, i) => [...(i ? [", "] : []), element("a", { href: "#" + encodeURIComponent(anchor(row)) }, element("code", {}, text("name", row)))]) : ["nothing that was compared"];
  const fact = (label, wide, ...children) => element("div", wide ? { className: "wide" } : {}, element("dt", {}, label), element("dd", {}, ...children));
  const fill = (row) => {
    $(".live-name").textContent = text("name", row);
    $(".live-facts").replaceChildren(`${text("step", row)} · ${text("op", row)} · ${text("shape", row)} · `, tag(row));
    $(".live-numbers").replaceChildren(
      fact("local error", false, number(d.local[row])), fact("noise floor", false, number(d.floor[row])),
      fact("times the floor", false, `${times(d.times[row])} of 3, by ${text("test", row)}`),
      fact("cumulative error", false, `${number(d.cumulative[row])}, allowed ${number(d.allowed[row])}`),
      fact("made from", true, ...links(d.sources[row])), fact("read by", true, ...links((readers.get(row) || []).slice(0, 8))));
    $(".live-command").textContent = command(row);
    const small = thumbnail(row);
    $(".live-thumb").replaceChildren(...(small ? [small, element("p", { className: "aside" }, "reference, candidate, difference (log scale); each point is the largest of its part")] : []));
  };
  const select = (row, chosen = true) => {
    if (!(row >= 0 && row < count)) return;
    state.row = row;
    state.chosen = chosen;
    const step = text("step", row), i = mapOfStep.get(step);
    if (i !== undefined) {
      radios[i].checked = true;
      paint(i, step);
      for (const one of strips) one.button.setAttribute("aria-pressed", one.step === step);
      for (const map of maps) $(".cursor", map).setAttribute("x", -99);
      const one = d.maps[i], cursor = $(".cursor", maps[i]);
      if (one.pitch) {
        const at = row - firstOfStep.get(step);
        for (const [key, value] of Object.entries({ x: (at % one.across) * one.pitch - 2, y: Math.floor(at / one.across) * one.pitch - 2, width: one.size + 4, height: one.size + 4, rx: 3 })) cursor.setAttribute(key, value);
      } else {
        const cell = cellOf(row);
        if (cell) { const [x, y] = cell.getAttribute("transform").match(/-?[\d.]+/g).map(Number); for (const [key, value] of Object.entries({ x: x - 4, y: y - 4, width: +$("rect", cell).getAttribute("width") + 8 })) cursor.setAttribute(key, value); }
        for (const other of $$(".cell", maps[i])) other.setAttribute("tabindex", other === cell ? "0" : "-1");
      }
    }
    if (chart) { hair(row); chartText.textContent = chart.describe(row); }
    const panel = panels.get(row);
    for (const one of panels.values()) one.hidden = one !== panel;
    if (live) { live.hidden = !!panel; if (!panel) fill(row); }
    for (const one of $$("tr.selected", body)) one.classList.remove("selected");
    $(`tr[data-row="${row}"]`, body)?.classList.add("selected");
    for (const one of $$(".box.on")) one.classList.remove("on");
    const here = anchor(row);
    for (const one of $$(".box")) if (one.dataset.anchor === here) one.classList.add("on");
    bar.hidden = !chosen;
    const name = $(".selection-name");
    name.textContent = text("name", row);
    name.setAttribute("href", "#" + encodeURIComponent(here));
    $(".selection-facts").textContent = `${step} · ${text("verdict", row)} · local ${number(d.local[row])} (${times(d.times[row])} × noise) · cumulative ${number(d.cumulative[row])}`;
    const small = thumbnail(row);
    $(".selection .thumb").replaceChildren(...(small ? [small] : []));
    if (chosen) { write(); say(`${text("name", row)}, ${step}, ${text("verdict", row)}`); }
  };
  let cameFrom = null;
  const inspect = (from, behavior = "auto") => {
    if (state.row < 0) return;
    cameFrom = { element: from || document.activeElement, x: scrollX, y: scrollY };
    const panel = panels.get(state.row) || live;
    $("#inspector").scrollIntoView({ block: "start", behavior });
    panel.focus({ preventScroll: true });
  };
  const back = () => {
    if (!cameFrom) return;
    scrollTo({ left: cameFrom.x, top: cameFrom.y });
    (cameFrom.element?.isConnected ? cameFrom.element : document.body).focus?.({ preventScroll: true });
    cameFrom = null;
    say("back");
  };
  const move = (by) => {
    if (!order.length) return;
    const at = order.indexOf(state.row);
    const next = at < 0 ? 0 : Math.max(0, Math.min(order.length - 1, at + by));
    if (next >= shown) grow(next + 1);
    select(order[next]);
    const line = $(`tr[data-row="${order[next]}"]`, body);
    $("a", line)?.focus({ preventScroll: true });
    line?.scrollIntoView({ block: "nearest" });
  };
  const up = () => {
    const many = d.sources[state.row] || [];
    const worst = [...many].sort((a, b) => (d.cumulative[b] ?? Infinity) - (d.cumulative[a] ?? Infinity))[0];
    if (worst === undefined) say("nothing upstream was compared"); else select(worst);
  };
  const firstBad = d.faults.length ? d.faults[0] : [...Array(count).keys()].sort((a, b) => (d.times[b] ?? Infinity) - (d.times[a] ?? Infinity))[0];
  const help = $(".help");
  const keys = {
    1: () => { if (firstBad !== undefined) { select(firstBad); inspect(); } },
    j: () => move(1), k: () => move(-1), u: up,
    "/": () => { $("#table").scrollIntoView(); form.q.focus(); form.q.select(); },
    "?": () => help.showModal(), Escape: back,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const typing = event.target.matches?.("input:not([type=radio]):not([type=checkbox]), textarea");
    if (typing) { if (event.key === "Escape") event.target.blur(); return; }
    if (event.key === "Enter" && (event.target.matches?.(".cell, tr, .scroll") || event.target === document.body)) { event.preventDefault(); inspect(); return; }
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  $(".help-button").addEventListener("click", () => help.showModal());
  $(".selection-buttons").addEventListener("click", (event) => {
    const go = event.target.dataset.go;
    if (go) ({ up, previous: () => move(-1), next: () => move(1), inspect: () => inspect(event.target) })[go]();
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#value-"]');
    if (!link || event.defaultPrevented || event.ctrlKey || event.metaKey) return;
    const row = byAnchor.get(decoded(link.getAttribute("href").slice(1)));
    if (row === undefined) return;
    event.preventDefault();
    select(row);
    inspect(link);
  });
  for (const one of $$(".box")) if (one.dataset.anchor) one.addEventListener("click", () => select(byAnchor.get(one.dataset.anchor)));
  for (const button of $$(".copy")) button.addEventListener("click", async () => {
    const code = $("code", button.parentElement);
    try { await navigator.clipboard.writeText(code.textContent); } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  // Begin.
  for (const one of $$(".scripted")) if (one !== bar) one.hidden = false;
  const wanted = count ? read() : undefined;
  form.q.value = state.q;
  form.all.checked = state.all;
  draw();
  if (wanted !== undefined) { select(wanted); inspect(document.body, "instant"); }
  else if (firstBad !== undefined) select(firstBad, false);
  if (sheet && !sheet.complete) sheet.addEventListener("load", () => { if (state.row >= 0) select(state.row, state.chosen); });
  addEventListener("hashchange", () => {
    if (location.hash === ours) return;
    const row = read();
    if (row !== undefined) { select(row); inspect(document.body); }
  });
})();
