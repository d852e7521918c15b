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
