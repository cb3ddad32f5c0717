// The page alive: polls state.json and draws what page.py draws, and asks for more when somebody clicks.
// Names and messages are other people's text: they only ever become textContent.
"use strict";

(() => {
  const BINS = ["none", "1–25 %", "26–50 %", "51–75 %", "over 75 %"];
  const BADGES = { u: "unsettled", q: "quarantine", p: "damaged report" };
  const MARKS = {
    u: "unsettled: its newest pods may lie elsewhere than predicted",
    q: "quarantine: its kubelet has refused a pod, a new report is awaited",
    p: "parts of its report cannot be used",
  };
  const ROWS = 40;
  const DENSE = 500;
  const FIRST_DECISIONS = 15;
  const REASONS = 2;
  const PREFIX = "NUMA: ";

  const $ = (id) => document.getElementById(id);
  const el = (tag, given = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) {
      if (value === undefined || value === null) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null && child !== ""));
    return made;
  };
  const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

  const form = $("filter");
  const view = { resource: document.body.dataset.resource, name: "", policy: "", node: "" };
  const decisions = new Map();
  let state = null;
  let etags = new Map();
  let ahead = 0; // seconds by which the service's clock is ahead of ours
  let timer = 0;
  let isPaused = false;
  let isPolling = false;
  let showsAll = false;

  // Amounts and times

  function amount(value) {
    if (state.unit !== "MiB") return String(value);
    const units = ["Mi", "Gi", "Ti"];
    let at = 0;
    while (value >= 1024 && at < 2) { value /= 1024; at += 1; }
    return `${value >= 100 || Number.isInteger(value) ? Math.floor(value) : value.toFixed(1)}${units[at]}`;
  }
  const binOf = ([, free, total]) => (free === null || !total ? "x" : Math.min(4, Math.ceil((4 * free) / total)));
  const tenths = ([, free, total]) => (!free || !total ? 0 : Math.max(1, Math.floor((10 * free) / total)));
  const told = ([id, free, total]) =>
    `NUMA node ${id}: ${free === null ? `${amount(total)}, nobody counts` : `${amount(free)} of ${amount(total)} free`}`;
  function ago(at) {
    const seconds = Math.max(0, Math.round(Date.now() / 1000 + ahead - at));
    if (seconds < 100) return `${seconds} s ago`;
    if (seconds < 6000) return `${Math.round(seconds / 60)} min ago`;
    return seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} d ago`;
  }

  // Live

  async function poll() {
    clearTimeout(timer);
    if (isPaused || document.hidden || isPolling) return;
    isPolling = true;
    const since = state ? state.changed : 0;
    const url = `ui/state.json?${new URLSearchParams({ resource: view.resource, since })}`;
    try {
      const known = etags.get(url);
      const answer = await fetch(url, { cache: "no-store", headers: known ? { "If-None-Match": known } : {} });
      if (answer.status !== 200 && answer.status !== 304) throw new Error(`status ${answer.status}`);
      ahead = Number(answer.headers.get("topowise-now")) - Date.now() / 1000;
      if (answer.status === 200) {
        const next = await answer.json();
        etags = new Map([[url, answer.headers.get("etag")]]);
        if (state && state.boot !== next.boot) {
          // Another process answers: it knows other decisions.
          decisions.clear();
          $("decisions-list").replaceChildren();
          state = null;
          isPolling = false;
          if (since) return poll();
        }
        apply(next);
      }
      say("live", state.problem ? "not ready" : "live");
    } catch (problem) {
      say("lost", `not reachable (${problem.message}), trying again`);
    } finally {
      isPolling = false;
    }
    refreshTimes();
    if (!isPaused && !document.hidden) timer = setTimeout(poll, state && state.nodes.length > 500 ? 5000 : 2000);
    return undefined;
  }

  function say(kind, words) {
    // Only news: a screen reader reads each change.
    const live = $("live");
    if (live.dataset.kind !== kind || live.textContent !== words) {
      live.dataset.kind = kind;
      live.textContent = words;
    }
  }

  function apply(next) {
    const before = state;
    state = next;
    view.resource = next.resource;
    for (const one of next.decisions) decisions.set(one.number, one);
    for (const number of [...decisions.keys()].sort((a, b) => a - b).slice(0, Math.max(0, decisions.size - 10000))) {
      decisions.delete(number);
    }
    drawSummary();
    drawResources();
    drawMap();
    if (next.decisions.length || !before) drawDecisions();
    drawWaiting();
    if (view.node && changedNode(before, next)) showNode(view.node, false);
  }

  function changedNode(before, next) {
    const of = (one) => one && JSON.stringify([one.nodes.find((node) => node[0] === view.node), one.changed]);
    return of(before) !== of(next);
  }

  // Summary, resources, waiting pods

  function drawSummary() {
    const figures = { ...state.counters, waiting: state.waitingCount };
    figures.nodes = state.known ? `${state.nodes.length}/${state.known}` : state.nodes.length;
    figures.refusals = Object.entries(state.counters)
      .filter(([name]) => name.endsWith("Error"))
      .reduce((sum, [, count]) => sum + count, 0);
    for (const cell of $("summary").querySelectorAll("[data-key]")) {
      const figure = String(figures[cell.dataset.key]);
      const shown = cell.querySelector("dd");
      if (shown.textContent !== figure) shown.textContent = figure;
      cell.classList.toggle("zero", figure === "0");
    }
    for (const old of $("summary").querySelectorAll("p")) old.remove();
    if (state.problem) $("summary").prepend(el("p", { class: "problem", role: "alert" }, `Not ready: ${state.problem}`));
    if (state.unreportedCount) {
      const rest = state.unreportedCount - state.unreported.length;
      const names = state.unreported.join(", ") + (rest ? ` and ${rest} more` : "");
      $("summary").append(el("p", { class: "note" }, `No exporter has reported ${names}.`));
    }
  }

  function drawResources() {
    const select = form.elements.resource;
    const there = [...select.options].map((option) => option.value).join("\n");
    if (there !== state.resources.join("\n")) {
      select.replaceChildren(...state.resources.map((name) => el("option", { value: name }, name)));
    }
    if (document.activeElement !== select) select.value = state.resource;
  }

  function drawWaiting() {
    if (!state.waiting.length) {
      $("waiting-list").replaceChildren(el("p", { class: "note" }, "No pod waits for a NUMA node."));
      return;
    }
    const rest = state.waitingCount - state.waiting.length;
    $("waiting-list").replaceChildren(
      el("ul", {}, ...state.waiting.map((one) => {
        const since = Date.parse(one.since);
        const words = `priority ${one.priority}${since ? `, since ${ago(since / 1000)}` : ""}`;
        return el("li", {}, el("bdi", {}, one.pod), " ", el("small", {}, words));
      })),
      rest ? el("p", { class: "note" }, `and ${rest} more`) : "",
    );
  }

  // The map: a table of a few nodes, tiles of many

  let drawn = { kind: "", keys: "", parts: new Map() };

  function drawMap() {
    const wanted = view.name.toLowerCase();
    const nodes = state.nodes.filter(
      (node) => node[0].toLowerCase().includes(wanted) && (!view.policy || state.policies[node[1]] === view.policy),
    );
    const kind = !nodes.length ? "none" : nodes.length <= ROWS ? "rows" : "tiles";
    const keys = `${state.resource}\n${nodes.map((node) => node[0]).join("\n")}`;
    const map = $("map");
    if (drawn.kind !== kind || drawn.keys !== keys || !map.dataset.live) {
      map.dataset.live = "yes";
      drawn = { kind, keys, parts: new Map() };
      if (kind === "none") {
        map.replaceChildren(
          el("p", { class: "note" }, state.nodes.length ? "No node matches." : "No node has been reported yet."));
        return;
      }
      const spread = el("div", { id: "spread" });
      if (kind === "rows") {
        const body = el("tbody");
        for (const node of nodes) body.append(newPart(node, newRow(node)));
        const head = ["Node", "Policy", `NUMA nodes: free/all ${state.resource}`, "Pods", "State"].map((words) =>
          el("th", { scope: "col", class: words === "Pods" ? "number" : undefined }, words));
        map.replaceChildren(spread, el("table", { class: "nodes" }, el("thead", {}, el("tr", {}, ...head)), body));
      } else {
        const tiles = el("div", {
          class: nodes.length > DENSE ? "tiles dense" : "tiles", role: "group", onkeydown: moveInTiles,
          "aria-label": `${nodes.length} nodes; arrow keys go from one to the next, Enter shows it`,
        });
        for (const node of nodes) tiles.append(newPart(node, newTile(node)));
        tiles.firstElementChild.tabIndex = 0;
        const hint = "Each tile is a node, each bar a NUMA node, filled as far as it is free. Dashed: unsettled, or quarantine.";
        map.replaceChildren(spread, tiles, el("p", { class: "note" }, hint));
      }
    }
    for (const node of nodes) {
      const part = drawn.parts.get(node[0]);
      const text = JSON.stringify(node);
      if (part.text !== text) {
        part.text = text;
        (kind === "rows" ? fillRow : fillTile)(part.element, node);
      }
      const isChosen = node[0] === view.node;
      if (part.isChosen !== isChosen) {
        part.isChosen = isChosen;
        part.element.classList.toggle("chosen", isChosen);
      }
    }
    drawSpread(nodes);
  }

  function newPart(node, element) {
    drawn.parts.set(node[0], { element, text: "" });
    return element;
  }

  const nodeLink = (name) => `ui?${new URLSearchParams({ ...asked(), node: name })}`;

  function newRow(node) {
    const link = el("a", { href: nodeLink(node[0]), "data-node": node[0] }, el("bdi", {}, node[0]));
    return el("tr", {}, el("th", { scope: "row" }, link), el("td"), el("td"), el("td", { class: "number" }), el("td"));
  }

  function fillRow(row, [, policy, isExact, marks, pods, seen, zones]) {
    const [name, ofPolicy, ofZones, ofPods, ofState] = row.cells;
    name.title = seen ? "" : "no new report since the service started";
    ofPolicy.textContent = state.policies[policy];
    ofZones.replaceChildren(el("div", { class: "zones" }, ...(zones.length ? zones.map(zoneCell)
      : [el("span", { class: "note" }, "has none")])));
    ofPods.textContent = pods;
    ofState.replaceChildren(...(isExact ? [] : [el("span", { class: "badge quiet" }, "counts")]), ...badges(marks),
      seen ? el("small", { class: "ago", "data-at": seen }, ago(seen)) : "");
  }

  function zoneCell(zone) {
    const [id, free, total] = zone;
    return el("span", { class: `zone b${binOf(zone)} w${tenths(zone)}`, title: told(zone) }, el("i", {}, id),
      el("span", { class: "hidden" }, ":"), " ",
      ...(free === null ? ["–"] : [amount(free), el("small", {}, `/${amount(total)}`)]));
  }

  const badges = (marks) => [...marks].map((mark) => el("span", { class: `badge ${mark}`, title: MARKS[mark] }, BADGES[mark]));

  const newTile = (node) => el("a", { class: "tile", href: nodeLink(node[0]), "data-node": node[0], tabindex: "-1" });

  function fillTile(tile, [name, policy, isExact, marks, pods, , zones]) {
    const words = [name, state.policies[policy], ...zones.map(told), counted(pods, "pod"), isExact ? "" : "counts",
      ...[...marks].map((mark) => BADGES[mark])].filter(Boolean).join("; ");
    tile.title = words;
    tile.setAttribute("aria-label", words);
    tile.classList.toggle("marked", /[uq]/.test(marks));
    tile.replaceChildren(...zones.map((zone) => el("span", { class: `bar b${binOf(zone)} h${tenths(zone)}` })));
  }

  function moveInTiles(event) {
    const tiles = [...event.currentTarget.children];
    const at = tiles.indexOf(document.activeElement);
    const across = tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -at, End: tiles.length - 1 - at };
    if (at < 0 || !(event.key in step)) return;
    event.preventDefault();
    const next = tiles[at + step[event.key]];
    if (next) {
      tiles[at].tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
  }

  function drawSpread(nodes) {
    const spread = $("spread");
    if (!spread) return;
    if (nodes.length <= 8) {
      spread.replaceChildren();
      return;
    }
    const rows = [];
    const rowOf = (words, mine) => {
      const counts = { 0: 0, 1: 0, 2: 0, 3: 0, 4: 0, x: 0 };
      for (const zone of mine) counts[binOf(zone)] += 1;
      return el("tr", {}, el("th", { scope: "row" }, words), ...["0", "1", "2", "3", "4", "x"].map((bin) =>
        el("td", { class: `number${counts[bin] ? ` b${bin}` : ""}` }, counts[bin] || "·")));
    };
    for (let policy = state.policies.length - 1; policy >= 0; policy -= 1) {
      const mine = nodes.filter((node) => node[1] === policy).flatMap((node) => node[6]);
      if (mine.length) rows.push(rowOf(state.policies[policy], mine));
    }
    if (rows.length > 1) rows.push(rowOf("all", nodes.flatMap((node) => node[6])));
    const text = rows.map((row) => row.textContent).join("|");
    if (spread.dataset.text === text) return;
    spread.dataset.text = text;
    const heads = ["Policy", ...BINS, "not counted"].map((words, at) =>
      el("th", { scope: "col", class: at ? "number" : undefined }, words));
    spread.replaceChildren(el("table", { class: "distribution" },
      el("caption", {}, `NUMA nodes by free share of ${state.resource}`),
      el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows)));
  }

  // One node

  async function showNode(name, isAsked) {
    view.node = name;
    remember();
    const section = $("node");
    let parts;
    try {
      const answer = await fetch(`ui/node?${new URLSearchParams({ name })}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status === 404 ? "no exporter reports it any more" : `status ${answer.status}`);
      // The service has escaped every name in it, and the policy of the page runs no script of it.
      parts = [...new DOMParser().parseFromString(await answer.text(), "text/html").body.childNodes];
    } catch (problem) {
      parts = [el("p", { class: "note" }, `${name}: ${problem.message}`)];
    }
    if (view.node !== name) return;
    const scrolled = section.querySelector(".picture")?.scrollLeft || 0;
    const hasFocus = section.contains(document.activeElement);
    section.replaceChildren(...parts);
    section.hidden = false;
    if (section.querySelector(".picture")) section.querySelector(".picture").scrollLeft = scrolled;
    if (isAsked || hasFocus) section.focus({ preventScroll: !isAsked });
    if (isAsked) section.scrollIntoView({ block: "nearest" });
    if (state) drawMap();
  }

  function closeNode() {
    const name = view.node;
    view.node = "";
    remember();
    $("node").hidden = true;
    $("node").replaceChildren();
    drawMap();
    const part = drawn.parts.get(name);
    if (part) (part.element.querySelector("a") || part.element).focus();
  }

  // Decisions

  const rowsOf = new Map();

  function drawDecisions() {
    const list = $("decisions-list");
    if (!decisions.size) {
      list.replaceChildren(el("p", { class: "note" }, "No pod was asked about since the service started."));
      return;
    }
    let body = list.querySelector("tbody");
    if (!list.dataset.live || !body) {
      list.dataset.live = "yes";
      rowsOf.clear();
      const heads = ["When", "Pod", "Outcome", "Node", "Fit", "Why not", "Time"].map((words) => el("th", { scope: "col" }, words));
      body = el("tbody");
      const more = el("button", { type: "button", class: "more", onclick: () => { showsAll = true; drawDecisions(); } });
      list.replaceChildren(el("table", { class: "decisions" }, el("thead", {}, el("tr", {}, ...heads)), body), more);
    }
    const ordered = [...decisions.values()].sort((a, b) => b.number - a.number);
    const shown = ordered.slice(0, showsAll ? 200 : FIRST_DECISIONS);
    const numbers = new Set(shown.map((one) => one.number));
    for (const [number, row] of rowsOf) {
      if (!numbers.has(number) && !row.detail) {
        row.element.remove();
        rowsOf.delete(number);
      }
    }
    let after = null;
    for (const one of shown) {
      let row = rowsOf.get(one.number);
      if (!row) {
        row = { element: newDecision(one), detail: null, changed: -1 };
        rowsOf.set(one.number, row);
        if (after) after.after(row.element);
        else body.prepend(row.element);
      }
      if (row.changed !== one.changed) {
        row.changed = one.changed;
        fillDecision(row.element, one);
      }
      after = row.detail || row.element;
    }
    const button = list.querySelector(".more");
    button.hidden = showsAll || ordered.length <= FIRST_DECISIONS;
    button.textContent = `Show all ${ordered.length}`;
  }

  function newDecision(one) {
    const words = one.pod || "(unreadable request)";
    const button = el("button", { type: "button", "aria-expanded": "false", onclick: () => toggle(one.number) },
      el("bdi", {}, words));
    return el("tr", {}, el("td"), el("th", { scope: "row" }, one.pod ? button : words), el("td"), el("td"), el("td"), el("td"),
      el("td", { class: "number" }));
  }

  function fillDecision(row, one) {
    const [when, , outcome, node, fit, why, time] = row.cells;
    when.replaceChildren(el("time", { datetime: new Date(one.at * 1000).toISOString(), "data-at": one.at,
      title: new Date(one.at * 1000).toLocaleString() }, ago(one.at)));
    const reached = one.outcome || "asked";
    outcome.replaceChildren(el("span", { class: `outcome ${reached.replaceAll(" ", "-")}` }, reached));
    node.replaceChildren(el("bdi", {}, one.bound || one.expected || ""));
    fit.textContent = one.fits === undefined ? "" : `${one.fits} of ${one.asked || 0}`;
    const reasons = Object.entries(one.reasons || {}).sort((a, b) => b[1] - a[1])
      .map(([words, count]) => `${count}× ${words.replace(PREFIX, "")}`);
    if (one.victimsOn !== undefined) reasons.unshift(`evictions would help on ${counted(one.victimsOn, "node")}`);
    const rest = reasons.length - REASONS;
    why.textContent = one.bindError || one.problem
      || reasons.slice(0, REASONS).join("; ") + (rest > 0 ? `; ${counted(rest, "more reason")}` : "");
    why.title = rest > 0 ? reasons.join("\n") : "";
    const times = [one.filterMs, one.scoreMs, one.bindMs].filter((ms) => ms !== undefined).map((ms) => ms.toFixed(1));
    time.textContent = times.length ? `${times.join(" + ")} ms` : "";
    time.title = "filter + score + bind";
  }

  async function toggle(number) {
    const row = rowsOf.get(number);
    const one = decisions.get(number);
    const button = row.element.querySelector("button");
    if (row.detail) {
      row.detail.remove();
      row.detail = null;
      button.setAttribute("aria-expanded", "false");
      return;
    }
    const cell = el("td", { colspan: "7" }, el("p", { class: "note" }, "asking …"));
    row.detail = el("tr", { class: "detail" }, cell);
    row.element.after(row.detail);
    button.setAttribute("aria-expanded", "true");
    const names = new Set([one.bound, one.expected, ...Object.values(one.examples || {}).flat()].filter(Boolean));
    const query = new URLSearchParams([["pod", one.pod], ...[...names].map((name) => ["node", name])]);
    try {
      if (!names.size) throw new Error("no node was asked about");
      const told = await (await fetch(`explain?${query}`, { cache: "no-store" })).json();
      if (!Array.isArray(told)) throw new Error(told.error);
      const rows = told.map((why) => el("tr", {},
        el("th", { scope: "row" }, el("a", { href: nodeLink(why.node), "data-node": why.node }, el("bdi", {}, why.node))),
        el("td", {}, el("span", { class: `outcome ${why.verdict === "fits" ? "bound" : "no-room"}` }, why.verdict)),
        el("td", {}, why.text)));
      const note = `As things are now; ${one.asked > names.size ? `a few of the ${one.asked} nodes, some for each reason` : "all nodes that were asked about"}.`;
      cell.replaceChildren(el("p", { class: "note" }, note), el("table", {}, el("tbody", {}, ...rows)));
    } catch (problem) {
      cell.replaceChildren(el("p", { class: "note" }, `Cannot be explained now: ${problem.message}`));
    }
  }

  // What fits

  async function countFits(event) {
    event.preventDefault();
    const result = $("fits-result");
    const button = $("fits-form").querySelector("button");
    button.disabled = true;
    result.replaceChildren(el("p", { class: "note" }, "counting …"));
    try {
      const answer = await fetch("ui/fits", { method: "POST", body: $("manifest").value, cache: "no-store" });
      const told = await answer.json();
      if (told.error) throw new Error(told.error);
      const rows = told.nodes.slice(0, 200).map((room) => el("tr", {},
        el("th", { scope: "row" }, el("a", { href: nodeLink(room.node), "data-node": room.node }, el("bdi", {}, room.node))),
        el("td", { class: "number" }, `${room.isLeast ? "≥ " : ""}${room.count}`), el("td", {}, room.first)));
      const reasons = Object.entries(told.reasons).map(([words, count]) =>
        el("li", {}, `${counted(count, "node")}: ${words.replace(PREFIX, "")}`));
      result.replaceChildren(
        el("p", { class: "total" }, el("strong", {}, `${told.isLeast ? "At least " : ""}${told.total}`),
          ` more of ${told.pod} fit on ${told.nodes.length} of ${counted(told.asked, "node")}.`),
        rows.length ? el("table", { class: "rooms" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Node"),
          el("th", { scope: "col", class: "number" }, "Fit"), el("th", { scope: "col" }, "First on NUMA"))),
          el("tbody", {}, ...rows)) : "",
        told.nodes.length > 200 ? el("p", { class: "note" }, `and ${told.nodes.length - 200} more nodes`) : "",
        reasons.length ? el("ul", {}, ...reasons) : "",
        told.notLookedAt.length ? el("p", { class: "note" }, `Not looked at: ${told.notLookedAt.join(", ")}.`) : "",
      );
    } catch (problem) {
      result.replaceChildren(el("p", { class: "problem", role: "alert" }, problem.message));
    } finally {
      button.disabled = false;
    }
  }

  // What is shown

  function asked() {
    return Object.fromEntries(
      Object.entries({ ...view, node: "" }).filter(([key, text]) => text && !(key === "resource" && text === "cpu")));
  }

  function remember() {
    const query = new URLSearchParams({ ...asked(), ...(view.node ? { node: view.node } : {}) }).toString();
    history.replaceState(null, "", query ? `ui?${query}` : "ui");
  }

  function filter() {
    const resource = form.elements.resource.value;
    const isOther = resource !== view.resource;
    Object.assign(view, { resource, name: form.elements.name.value.trim(), policy: form.elements.policy.value });
    remember();
    if (state && !isOther) drawMap();
    if (isOther) poll();
  }

  function refreshTimes() {
    for (const one of document.querySelectorAll("[data-at]")) {
      const words = ago(Number(one.dataset.at));
      if (one.textContent !== words) one.textContent = words;
    }
  }

  function start() {
    const query = new URLSearchParams(location.search);
    Object.assign(view, { name: query.get("name") || "", policy: query.get("policy") || "", node: query.get("node") || "" });
    document.documentElement.classList.add("js");
    $("fits-form").hidden = false;
    $("fits-form").addEventListener("submit", countFits);
    form.addEventListener("submit", (event) => { event.preventDefault(); filter(); });
    form.addEventListener("input", filter);
    form.querySelector("button").hidden = true;
    const pause = el("button", { type: "button", "aria-pressed": "false", onclick: () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
      if (isPaused) say("paused", "paused");
      else poll();
    } }, "Pause");
    $("live").after(pause);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
    document.addEventListener("click", (event) => {
      if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
      const link = event.target.closest("a[data-node], #node a.close");
      if (!link) return;
      event.preventDefault();
      if (link.dataset.node) showNode(link.dataset.node, true);
      else closeNode();
    });
    document.addEventListener("keydown", (event) => { if (event.key === "Escape" && view.node) closeNode(); });
    poll();
  }

  start();
})();
