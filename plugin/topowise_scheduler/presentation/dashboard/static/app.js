// The page alive: fetches the parts that have changed and puts them in their places; page.py makes all of its HTML.
// Names in it are other people's text, which the service has escaped; the policy of the page runs no script of it.
"use strict";

(() => {
  const $ = (id) => document.getElementById(id);
  const form = $("filter");
  const panel = $("panel");
  // What the address says; the service makes all links from it.
  const view = Object.fromEntries(document.body.dataset.asked.split(" ").map((key) => [key, ""]));
  const opener = { key: "", text: "" }; // the link that opened the panel, where the focus goes back to
  let tags = {};
  let ahead = 0; // seconds by which the service's clock is ahead of ours
  let timer = 0;
  let isPaused = false;
  let isPolling = false;
  let isStale = false;

  // Parts

  const parsed = (text) => [...new DOMParser().parseFromString(`<body>${text}`, "text/html").body.childNodes];

  const inContext = (element, text) => {
    // What is only understood in its place, as the options of a list.
    if (element.tagName !== "SELECT") return parsed(text);
    return [...parsed(`<select>${text}</select>`)[0].childNodes];
  };

  const KEYS = ["node", "pod", "open", "room", "fits"];

  const keyOf = (element) => KEYS.find((name) => name in element.dataset);

  const same = (root, key, text) => root.querySelector(`[data-${key}="${CSS.escape(text)}"]`);

  function swap(id, text) {
    const element = $(id);
    if (!element) return;
    const scrolled = element.querySelector(".picture")?.scrollLeft || 0;
    element.replaceChildren(...inContext(element, text));
    if (element.querySelector(".picture")) element.querySelector(".picture").scrollLeft = scrolled;
    if (element === panel) showPanel(text);
  }

  function swapAll(parts) {
    const focused = document.activeElement;
    const within = focused.closest("section, aside");
    const key = keyOf(focused);
    for (const [id, [tag, text]] of Object.entries(parts)) {
      tags[id] = tag;
      swap(id, text);
    }
    if (focused.isConnected || !within) return;
    const again = (key && same(within, key, focused.dataset[key])) || (within === panel && !panel.hidden ? panel : null);
    again?.focus({ preventScroll: true });
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
    const query = { ...asked(), have: Object.values(tags).join(".") };
    try {
      const answer = await fetch(`ui/parts?${new URLSearchParams(query)}`, { cache: "no-store" });
      if (answer.status !== 200) throw new Error(`status ${answer.status}`);
      const reply = await answer.json();
      ahead = reply.now - Date.now() / 1000;
      nodes = reply.nodes;
      view.resource = reply.resource;
      swapAll(reply.parts);
      if (document.activeElement !== form.elements.resource) form.elements.resource.value = view.resource;
      rove();
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

  // The panel

  function showPanel(text) {
    panel.hidden = !text;
  }

  async function open(key, name) {
    const wasIn = panel.contains(document.activeElement);
    if (!wasIn) Object.assign(opener, { key, text: name });
    await change({ node: "", pod: "", [key]: name });
    if (view[key] !== name || panel.hidden) return;
    panel.scrollTop = 0;
    panel.focus({ preventScroll: true });
  }

  async function close() {
    delete tags.panel;
    swap("panel", "");
    await change({ node: "", pod: "" });
    if (opener.key) same(document.querySelector("main"), opener.key, opener.text)?.focus();
  }

  // One tile is in the order of the tab key, arrow keys go on from there.
  function rove() {
    const tiles = document.querySelectorAll(".tile");
    const at = $("map").querySelector(".tile:focus") || tiles[0];
    for (const tile of tiles) tile.tabIndex = tile === at ? 0 : -1;
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
    rove();
  }

  // What fits

  async function countFits(event) {
    event.preventDefault();
    const button = $("fits-form").querySelector("button");
    const result = $("fits-result");
    button.disabled = true;
    result.replaceChildren("counting …");
    try {
      const answer = await fetch("ui/fits", {
        method: "POST", cache: "no-store", body: $("manifest").value, headers: { "Content-Type": "application/yaml" },
      });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      result.replaceChildren(...parsed(await answer.text()));
    } catch (problem) {
      result.replaceChildren(`not reachable: ${problem.message}`);
    }
    button.disabled = false;
    await change({ fits: result.querySelector("[data-fits]")?.dataset.fits || "" });
  }

  // What is shown

  function change(what) {
    Object.assign(view, what);
    const query = new URLSearchParams(asked()).toString();
    history.replaceState(null, "", query ? `ui?${query}` : "ui");
    return poll();
  }

  function filter() {
    const { resource, name, policy, state, room } = form.elements;
    change({
      resource: resource.value, name: name.value.trim(), policy: policy.value, state: state.value, room: room.value, open: "",
    });
  }

  function click(event) {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const hit = event.target.closest("main a[href^='ui']");
    if (!hit) return;
    event.preventDefault();
    const key = keyOf(hit);
    if (key === "node" || key === "pod") open(key, hit.dataset[key]);
    else if (hit.classList.contains("close")) close();
    else follow(hit);
  }

  function follow(link) {
    const query = new URL(link.href).searchParams;
    change(Object.fromEntries(Object.keys(view).map((key) => [key, query.get(key) || (key === "resource" ? "cpu" : "")])));
    fill();
  }

  function fill() {
    for (const key of ["name", "policy", "state", "room"]) form.elements[key].value = view[key];
  }

  function start() {
    const query = new URLSearchParams(location.search);
    for (const key of Object.keys(view)) view[key] = query.get(key) || view[key];
    view.resource = document.body.dataset.resource;
    document.documentElement.classList.add("js");
    $("fits").hidden = false;
    showPanel(panel.children.length);
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
    document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !panel.hidden) close(); });
    poll();
  }

  start();
})();
