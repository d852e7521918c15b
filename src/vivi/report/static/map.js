(() => {
  // A map of frames: the frame that is pointed at is shown beside its point, and its video is marked on all maps.
  const maps = [...document.querySelectorAll(".map svg")];
  const SVG = "http://www.w3.org/2000/svg";
  const clear = () => document.querySelectorAll(".map .peek").forEach((peek) => peek.remove());
  const show = (point) => {
    clear();
    const { video, size } = point.dataset, map = point.closest("svg"), circle = point.querySelector("circle");
    for (const each of maps) {
      each.classList.add("pointing");
      for (const other of each.querySelectorAll("a")) other.classList.toggle("same", other.dataset.video === video);
    }
    const [wide, high] = size.split(" ").map(Number), scale = Math.min(150 / wide, 150 / high, 1);
    const [width, height] = [wide * scale, high * scale], [x, y] = [circle.cx.baseVal.value, circle.cy.baseVal.value];
    const image = document.createElementNS(SVG, "image");
    const place = { x: x < 200 ? x + 10 : x - width - 10, y: Math.min(Math.max(y - height / 2, 2), 398 - height), width, height };
    for (const [key, value] of Object.entries({ ...place, href: point.getAttribute("href"), class: "peek" })) image.setAttribute(key, value);
    map.append(image);
    map.parentElement.querySelector("figcaption").textContent = point.querySelector("title").textContent;
  };
  for (const map of maps) {
    const points = [...map.querySelectorAll("a")];
    points.forEach((point, k) => { point.setAttribute("tabindex", k ? -1 : 0); }); // the arrow keys go from one to the next
    map.addEventListener("pointerover", (event) => event.target.closest("a") && show(event.target.closest("a")));
    map.addEventListener("focusin", (event) => show(event.target.closest("a")));
    map.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || !event.target.closest("a")) return;
      event.preventDefault();
      show(event.target.closest("a"));
    });
    map.addEventListener("keydown", (event) => {
      const next = points[points.indexOf(event.target) + ({ ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? points.length)];
      if (next) next.focus();
    });
    map.addEventListener("pointerleave", () => {
      clear();
      for (const each of maps) each.classList.remove("pointing");
    });
  }
})();
