(() => {
  // Curves of training runs. Point at a step for the values there; drag over some steps to see only these;
  // double-click, or press Escape, to see all. All panels show the same steps.
  const WIDTH = 380, HEIGHT = 180, LEFT = 46, RIGHT = 6, TOP = 8, BOTTOM = 20;
  const across = WIDTH - LEFT - RIGHT, down = HEIGHT - TOP - BOTTOM;

  const make = (parent, name, attributes = {}, text = "") => {
    const space = name === "svg" ? "http://www.w3.org/2000/svg" : parent.namespaceURI;
    const made = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    parent.append(made);
    return made;
  };
  const grouped = (number) => number.toLocaleString("en");
  const printed = (value) => (Math.abs(value) < 1000 ? `${Number(value.toPrecision(3))}` : grouped(Math.round(value)));
  const ticks = (low, high, most) => {
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(12)));
  };
  const nearest = (steps, step) =>
    steps.reduce((best, each, k) => (Math.abs(each - step) < Math.abs(steps[best] - step) ? k : best), 0);

  for (const root of document.querySelectorAll(".curves")) {
    const { runs, panels } = JSON.parse(root.querySelector("script").textContent);
    const logged = panels.flatMap((panel) => panel.lines.flatMap((line) => line.steps));
    const steps = [...new Set(logged)].sort((a, b) => a - b);
    const whole = [steps[0], Math.max(steps.at(-1), steps[0] + 1)];
    const hidden = new Set(); // runs
    let view = whole; // first and last step
    let at = null; // the step that is pointed at
    let drag = null; // the steps that are being chosen

    const x = (step) => ((step - view[0]) / (view[1] - view[0])) * across;
    const inside = () => steps.filter((step) => step >= view[0] && step <= view[1]);
    const visible = (panel) => panel.lines.filter((line) => !hidden.has(line.run));
    const zoom = (to) => {
      view = to;
      reset.hidden = to === whole;
      draw();
    };

    const controls = make(root, "p", { class: "runs" });
    runs.forEach((name, run) => {
      const label = make(controls, "label");
      const box = make(label, "input", { type: "checkbox", checked: "" });
      make(label, "i", { class: `dot run-${run % 6}` });
      make(label, "bdi", {}, name);
      box.addEventListener("change", () => {
        if (box.checked) hidden.delete(run);
        else hidden.add(run);
        draw();
      });
    });
    const reset = make(controls, "button", { type: "button", hidden: "" }, "Show all steps");
    reset.addEventListener("click", () => zoom(whole));

    const charts = make(root, "div", { class: "charts" });
    const more = make(root, "details");
    make(more, "summary", {}, "Gradients, learning rate and speed");
    const folded = make(more, "div", { class: "charts" });
    more.hidden = !panels.some((panel) => panel.folded);
    for (const panel of panels) {
      const figure = make(panel.folded ? folded : charts, "figure");
      make(figure, "h3", {}, panel.title);
      const box = { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: 0, role: "img" };
      panel.svg = make(figure, "svg", box);
      panel.values = make(figure, "figcaption");
      listen(panel.svg);
    }
    draw();

    // From the lowest to the highest value in sight, with the ends of what crosses the view; from 0 where that is near.
    function range(lines) {
      const shown = lines.flatMap(({ steps, values, chance }) => {
        const crossing = (_, k) => (steps[k + 1] ?? steps[k]) >= view[0] && (steps[k - 1] ?? steps[k]) <= view[1];
        return [...values.filter(crossing), ...(chance === undefined ? [] : [chance])];
      });
      if (!shown.length) return [0, 1];
      let low = Math.min(...shown), high = Math.max(...shown);
      if (low > 0 && low < 0.5 * high) low = 0;
      if (high === low) high += Math.abs(low) || 1;
      const margin = 0.04 * (high - low);
      return [low === 0 ? 0 : low - margin, high + margin];
    }

    function draw() {
      for (const panel of panels) {
        const { svg, title } = panel, lines = visible(panel);
        const [low, high] = range(lines);
        const y = (value) => down * (1 - (value - low) / (high - low));
        svg.replaceChildren();
        for (const tick of ticks(low, high, 4)) {
          const height = TOP + y(tick);
          make(svg, "line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: height, y2: height });
          make(svg, "text", { x: LEFT - 6, y: height + 4, "text-anchor": "end" }, printed(tick));
        }
        for (const tick of ticks(...view, 5)) {
          make(svg, "text", { x: LEFT + x(tick), y: HEIGHT - 4, "text-anchor": "middle" }, grouped(tick));
        }
        const plot = make(svg, "svg", { x: LEFT, y: TOP, width: across, height: down });
        for (const { run, steps: at, values, chance } of lines) {
          const colour = `run-${run % 6}`;
          const points = values.map((value, k) => `${x(at[k])},${y(value)}`).join(" ");
          if (chance !== undefined) {
            make(plot, "path", { class: `line chance ${colour}`, d: `M0 ${y(chance)}H${across}` });
          }
          make(plot, "polyline", { class: `line ${colour}`, points });
          if (values.length === 1) make(plot, "circle", { class: colour, cx: x(at[0]), cy: y(values[0]), r: 3 });
        }
        panel.cursor = make(plot, "g");
        panel.y = y;
        const ends = ({ run, values }) => `${runs[run]} from ${printed(values[0])} to ${printed(values.at(-1))}`;
        svg.setAttribute("aria-label", `${title}, over steps. ${lines.map(ends).join("; ")}.`);
      }
      point();
    }

    // The values at the step that is pointed at, or at the last one in sight.
    function point() {
      const step = at ?? inside().at(-1);
      for (const panel of panels) {
        const { cursor, values, y } = panel;
        cursor.replaceChildren();
        values.replaceChildren();
        if (drag) {
          const [left, right] = [x(Math.min(...drag)), x(Math.max(...drag))];
          make(cursor, "rect", { class: "zoom", x: left, width: right - left, height: down });
        }
        if (at !== null) make(cursor, "path", { class: "at", d: `M${x(at)} 0V${down}` });
        make(values, "span", {}, `step ${grouped(step)}`);
        for (const line of visible(panel)) {
          const k = nearest(line.steps, step), colour = `run-${line.run % 6}`;
          const span = make(values, "span");
          make(span, "i", { class: `dot ${colour}` });
          make(span, "span", {}, words(line, k) + (line.steps[k] === step ? "" : ` at step ${grouped(line.steps[k])}`));
          if (at !== null) make(cursor, "circle", { class: colour, cx: x(line.steps[k]), cy: y(line.values[k]), r: 3 });
        }
      }
    }

    // A value; of retrieval with the number of frames, and what it would be by chance.
    function words({ values, chance, queries }, k) {
      if (chance === undefined) return printed(values[k]);
      if (!queries) return `${printed(values[k])} (by chance ${printed(chance)})`;
      const hits = Math.round(values[k] * queries), byChance = (chance * queries).toFixed(1);
      return `${printed(values[k])} (${hits} of ${queries}, by chance ${byChance})`;
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
        at = steps[nearest(steps, stepAt(event))];
        if (drag) drag[1] = stepAt(event);
        point();
      });
      svg.addEventListener("pointerup", () => {
        if (!drag) return;
        const [first, last] = drag.sort((a, b) => a - b);
        drag = null;
        const chosen = steps.filter((step) => step >= first && step <= last);
        if (x(last) - x(first) > 8 && chosen.length > 1) zoom([first, last]);
        else point();
      });
      svg.addEventListener("pointercancel", () => {
        drag = null;
        point();
      });
      svg.addEventListener("pointerleave", () => {
        if (drag) return;
        at = null;
        point();
      });
      svg.addEventListener("dblclick", () => zoom(whole));
      svg.addEventListener("keydown", (event) => {
        const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (event.key === "Escape") zoom(whole);
        if (!move) return;
        event.preventDefault();
        const shown = inside();
        const k = shown.indexOf(at ?? shown.at(-1)) + move;
        at = shown[Math.min(Math.max(k, 0), shown.length - 1)];
        point();
      });
    }
  }
})();
