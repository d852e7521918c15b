(() => {
  // Curves of training runs. Point at a step for the values there; drag over steps to see only these; double-click, or
  // press Escape, to see all of them. All panels show the same steps.
  const WIDTH = 380, HEIGHT = 180, LEFT = 46, RIGHT = 6, TOP = 8, BOTTOM = 20;
  const across = WIDTH - LEFT - RIGHT, down = HEIGHT - TOP - BOTTOM;
  const make = (parent, name, attributes = {}, text = "") => {
    const inSvg = parent.namespaceURI.endsWith("svg") || name === "svg";
    const made = document.createElementNS(inSvg ? "http://www.w3.org/2000/svg" : parent.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    parent.append(made);
    return made;
  };
  const printed = (value) => {
    const size = Math.abs(value);
    return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  };
  const ticks = (low, high, most) => {
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const first = Math.ceil(low / step - 1e-9);
    return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(12)));
  };
  const nearest = (steps, step) => steps.reduce((best, s, k) => (Math.abs(s - step) < Math.abs(steps[best] - step) ? k : best), 0);
  const nearestOf = (steps, step) => steps[nearest(steps, step)];

  for (const root of document.querySelectorAll(".curves")) {
    const { runs, panels } = JSON.parse(root.querySelector("script").textContent);
    const steps = [...new Set(panels.flatMap((panel) => panel.lines.flatMap((line) => line.steps)))].sort((a, b) => a - b);
    const whole = [steps[0], steps.at(-1) > steps[0] ? steps.at(-1) : steps[0] + 1];
    const hidden = new Set();
    let view = whole, at = null, drag = null;

    const controls = make(root, "p", { class: "runs" });
    runs.forEach((name, run) => {
      const label = make(controls, "label");
      const box = make(label, "input", { type: "checkbox", checked: "" });
      make(label, "i", { class: `dot run-${run % 6}` });
      make(label, "bdi", {}, name);
      box.addEventListener("change", () => { box.checked ? hidden.delete(run) : hidden.add(run); draw(); });
    });
    const reset = make(controls, "button", { type: "button", hidden: "" }, "Show all steps");
    const zoom = (to) => { view = to; reset.hidden = to === whole; draw(); };
    reset.addEventListener("click", () => zoom(whole));

    const charts = make(root, "div", { class: "charts" });
    const more = make(root, "details");
    make(more, "summary", {}, "Gradients, learning rate and speed");
    const folded = make(more, "div", { class: "charts" });
    more.hidden = !panels.some((panel) => panel.folded);
    for (const panel of panels) {
      const figure = make(panel.folded ? folded : charts, "figure");
      make(figure, "h3", {}, panel.title);
      panel.svg = make(figure, "svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: 0, role: "img" });
      panel.values = make(figure, "figcaption");
      listen(panel.svg);
    }
    const x = (step) => ((step - view[0]) / (view[1] - view[0])) * across;
    draw();

    function draw() {
      for (const panel of panels) {
        const { svg } = panel, lines = panel.lines.filter((line) => !hidden.has(line.run));
        // Also the ends of what crosses the view.
        const inView = ({ steps, values }) => values.filter((_, k) => (steps[k + 1] ?? steps[k]) >= view[0] && (steps[k - 1] ?? steps[k]) <= view[1]);
        const shown = lines.flatMap((line) => [...inView(line), ...(line.chance === undefined ? [] : [line.chance])]);
        let low = Math.min(...shown), high = Math.max(...shown);
        if (!shown.length) [low, high] = [0, 1];
        if (low > 0 && low < 0.5 * high) low = 0;
        if (high === low) high = low + (Math.abs(low) || 1);
        const margin = 0.04 * (high - low);
        [low, high] = [low && low - margin, high + margin];
        const y = (value) => down * (1 - (value - low) / (high - low));
        svg.replaceChildren();
        for (const tick of ticks(low, high, 4)) {
          make(svg, "line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: TOP + y(tick), y2: TOP + y(tick) });
          make(svg, "text", { x: LEFT - 6, y: TOP + y(tick) + 4, "text-anchor": "end" }, printed(tick));
        }
        for (const tick of ticks(...view, 5)) {
          make(svg, "text", { x: LEFT + x(tick), y: HEIGHT - 4, "text-anchor": "middle" }, tick.toLocaleString("en"));
        }
        const plot = make(svg, "svg", { x: LEFT, y: TOP, width: across, height: down });
        for (const { run, steps: at, values, chance } of lines) {
          const kind = `run-${run % 6}`;
          if (chance !== undefined) make(plot, "path", { class: `line chance ${kind}`, d: `M0 ${y(chance)}H${across}` });
          make(plot, "polyline", { class: `line ${kind}`, points: values.map((value, k) => `${x(at[k])},${y(value)}`).join(" ") });
          if (values.length === 1) make(plot, "circle", { class: kind, cx: x(at[0]), cy: y(values[0]), r: 3 });
        }
        panel.cursor = make(plot, "g");
        panel.y = y;
        const ends = lines.map((line) => `${runs[line.run]} from ${printed(line.values[0])} to ${printed(line.values.at(-1))}`);
        svg.setAttribute("aria-label", `${panel.title}, over steps. ${ends.join("; ")}.`);
      }
      point();
    }

    // The values at the step that is pointed at, or at the last one that is shown.
    function point() {
      for (const { lines, cursor, values, y } of panels) {
        cursor.replaceChildren();
        values.replaceChildren();
        if (drag) make(cursor, "rect", { class: "zoom", x: Math.min(x(drag[0]), x(drag[1])), width: Math.abs(x(drag[1]) - x(drag[0])), height: down });
        const step = at ?? nearestOf(steps, view[1]);
        make(values, "span", {}, `step ${step.toLocaleString("en")}`);
        for (const line of lines.filter((each) => !hidden.has(each.run))) {
          const k = nearest(line.steps, step), value = line.values[k];
          const span = make(values, "span");
          make(span, "i", { class: `dot run-${line.run % 6}` });
          const hits = line.queries ? `, ${Math.round(value * line.queries)} of ${line.queries}` : "";
          const chance = line.chance === undefined ? "" : ` (by chance ${printed(line.chance)}${line.queries ? `, ${(line.chance * line.queries).toFixed(1)}` : ""})`;
          make(span, "span", {}, `${printed(value)}${line.steps[k] === step ? "" : ` at step ${line.steps[k].toLocaleString("en")}`}${hits}${chance}`);
          if (at !== null) make(cursor, "circle", { class: `run-${line.run % 6}`, cx: x(line.steps[k]), cy: y(value), r: 3 });
        }
        if (at !== null) make(cursor, "path", { class: "at", d: `M${x(at)} 0V${down}` });
      }
    }

    function listen(svg) {
      const stepAt = (event) => {
        const box = svg.getBoundingClientRect();
        const share = ((event.clientX - box.left) * (WIDTH / box.width) - LEFT) / across;
        return view[0] + Math.min(Math.max(share, 0), 1) * (view[1] - view[0]);
      };
      svg.addEventListener("pointerdown", (event) => {
        if (event.button) return;
        svg.setPointerCapture(event.pointerId);
        drag = [stepAt(event), stepAt(event)];
      });
      svg.addEventListener("pointermove", (event) => {
        at = nearestOf(steps, stepAt(event));
        if (drag) drag[1] = stepAt(event);
        point();
      });
      svg.addEventListener("pointerup", () => {
        const chosen = drag?.sort((a, b) => a - b);
        drag = null;
        const enough = chosen && x(chosen[1]) - x(chosen[0]) > 8 && steps.filter((s) => s >= chosen[0] && s <= chosen[1]).length > 1;
        enough ? zoom(chosen) : point();
      });
      svg.addEventListener("pointercancel", () => { drag = null; point(); });
      svg.addEventListener("pointerleave", () => { if (!drag) { at = null; point(); } });
      svg.addEventListener("dblclick", () => zoom(whole));
      svg.addEventListener("keydown", (event) => {
        const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (event.key === "Escape") zoom(whole);
        if (!move) return;
        event.preventDefault();
        const seen = steps.filter((s) => s >= view[0] && s <= view[1]);
        const k = seen.indexOf(at ?? seen.at(-1)) + move;
        at = seen[Math.min(Math.max(k, 0), seen.length - 1)];
        point();
      });
    }
  }
})();
