// Keeps the page up to date: reads it again and replaces the parts that have changed; page.py makes all HTML.
"use strict";

(() => {
  const PAUSE_MS = 2000;
  const panel = document.getElementById("panel");
  const live = document.getElementById("live");
  const form = document.getElementById("filter");
  const find = document.getElementById("find");
  const parts = [...document.querySelectorAll("[data-part]")];
  const shown = new Map(parts.map((part) => [part, part.innerHTML])); // as the service sent it
  let opener = null; // the link that opened the panel, where the focus returns
  let ahead = 0; // seconds by which the service's clock is ahead of the browser's
  let timer = 0;
  let latest = 0;
  let isPaused = false;

  const nameOf = (link) => link.dataset.node || link.dataset.pod || link.getAttribute("href");

  const focusOn = (root, name) => {
    [...root.querySelectorAll("a")].find((link) => nameOf(link) === name)?.focus({ preventScroll: true });
  };

  async function refresh() {
    clearTimeout(timer);
    if (document.hidden || isPaused) return;
    latest += 1;
    const current = latest;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      const text = await answer.text();
      if (current !== latest) return; // the address has changed meanwhile
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const page = new DOMParser().parseFromString(text, "text/html");
      ahead = Number(page.body.dataset.now) - Date.now() / 1000;
      parts.forEach((part) => replace(part, page.getElementById(part.id)));
      say(page.body.dataset.problem ? "not ready" : "live", page.body.dataset.problem ? "not ready" : "live");
    } catch (problem) {
      if (current !== latest) return;
      say("lost", `not reachable (${problem.message}), trying again`);
    }
    showTimes();
    timer = setTimeout(refresh, PAUSE_MS);
  }

  function replace(part, fresh) {
    if (shown.get(part) === fresh.innerHTML) return;
    shown.set(part, fresh.innerHTML);
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const scrolled = part.querySelector(".picture")?.scrollLeft || 0;
    part.replaceChildren(...fresh.childNodes);
    if (part.querySelector(".picture")) part.querySelector(".picture").scrollLeft = scrolled;
    if (part === panel) panel.hidden = !panel.children.length;
    if (focused && focused.matches("a")) focusOn(part, nameOf(focused));
  }

  function say(kind, words) {
    // Only changes: a screen reader reads each assignment.
    if (live.dataset.kind === kind && live.textContent === words) return;
    live.dataset.kind = kind;
    live.textContent = words;
  }

  function ago(at) {
    const seconds = Math.max(0, Math.round(Date.now() / 1000 + ahead - at));
    if (seconds < 100) return `${seconds} s ago`;
    if (seconds < 6000) return `${Math.round(seconds / 60)} min ago`;
    return seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} d ago`;
  }

  function showTimes() {
    for (const time of document.querySelectorAll("time[data-at]")) {
      const words = ago(Number(time.dataset.at));
      if (time.textContent !== words) time.textContent = words;
      if (!time.title) time.title = new Date(time.dataset.at * 1000).toLocaleString();
    }
  }

  async function go(address) {
    history.replaceState(null, "", address);
    await refresh();
  }

  function focusOnPanel() {
    panel.scrollTop = 0;
    panel.focus({ preventScroll: true });
  }

  async function search(event) {
    event.preventDefault();
    const query = new URLSearchParams(location.search);
    for (const name of ["node", "pod"]) query.delete(name);
    query.set("find", find.elements.find.value);
    opener = null;
    await go(`ui?${query}`);
    if (!panel.hidden) focusOnPanel();
  }

  async function follow(link) {
    const isOpening = "node" in link.dataset || "pod" in link.dataset;
    if (isOpening && !panel.contains(link)) opener = nameOf(link);
    await go(link.href);
    if (isOpening && !panel.hidden) {
      focusOnPanel();
    } else if (link.classList.contains("close") && opener) {
      focusOn(document.querySelector("main"), opener);
    }
  }

  function click(event) {
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const link = event.target.closest("main a[href^='ui']");
    if (!link) return;
    event.preventDefault();
    if (link.classList.contains("close")) panel.hidden = true;
    follow(link);
  }

  function filter() {
    const query = new URLSearchParams(location.search);
    for (const [name, text] of new FormData(form)) query.set(name, text);
    go(`ui?${query}`);
  }

  function pauseButton() {
    const button = document.createElement("button");
    button.textContent = "Pause";
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      isPaused = !isPaused;
      button.setAttribute("aria-pressed", String(isPaused));
      if (isPaused) say("paused", "paused");
      else refresh();
    });
    return button;
  }

  document.documentElement.classList.add("js");
  live.after(pauseButton());
  form.querySelector("button").hidden = true;
  find.addEventListener("submit", search);
  form.addEventListener("submit", (event) => { event.preventDefault(); filter(); });
  form.addEventListener("input", filter);
  document.addEventListener("click", click);
  document.addEventListener("visibilitychange", refresh);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !panel.hidden) panel.querySelector(".close").click();
  });
  refresh();
})();
