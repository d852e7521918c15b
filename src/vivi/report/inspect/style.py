"""The look of the page of `vivi inspect`, and its few lines of script: it is useful without them."""

STYLE = """
:root {
  --page: #fbfbfc; --card: #fff; --text: #16181d; --muted: #5a6170; --line: #e3e5ea; --accent: #3451d1;
  --faint: #dfe4fa; --shade: #f1f2f6; --mark: #9aa1b0;
  color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101216; --card: #171a20; --text: #eceef2; --muted: #a0a7b5; --line: #2a2f39; --accent: #8ea2ff;
    --faint: #2b335c; --shade: #1e222a; --mark: #69707f;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 1rem; }
body {
  margin: 0 auto; max-width: 1560px; padding: 0 clamp(1rem, 4vw, 3.5rem) 4rem; background: var(--page);
  color: var(--text); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  font-variant-numeric: tabular-nums;
}
h1, h2, h3, p, dl, dd, ol, ul, figure { margin: 0; padding: 0; }
h1, h2, h3, .path, .reason li, summary, .warning { overflow-wrap: anywhere; }
a { color: var(--accent); }
code, .path, .reason ul { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .875em; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 3px; }

header { padding-top: clamp(2rem, 6vw, 4.5rem); }
.eyebrow {
  color: var(--accent); font-size: .8125rem; font-weight: 650; letter-spacing: .08em; text-transform: uppercase;
}
h1 { font-size: clamp(2rem, 5vw, 3.25rem); line-height: 1.1; letter-spacing: -.025em; font-weight: 680; }
.path { color: var(--muted); margin-top: .6rem; }
.totals {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(9.5rem, 45%), 1fr)); gap: 1.75rem 1.5rem;
  margin: 2.5rem 0 0; padding: 1.75rem 0; border: solid var(--line); border-width: 1px 0;
}
dt { color: var(--muted); font-size: .875rem; }
.totals .value {
  font-size: clamp(1.4rem, 2.4vw, 1.9rem); line-height: 1.3; font-weight: 640; letter-spacing: -.02em;
}
.note, .hint, .reference, .meta, figcaption, .empty, footer { color: var(--muted); font-size: .875rem; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; margin-top: 1.1rem; font-size: .9375rem; }
nav a { text-decoration: none; padding: .25rem 0; }
nav a:hover { text-decoration: underline; text-underline-offset: .25em; }

section { margin-top: clamp(3rem, 7vw, 5rem); }
h2 {
  margin-bottom: 1.25rem; font-size: clamp(1.4rem, 3vw, 1.8rem); font-weight: 660; line-height: 1.2;
  letter-spacing: -.02em;
}
h3 { font-size: 1.0625rem; line-height: 1.35; font-weight: 620; }
.intro { color: var(--muted); max-width: 46rem; }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1.25rem clamp(1rem, 2vw,
  1.5rem); min-width: 0;
}
.columns, .charts {
  display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr));
}
.charts { margin-top: 1.25rem; }
table { border-collapse: collapse; width: 100%; margin-top: .75rem; }
th, td {
  padding: .55rem 0 .55rem .75rem; text-align: right; border-top: 1px solid var(--line); font-weight: inherit;
}
th:first-child { padding-left: 0; text-align: left; }
thead th, thead .reference { border: 0; color: var(--muted); font-size: .8125rem; vertical-align: bottom; }
td { white-space: nowrap; font-weight: 600; }
td.reference { font-size: inherit; font-weight: 400; }
.std { font-weight: 400; color: var(--muted); }
@media (max-width: 34rem) { .std { display: block; font-size: .8125rem; } }
.hint { margin-top: .75rem; }
.facts > div {
  padding: .55rem 0; border-top: 1px solid var(--line); display: grid; grid-template-columns: 1fr auto; gap:
  .1rem 1rem;
}
.facts { margin-top: .75rem; }
.facts > div:first-child { border: 0; }
.facts dt { color: inherit; font-size: 1rem; }
.facts dd { font-weight: 600; text-align: right; overflow-wrap: anywhere; }
.facts .list { grid-column: 1 / -1; text-align: left; font-weight: 400; color: var(--muted); }
.facts dd .reference { font-weight: 400; margin-left: .4rem; }
.facts .meter {
  grid-column: 1 / -1; height: 5px; border-radius: 3px; background: var(--faint); overflow: hidden; margin-top:
  .35rem;
}
.meter i { display: block; height: 100%; background: var(--accent); }

.chart { display: block; width: 100%; height: auto; overflow: visible; margin: .9rem 0 .6rem; }
.chart text { font-size: 11px; fill: var(--muted); font-family: inherit; }
@media (max-width: 34rem) { .chart text { font-size: 13px; } }
.chart .axis { fill: var(--text); }
.chart .grid { stroke: var(--line); }
.bar { fill: var(--accent); }
.bar:hover { opacity: .75; }
details table { font-size: .875rem; }
details th, details td { padding-block: .3rem; }
summary { cursor: pointer; }
figure details summary { color: var(--muted); font-size: .875rem; margin-top: .5rem; }

.filter { display: flex; flex-wrap: wrap; align-items: center; gap: .5rem .9rem; margin-top: 1.25rem; }
.filter[hidden] { display: none; }
.filter label, .filter span { font-size: .875rem; color: var(--muted); }
.filter input {
  font: inherit; color: inherit; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .45rem .75rem; width: 20rem; max-width: 100%;
}
.strip { margin-top: 2.75rem; min-width: 0; }
.strip[hidden] { display: none; }
.meta { display: flex; flex-wrap: wrap; gap: 0 1.1rem; margin-top: .15rem; }
.warning {
  margin-top: .5rem; padding: .35rem .75rem; border-left: 3px solid var(--accent); background: var(--shade);
  font-size: .875rem; border-radius: 0 6px 6px 0;
}
.timeline { display: flex; align-items: center; gap: .75rem; margin-top: .4rem; }
.timeline span { color: var(--muted); font-size: .75rem; }
.timeline svg { flex: 1; min-width: 0; height: 5px; border-radius: 2.5px; fill: var(--mark); }
.timeline .all { fill: var(--line); }
.timeline path { stroke: var(--page); stroke-width: 2px; vector-effect: non-scaling-stroke; }
.film { overflow-x: auto; padding: .9rem 0 .75rem; scrollbar-width: thin; scrollbar-color: var(--line) transparent; }
.film ol { display: flex; width: max-content; list-style: none; }
.shot, .gap { position: relative; flex: none; }
.shot { border-top: 3px solid var(--accent); padding-top: .45rem; min-width: 8.5rem; }
.shot ~ .shot { margin-left: 25px; }
.shot + .shot::before, .gap::before, .gap + .shot::before {
  content: ""; position: absolute; left: -13px; top: -3px; bottom: 0; border-left: 1px dashed var(--accent);
}
.gap {
  align-self: stretch; display: flex; align-items: center; width: 5.5rem; margin-left: 25px; padding: 0 .25rem;
  color: var(--muted); font-size: .8125rem; line-height: 1.35; text-align: center;
}
.head {
  display: flex; justify-content: space-between; gap: 1rem; font-size: .875rem; line-height: 1.4; white-space:
  nowrap;
}
.head b { font-weight: 640; }
.head span, .when { color: var(--muted); font-size: .8125rem; line-height: 1.4; }
.when { white-space: nowrap; }
.frames { display: flex; gap: 3px; margin-top: .5rem; }
.frame { display: block; flex: none; color: var(--muted); text-decoration: none; }
.frame img, .broken span { display: block; height: 88px; width: auto; border-radius: 3px; background: var(--shade); }
.frame:hover img { filter: brightness(1.1); }
.frame i { display: block; font-style: normal; font-size: .75rem; line-height: 1.7; }
.broken span {
  display: grid; place-items: center; width: 96px; border: 1px dashed var(--muted); font-size: .8125rem;
}
@media (min-width: 900px) { .frame img, .broken span { height: 112px; } }

.count {
  display: inline-block; min-width: 2.2em; padding: 0 .5em; margin-right: .35em; border-radius: 1em; background:
  var(--faint); color: var(--text); font-size: .8125rem; font-weight: 600; text-align: center;
}
#problems h3 { margin: 2rem 0 .75rem; }
#problems h3 .count { margin-left: .35em; }
.reason { border-top: 1px solid var(--line); padding: .6rem 0; }
.reason ul { list-style: none; margin: .6rem 0 .4rem; color: var(--muted); columns: 22rem; column-gap: 2.5rem; }
.settings {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 12rem), 1fr)); gap: 1.25rem 1.5rem;
  margin-top: 1.25rem;
}
.settings dd { font-weight: 600; overflow-wrap: anywhere; }
footer { margin-top: 5rem; padding-top: 1.25rem; border-top: 1px solid var(--line); }

dialog {
  border: 0; border-radius: 14px; padding: 1rem; background: var(--card); color: var(--text); max-width:
  min(94vw, 62rem);
}
dialog::backdrop { background: rgb(8 10 14 / .72); }
dialog img {
  display: block; margin: 0 auto; height: min(62vh, 432px); max-width: 100%; object-fit: contain; border-radius:
  6px;
}
dialog figcaption { margin-top: .75rem; overflow-wrap: anywhere; }
.controls { display: flex; flex-wrap: wrap; gap: .5rem; margin-top: .75rem; }
.controls button {
  font: inherit; font-size: .9375rem; color: inherit; background: var(--shade); border: 1px solid var(--line);
  border-radius: 8px; padding: .4rem .9rem; cursor: pointer;
}
.controls [data-close] { margin-left: auto; }

@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav, .filter, dialog { display: none; }
  section { margin-top: 2rem; }
  .film { overflow: visible; }
  .film ol { width: auto; flex-wrap: wrap; row-gap: .75rem; }
  .frames { flex-wrap: wrap; }
  .shot { flex: 0 1 auto; }
  .frame img, .broken span { height: 60px; }
  .card, .shot { break-inside: avoid; }
  .bar, .timeline, .meter, .count, .shot { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

SCRIPT = """
(() => {
  const strips = [...document.querySelectorAll(".strip")];

  const filter = document.getElementById("filter");
  if (filter) {
    const shown = document.getElementById("shown");
    filter.parentElement.hidden = false;
    filter.addEventListener("input", () => {
      const wanted = filter.value.trim().toLowerCase();
      for (const strip of strips) strip.hidden = !strip.dataset.name.includes(wanted);
      shown.textContent = wanted ? `${strips.filter((s) => !s.hidden).length} of ${strips.length} shown` : "";
    });
  }

  // One tab stop for each strip; the arrow keys go from frame to frame.
  const framesOf = (frame) => [...frame.closest(".film").querySelectorAll("a.frame")];
  const neighbour = (frame, step) => {
    const frames = framesOf(frame);
    return frames[frames.indexOf(frame) + step];
  };
  for (const strip of strips) {
    [...strip.querySelectorAll("a.frame")].forEach((frame, i) => { frame.tabIndex = i ? -1 : 0; });
  }

  const viewer = document.getElementById("viewer");
  let current = null;
  const show = (frame) => {
    if (!frame) return;
    current = frame;
    const picture = frame.querySelector("img");
    viewer.querySelector("img").src = frame.href;
    viewer.querySelector("img").alt = picture.alt;
    const name = frame.closest(".strip").querySelector("h3").textContent;
    viewer.querySelector("figcaption").textContent = `${picture.alt} · ${name}`;
    for (const button of viewer.querySelectorAll("[data-go]")) {
      button.disabled = !neighbour(frame, Number(button.dataset.go));
    }
    if (!viewer.open) viewer.showModal();
  };
  document.addEventListener("click", (event) => {
    const frame = event.target.closest("a.frame");
    if (frame && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      show(frame);
    }
  });
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    if (viewer.open) {
      show(neighbour(current, step));
    } else if (document.activeElement.matches("a.frame")) {
      const next = neighbour(document.activeElement, step);
      if (!next) return;
      document.activeElement.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
      event.preventDefault();
    }
  });
  viewer.addEventListener("click", (event) => {
    if (event.target === viewer || event.target.closest("[data-close]")) viewer.close();
    const go = event.target.closest("[data-go]");
    if (go) show(neighbour(current, Number(go.dataset.go)));
  });
  viewer.addEventListener("close", () => current && current.focus());
})();
"""
