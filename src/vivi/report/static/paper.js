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
