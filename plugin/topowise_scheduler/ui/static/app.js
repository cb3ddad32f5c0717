// The page alive: fetches the parts that have changed and puts them in their places; page.py makes all of its HTML.
// Names in it are other people's text, which the service has escaped; the policy of the page runs no script of it.
"use strict";

(() => {
  const $ = (id) => document.getElementById(id);
  const form = $("filter");
  const view = { resource: document.body.dataset.resource, name: "", policy: "", node: "" };
  const opened = new Map(); // rows with the reasons of a decision, by its number
  let tags = {};
  let ahead = 0; // seconds by which the service's clock is ahead of ours
  let timer = 0;
  let isPaused = false;
  let isPolling = false;
  let isStale = false;
  let showsAll = false;

  // Parts

  const parsed = (text) => [...new DOMParser().parseFromString(`<body>${text}`, "text/html").body.childNodes];

  const inContext = (element, text) => {
    // What is only understood in its place, as the options of a list.
    if (element.tagName !== "SELECT") return parsed(text);
    return [...parsed(`<select>${text}</select>`)[0].childNodes];
  };

  function swap(id, text) {
    const element = $(id);
    if (!element) return;
    const focused = element.contains(document.activeElement) ? document.activeElement : null;
    const key = focused && ["node", "number"].find((name) => name in focused.dataset);
    const scrolled = element.querySelector(".picture")?.scrollLeft || 0;
    element.replaceChildren(...inContext(element, text));
    if (element.querySelector(".picture")) element.querySelector(".picture").scrollLeft = scrolled;
    if (id === "decisions-list") reopen();
    if (id === "node") element.hidden = !text;
    const again = key && element.querySelector(`[data-${key}="${CSS.escape(focused.dataset[key])}"]`);
    if (again) again.focus({ preventScroll: true });
    else if (focused && focused !== element && id === "node") element.focus({ preventScroll: true });
  }

  function asked() {
    return Object.fromEntries(
      Object.entries(view).filter(([key, text]) => text && !(key === "resource" && text === "cpu")));
  }

  async function poll() {
    clearTimeout(timer);
    if (isPolling) isStale = true;
    if (isPolling || isPaused || document.hidden) return;
    isPolling = true;
    let nodes = 0;
    const query = { ...asked(), have: Object.values(tags).join("."), ...(showsAll ? { decisions: "all" } : {}) };
    try {
      const answer = await fetch(`ui/parts?${new URLSearchParams(query)}`, { cache: "no-store" });
      if (answer.status !== 200) throw new Error(`status ${answer.status}`);
      const reply = await answer.json();
      ahead = reply.now - Date.now() / 1000;
      nodes = reply.nodes;
      view.resource = reply.resource;
      for (const [id, [tag, text]] of Object.entries(reply.parts)) {
        tags[id] = tag;
        swap(id, text);
      }
      if (document.activeElement !== form.elements.resource) form.elements.resource.value = view.resource;
      const first = document.querySelector(".tile");
      if (first) first.tabIndex = 0;
      say(reply.problem ? "not ready" : "live", reply.problem ? "not ready" : "live");
    } catch (problem) {
      say("lost", `not reachable (${problem.message}), trying again`);
    } finally {
      isPolling = false;
    }
    refreshTimes();
    if (isStale) {
      isStale = false;
      await poll();
    } else if (!isPaused && !document.hidden) {
      timer = setTimeout(poll, nodes > 500 ? 5000 : 2000);
    }
  }

  function say(kind, words) {
    // Only news: a screen reader reads each change.
    const live = $("live");
    if (live.dataset.kind !== kind || live.textContent !== words) {
      live.dataset.kind = kind;
      live.textContent = words;
    }
  }

  function ago(at) {
    const seconds = Math.max(0, Math.round(Date.now() / 1000 + ahead - at));
    if (seconds < 100) return `${seconds} s ago`;
    if (seconds < 6000) return `${Math.round(seconds / 60)} min ago`;
    return seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} d ago`;
  }

  function refreshTimes() {
    for (const one of document.querySelectorAll("time[data-at]")) {
      const words = ago(Number(one.dataset.at));
      if (one.textContent !== words) one.textContent = words;
      if (!one.title) one.title = new Date(one.dataset.at * 1000).toLocaleString();
    }
  }

  // Nodes

  async function showNode(name) {
    view.node = name;
    remember();
    await poll();
    const section = $("node");
    if (view.node !== name || section.hidden) return;
    section.focus();
    section.scrollIntoView({ block: "nearest" });
  }

  async function closeNode() {
    const name = view.node;
    view.node = "";
    remember();
    delete tags.node;
    swap("node", "");
    await poll();
    document.querySelector(`#map [data-node="${CSS.escape(name)}"]`)?.focus();
  }

  function moveInTiles(event) {
    const tiles = [...$("map").querySelectorAll(".tile")];
    const at = tiles.indexOf(document.activeElement);
    if (at < 0) return;
    const across = tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -at, End: tiles.length - 1 - at };
    if (!(event.key in step)) return;
    event.preventDefault();
    tiles[at + step[event.key]]?.focus();
  }

  // Decisions

  async function fetched(path, given = {}) {
    try {
      const answer = await fetch(path, { cache: "no-store", ...given });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      return parsed(await answer.text());
    } catch (problem) {
      return [document.createTextNode(`not reachable: ${problem.message}`)];
    }
  }

  function reopen() {
    for (const [number, row] of opened) {
      const button = $("decisions-list").querySelector(`button[data-number="${number}"]`);
      if (button) {
        button.setAttribute("aria-expanded", "true");
        button.closest("tr").after(row);
      } else {
        opened.delete(number);
      }
    }
  }

  async function toggle(number) {
    if (opened.has(number)) {
      opened.get(number).remove();
      opened.delete(number);
      $("decisions-list").querySelector(`button[data-number="${number}"]`).setAttribute("aria-expanded", "false");
      return;
    }
    const row = document.createElement("tr");
    row.className = "detail";
    const cell = row.insertCell();
    cell.colSpan = 7;
    cell.append("asking …");
    opened.set(number, row);
    reopen();
    cell.replaceChildren(...await fetched(`ui/decision?${new URLSearchParams({ ...asked(), number })}`));
  }

  // What fits

  async function countFits(event) {
    event.preventDefault();
    const button = $("fits-form").querySelector("button");
    button.disabled = true;
    $("fits-result").replaceChildren("counting …");
    $("fits-result").replaceChildren(...await fetched("ui/fits", {
      method: "POST", body: $("manifest").value, headers: { "Content-Type": "application/yaml" },
    }));
    button.disabled = false;
  }

  // What is shown

  function remember() {
    const query = new URLSearchParams(asked()).toString();
    history.replaceState(null, "", query ? `ui?${query}` : "ui");
  }

  function filter() {
    const { resource, name, policy } = form.elements;
    Object.assign(view, { resource: resource.value, name: name.value.trim(), policy: policy.value });
    remember();
    poll();
  }

  function click(event) {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const hit = event.target.closest("a[data-node], #node a.close, button[data-number], button.more");
    if (!hit) return;
    event.preventDefault();
    if (hit.dataset.node) showNode(hit.dataset.node);
    else if (hit.dataset.number) toggle(hit.dataset.number);
    else if (hit.classList.contains("more")) {
      showsAll = true;
      poll();
    } else closeNode();
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
    const pause = document.createElement("button");
    Object.assign(pause, { type: "button", textContent: "Pause", onclick: () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
      if (isPaused) say("paused", "paused");
      else poll();
    } });
    pause.setAttribute("aria-pressed", "false");
    $("live").after(pause);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
    document.addEventListener("click", click);
    $("map").addEventListener("keydown", moveInTiles);
    document.addEventListener("keydown", (event) => { if (event.key === "Escape" && view.node) closeNode(); });
    poll();
  }

  start();
})();
