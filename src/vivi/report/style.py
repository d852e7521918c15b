"""The look of the page of `vivi report`, on top of that of `vivi inspect`, and its few lines of script."""

from vivi.report.figures import DARK, LIGHT, Theme
from vivi.report.inspect.style import STYLE as BASE


def _colours(theme: Theme) -> str:
    return " ".join(f"--{group}: {colour};" for group, colour in theme.groups.items())


STYLE = (
    f"""{BASE}
:root {{ {_colours(LIGHT)} --up: #0b7a4b; --down: #b3261e; }}
@media (prefers-color-scheme: dark) {{
  :root {{ {_colours(DARK)} --up: #53c993; --down: #ff8f85; }}
}}
"""
    + """
.lead { max-width: 52rem; margin-top: 1.1rem; font-size: clamp(1.0625rem, 1.6vw, 1.1875rem); line-height: 1.55; }
.lead b, .intro b { font-weight: 620; color: var(--text); }
.totals .note { overflow-wrap: anywhere; }
.totals .up, .up { color: var(--up); }
.totals .down, .down { color: var(--down); }
.badge {
  display: inline-block; vertical-align: .25em; margin-left: .35em; padding: .1rem .6rem; border-radius: 1rem;
  border: 1px solid var(--line); background: var(--shade); color: var(--muted); font-size: .8125rem; font-weight: 600;
  letter-spacing: 0; white-space: nowrap;
}
.intro { max-width: 52rem; }
.intro + .intro, .warning + .warning { margin-top: .5rem; }
.warning { max-width: 52rem; }
.board .card { margin-top: 1.25rem; }
.card > h3 {
  display: flex; flex-wrap: wrap; justify-content: space-between; align-items: baseline; gap: .15rem 1.25rem;
}
.files { font-size: .875rem; font-weight: 400; color: var(--muted); }
.files a, .files span { white-space: nowrap; }

.switch { display: flex; flex-wrap: wrap; align-items: center; gap: 0 .9rem; margin-top: 1.25rem; }
.switch[hidden] { display: none; }
.switch label { display: inline-flex; align-items: center; gap: .6rem; cursor: pointer; padding: .25rem 0; }
.switch input { appearance: none; flex: none; width: 2.35rem; height: 1.35rem; margin: 0; border-radius: 1rem;
  background: var(--mark); position: relative; cursor: pointer; transition: background .15s; }
.switch input::after { content: ""; position: absolute; inset: .175rem auto auto .175rem; width: 1rem; height: 1rem;
  border-radius: 50%; background: #fff; transition: transform .15s; }
.switch input:checked { background: var(--accent); }
.switch input:checked::after { transform: translateX(1rem); }
.switch .hint { margin: 0; }
@media (prefers-reduced-motion: reduce) { .switch input, .switch input::after { transition: none; } }

.scroll { overflow-x: auto; scrollbar-width: thin; scrollbar-color: var(--line) transparent; }
.results { border-collapse: separate; border-spacing: 0; }
.results caption { text-align: left; color: var(--muted); font-size: .875rem; padding-bottom: .25rem; }
/* A caption is as wide as its table; what it says stays in sight. */
.results caption span { position: sticky; left: 0; display: inline-block; max-width: min(60rem, 100vw - 4.5rem); }
.results th, .results td { padding: .5rem .25rem .5rem .75rem; line-height: 1.3; vertical-align: baseline; }
.results td { font-weight: 400; }
.results .best { font-weight: 700; }
.results tbody th, .results thead tr:first-child th:first-child {
  position: sticky; left: 0; z-index: 1; background: var(--card); padding-left: 0; text-align: left; font-weight: 560;
  min-width: 7rem; max-width: clamp(7.5rem, 30vw, 17rem); overflow-wrap: anywhere;
}
.results thead th { vertical-align: bottom; }
.results thead .is-group { white-space: nowrap; color: var(--text); font-weight: 600; }
.results small { display: block; font-size: .78em; font-weight: 400; color: var(--muted); }
.results tbody tr:hover > * { background: var(--shade); }
.results .baseline th::after {
  content: "baseline"; margin-left: .5em; font-size: .78em; font-weight: 400; color: var(--muted);
}
.results .heading th { font-size: .8125rem; font-weight: 600; color: var(--muted); padding-top: 1.1rem; }
.results tbody.paper:not(.only) td, .results tbody.paper:not(.only) th { color: var(--muted); }
.results tbody.paper th { font-weight: 400; }
.dot { display: inline-block; width: .6em; height: .6em; border-radius: 50%; margin-right: .35em; flex: none; }
.natural .dot, .dot.natural { background: var(--natural); }
.specialized .dot, .dot.specialized { background: var(--specialized); }
.structured .dot, .dot.structured { background: var(--structured); }
.own .dot, .dot.own { background: var(--own); }

.tasks th, .tasks td { padding-inline: .3rem; text-align: center; }
.tasks { font-size: .9375rem; }
.tasks thead .span {
  border-bottom: 3px solid var(--line); font-weight: 600; color: var(--text); padding: 0 .3rem .3rem;
}
.tasks thead .span.natural { border-color: var(--natural); }
.tasks thead .span.specialized { border-color: var(--specialized); }
.tasks thead .span.structured { border-color: var(--structured); }
.tasks thead .span.own { border-color: var(--own); }
.tasks thead .task { padding-top: .5rem; }
.tasks .task > span {
  writing-mode: vertical-rl; transform: rotate(180deg); display: inline-flex; align-items: center; max-height: 11rem;
  overflow: hidden; white-space: nowrap;
}
.tasks .task .dot { margin: 0 0 .4em; }
.tasks .first { border-left: 1px solid var(--line); }
.none { color: var(--mark); }

.figures {
  display: grid; gap: 0 1.25rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr));
  align-items: start;
}
.figures img { display: block; width: 100%; min-width: 27rem; height: auto; margin-top: .75rem; border-radius: 4px; }
.figures figcaption, .sheet figcaption { margin-top: .6rem; overflow-wrap: anywhere; }
.sheet { margin-top: 1.25rem; }
.sheet img {
  display: block; max-width: 100%; height: auto; margin-top: .75rem; border-radius: 6px; background: #fff;
}
.sheet > .scroll img { width: auto; max-width: none; }
@media (min-width: 60rem) { .sheet > .scroll img { max-width: 100%; } }
@media (max-width: 60rem) { .sheet > .scroll img { height: 15rem; } #neighbours .scroll img { height: 28rem; } }
.fold { border-top: 1px solid var(--line); padding: .9rem 0; }
.fold:last-child { border-bottom: 1px solid var(--line); }
.fold > summary { font-size: 1.0625rem; font-weight: 620; }
.fold .intro { margin-top: .75rem; }
.fold details summary, .card details summary { color: var(--muted); font-size: .875rem; margin-top: .75rem; }
.plain th, .plain td { font-weight: 400; }
.problems {
  margin-top: .5rem; padding-left: 1.2rem; color: var(--muted); font-size: .875rem; overflow-wrap: anywhere;
}
@media (max-width: 34rem) {
  .board .card, .sheet.card { padding-inline: .9rem; }
  .results th, .results td { padding-left: .55rem; }
  .results .baseline th::after { display: block; margin: 0; }
}
@media print {
  .switch, .files { display: none; }
  .scroll { overflow: visible; }
  .results { font-size: 7.5pt; }
  .results tbody th, .results thead tr:first-child th:first-child { position: static; min-width: 0; }
  .results th, .results td { padding: .15rem .1rem; }
  .figures { grid-template-columns: 1fr 1fr; }
  .figures img { min-width: 0; }
  .dot, .tasks thead .span { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
)

SCRIPT = """
(() => {
  // The paper's rows wait in <details>; with a script they join the tables above when they are asked for.
  for (const board of document.querySelectorAll(".board")) {
    const waiting = [...board.querySelectorAll(".paper-rows")];
    const control = board.querySelector(".switch");
    if (!waiting.length || !control) continue;
    const parts = waiting.map((details) => ({
      details, rows: details.querySelector("tbody"), home: details.querySelector("table"),
      table: details.parentElement.querySelector("table.results"),
    }));
    const input = control.querySelector("input");
    const show = () => parts.forEach(({ rows, home, table }) => (input.checked ? table : home).append(rows));
    for (const { details } of parts) details.hidden = true;
    control.hidden = false;
    input.addEventListener("change", show);
    show(); // a reloaded page may come back checked
  }
})();
"""
