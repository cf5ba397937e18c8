// The page of the admin port: one stream of server-sent events in, tables and one chart out.
// Whatever comes from clients is put in as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const POINTS = 120; // seconds in the chart
const EVENTS_MAX = 100;
const QUIET_MS = 15000; // a stream that says nothing for so long is dead
const history = []; // {ok, no} a second
let token = ""; // in memory only
let before = null; // the counts of the last overview
let lastDenied = new Map(); // key -> {reason, retry_after_ms, time}
let asked = 0; // counts connections, so that an old one can't write

// --- small helpers

function number(n) {
  if (n === null || n === undefined) return "–";
  return n.toLocaleString("en");
}

function rate(n) {
  return n >= 100 ? Math.round(n).toLocaleString("en") : (Math.round(n * 10) / 10).toString();
}

function counted(n, noun) {
  return `${number(n)} ${noun}${n === 1 ? "" : "s"}`;
}

function clock(ms) {
  return new Date(ms).toLocaleTimeString();
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// A name from a client, with the characters written out that would turn or hide what stands around them.
function plain(text) {
  return text.replace(/[\u200b-\u200f\u2028-\u202e\u2060-\u206f\u061c\ufeff]/g, (it) => `\\u{${it.charCodeAt(0).toString(16)}}`);
}

// Rows are kept by their key, so that a selection or the focus survives an update.
function rows(section, list, fill) {
  const body = section.querySelector("tbody");
  const old = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  list.forEach((item, place) => {
    let row = old.get(item.key);
    old.delete(item.key);
    if (!row) {
      row = element("tr");
      row.dataset.key = item.key;
      // A long name is cut; the whole of it can be asked for.
      const name = element("span", plain(item.key), "name");
      if (item.key.length > 100) name.title = plain(item.key);
      const cell = row.insertCell();
      cell.className = "k";
      cell.append(name);
    }
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] || null);
    fill(row, item);
  });
  old.forEach((row) => row.remove());
  section.classList.toggle("has", list.length > 0);
}

// The cells after `first`.
function cells(row, first, values) {
  values.forEach(([text, className, label], place) => {
    let cell = row.cells[first + place];
    if (!cell) {
      cell = row.insertCell();
      if (className) cell.className = className;
      if (label) cell.dataset.label = label;
    }
    if (typeof text === "string") {
      if (cell.textContent !== text) cell.textContent = text;
    } else {
      cell.replaceChildren(text);
    }
  });
}

function list(parent, texts) {
  parent.replaceChildren(...texts.map((text) => element("li", text)));
}

// --- parts of the page

// How it is: "up", "warn", "down", or nothing while that is not known.
function status(how, text) {
  $("status").className = how;
  if ($("status-text").textContent !== text) $("status-text").textContent = text;
}

function path(values, max) {
  const step = 600 / (POINTS - 1);
  const start = 600 - (values.length - 1) * step;
  const points = values.map((value, n) => `${(start + n * step).toFixed(1)},${(138 - (value / max) * 130).toFixed(1)}`);
  return { line: "M" + points.join("L"), area: `M${start.toFixed(1)},138L${points.join("L")}L600,138Z` };
}

function chart() {
  const svg = $("chart");
  const max = Math.max(1, ...history.map((point) => Math.max(point.ok, point.no)));
  const shapes = [];
  const made = (name, attributes) => {
    const shape = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => shape.setAttribute(key, value));
    shapes.push(shape);
  };
  [8, 73, 138].forEach((y) => made("line", { x1: 0, x2: 600, y1: y, y2: y }));
  for (const kind of ["ok", "no"]) {
    if (history.length > 1) made("path", { class: kind, d: path(history.map((point) => point[kind]), max).area });
  }
  svg.replaceChildren(...shapes);
  $("chart-max").textContent = `${rate(max)} a second`;
}

function decisions(now, time) {
  const denied = Object.values(now.denied).reduce((sum, n) => sum + n, 0);
  const counts = { ok: now.allowed, no: denied, by: now.denied, time };
  if (before && time > before.time && counts.ok >= before.ok && counts.no >= before.no) {
    const seconds = (time - before.time) / 1000;
    const point = { ok: (counts.ok - before.ok) / seconds, no: (counts.no - before.no) / seconds };
    history.push(point);
    while (history.length > POINTS) history.shift();
    $("rate-ok").textContent = rate(point.ok);
    $("rate-denied").textContent = rate(point.no);
    const sum = history.reduce((sum, it) => ({ ok: sum.ok + it.ok, no: sum.no + it.no }), { ok: 0, no: 0 });
    const share = sum.ok + sum.no > 0 ? (100 * sum.no) / (sum.ok + sum.no) : 0;
    $("share-denied").textContent = `${rate(share)} %`;
    const by = Object.entries(counts.by).map(([reason, n]) => [reason, (n - (before.by[reason] || 0)) / seconds]);
    list($("reasons"), by.filter(([, n]) => n > 0).map(([reason, n]) => `${reason}: ${rate(n)} a second`));
    chart();
  }
  before = counts;
}

function told(ms) {
  if (ms === null || ms === undefined) return "no retry will help";
  return ms < 1000 ? `come back in ${ms}\u00a0ms` : `come back in ${rate(ms / 1000)}\u00a0s`;
}

function denied(items) {
  rows($("denied"), items, (row, item) => {
    const last = lastDenied.get(item.key);
    const said = last ? `${clock(last.time)} ${last.reason}: ${told(last.retry_after_ms)}` : "";
    const count = item.error ? `${number(item.count - item.error)} to ${number(item.count)}` : number(item.count);
    cells(row, 1, [[plain(item.domain), "", "domain"], [count, "n", "denials"], [said, "", "last"]]);
  });
}

function used(items) {
  rows($("used"), items, (row, item) => {
    const count = item.error ? `${number(item.count - item.error)} to ${number(item.count)}` : number(item.count);
    cells(row, 1, [[plain(item.domain), "", "domain"], [count, "n", "units"]]);
  });
}

function meter(limit) {
  const outer = element("span", undefined, "meter");
  const part = limit.capacity > 0 ? Math.min(1, (limit.used || 0) / limit.capacity) : 1;
  const bar = element("i");
  bar.style.width = `${(part * 100).toFixed(1)}%`;
  if (part >= 0.999) outer.classList.add("full");
  const seconds = limit.window_seconds || limit.timeout_seconds;
  const span = limit.kind === "rolling" ? `in ${seconds} s` : "at a time";
  outer.append(bar, element("span", `${number(limit.used)} of ${number(limit.capacity)} ${span}`));
  return outer;
}

function limits(items, total) {
  rows($("limits"), items, (row, limit) => {
    const state = limit.status === "decreasing" ? ` (decreasing to ${number(limit.pending_decrease_to)})` : "";
    cells(row, 1, [
      [meter(limit)],
      [number(limit.available), "n", "left"],
      [number(limit.capacity) + state, "n", "capacity"],
      [limit.slab ? number(limit.slab.held) : "–", "n", "in slabs here"],
      [number(limit.debt), "n", "debt"],
      [limit.origin, "", "written in"],
    ]);
  });
  const more = total > items.length ? `The ${number(items.length)} that are used most, of ${number(total)}. The beginning of a key finds others.` : "";
  $("limits-note").textContent = more;
  $("limits-empty").textContent = $("prefix").value ? "No limit has such a key." : "There are no limits yet.";
}

// The ledger knows what is used. While it can't be asked, what was known last stays.
function limitsUnknown() {
  const unknown = "What is used is not known while the ledger does not answer.";
  $("limits-note").textContent = $("limits").classList.contains("has") ? `${unknown} These are the last numbers.` : "";
  $("limits-empty").textContent = unknown;
}

function line(items) {
  rows($("line"), items, (row, item) => cells(row, 1, [[number(item.jobs), "n"], [number(item.amount), "n"]]));
}

function config(it) {
  const failing = it.failing_since ? ` The files have been wrong since ${new Date(it.failing_since).toLocaleString()}; what was live stays live.` : "";
  $("config-text").textContent = `Version ${it.version} has been live since ${new Date(it.loaded_at).toLocaleString()}.${failing}`;
  const place = (problem) => [problem.file, problem.line].filter((part) => part).join(":");
  list($("problems"), it.problems.map((problem) => `${place(problem)}: ${problem.field ? problem.field + ": " : ""}${problem.message}`));
  list($("files"), it.files);
}

function event(name, data) {
  if (name === "denied") {
    lastDenied.set(data.key, data);
    if (lastDenied.size > 2000) lastDenied.delete(lastDenied.keys().next().value);
  }
  const texts = {
    denied: () => `${data.reason}: ${counted(data.denials, "request")} denied by ${plain(data.key)}`,
    reload: () => (data.result === "ok" ? `version ${data.version} is live` : `the files are wrong: ${counted(data.problems.length, "problem")}`),
    ledger: () => (data.up ? "the ledger answers" : "the ledger does not answer"),
  };
  const item = element("li");
  const time = element("time", clock(data.time));
  item.append(time, document.createTextNode(texts[name]()));
  $("events").prepend(item);
  while ($("events").children.length > EVENTS_MAX) $("events").lastChild.remove();
  $("happened").classList.add("has");
}

function overview(data) {
  const wrong = data.config.problems.length > 0 ? ", but the configuration has problems" : "";
  status(data.ready !== null ? "down" : wrong ? "warn" : "up", (data.ready === null ? "ready" : `not ready: ${data.ready}`) + wrong);
  $("version").textContent = data.version;
  decisions(data.decisions, data.time);
  denied(data.denied);
  used(data.used);
  if (data.limits) limits(data.limits, data.limits_total);
  else limitsUnknown();
  line(data.line);
  config(data.config);
  $("ledger-text").textContent = data.ledger_up ? "The ledger answers." : `The ledger does not answer: ${(data.ready || "it is away").replace(/^ledger: /, "")}`;
}

// --- what the hub and a change of ledgers add; absent elsewhere

async function beside() {
  try {
    const ledger = await fetch("/v1/ledger", { headers: headers() });
    if (ledger.ok) {
      const all = (await ledger.json()).ledgers;
      list($("ledgers"), all.map((it) => it.uri + (it.safe_after > Date.now() ? `, knows enough alone from ${new Date(it.safe_after).toLocaleString()}` : "")));
    }
    const peers = await fetch("/v1/peers", { headers: headers() });
    const there = peers.ok ? (await peers.json()).peers : [];
    $("peers").hidden = $("peers-title").hidden = there.length === 0;
    const slabs = (it) => (Array.isArray(it.slabs) ? it.slabs.reduce((sum, slab) => sum + (slab.held || 0), 0) : it.slabs);
    const keyed = there.map((it) => ({ ...it, key: `${it.name} ${it.address}` }));
    const body = $("peers").querySelector("tbody");
    body.replaceChildren();
    keyed.forEach((it) => cells(body.insertRow(), 0, [[it.name, "k"], [it.address, "", "address"], [it.version, "", "version"], [rate(it.chains_per_second), "n", "chains a second"], [number(slabs(it)), "n", "in slabs"]]));
  } catch (error) {
    // The stream tells that the server is away.
  }
}

// --- the stream

function headers() {
  return token ? { authorization: `Bearer ${token}` } : {};
}

function login(text) {
  $("main").hidden = true;
  $("login").hidden = false;
  $("login-error").textContent = text;
  status("", "the admin token is needed");
  $("token").focus();
}

// One message of a server-sent event stream.
function message(text) {
  let name = "message";
  const data = [];
  for (const row of text.split("\n")) {
    if (row.startsWith("event:")) name = row.slice(6).trim();
    if (row.startsWith("data:")) data.push(row.slice(5).trim());
  }
  if (data.length === 0) return;
  const body = JSON.parse(data.join("\n"));
  if (name === "overview") overview(body);
  else event(name, body);
}

async function listen() {
  const own = ++asked;
  const stop = new AbortController();
  let wakes = setTimeout(() => stop.abort(), QUIET_MS);
  const query = new URLSearchParams({ prefix: $("prefix").value });
  try {
    const answer = await fetch(`/v1/live?${query}`, { headers: headers(), signal: stop.signal, cache: "no-store" });
    if (answer.status === 401) {
      login(token ? "That is not the token of this server." : "");
      token = "";
      return;
    }
    if (!answer.ok) throw new Error(`the server says ${answer.status}`);
    $("login").hidden = true;
    $("main").hidden = false;
    beside();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (own !== asked) {
        stop.abort();
        return;
      }
      if (done) break;
      clearTimeout(wakes);
      wakes = setTimeout(() => stop.abort(), QUIET_MS);
      rest += value;
      const parts = rest.split("\n\n");
      rest = parts.pop();
      parts.forEach(message);
    }
    throw new Error("the server closed the stream");
  } catch (error) {
    if (own !== asked) return;
    status("down", "the server is away, trying again");
    before = null;
    setTimeout(() => own === asked && listen(), 1000);
  } finally {
    clearTimeout(wakes);
  }
}

$("login").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  token = $("token").value.trim();
  $("token").value = "";
  listen();
});

let typed = 0;
$("prefix").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(listen, 300);
});

listen();
setInterval(() => $("main").hidden || beside(), 5000);
