(() => {
  // A map of frames: the frame that is pointed at is shown beside its point, and its video is marked on all maps.
  const maps = [...document.querySelectorAll(".map svg")];

  const clear = () => {
    for (const map of maps) map.classList.remove("pointing");
    for (const peek of document.querySelectorAll(".map .peek")) peek.remove();
  };
  const show = (point) => {
    clear();
    const { video, size } = point.dataset, map = point.closest("svg"), circle = point.querySelector("circle");
    for (const each of maps) {
      each.classList.add("pointing");
      for (const other of each.querySelectorAll("a")) other.classList.toggle("same", other.dataset.video === video);
    }
    const [wide, high] = size.split(" ").map(Number), scale = Math.min(150 / wide, 150 / high, 1);
    const [width, height] = [wide * scale, high * scale];
    const [x, y] = [circle.cx.baseVal.value, circle.cy.baseVal.value]; // the map is 400 wide and high
    const left = x < 200 ? x + 10 : x - width - 10, top = Math.min(Math.max(y - height / 2, 2), 398 - height);
    const image = document.createElementNS(map.namespaceURI, "image");
    const attributes = { x: left, y: top, width, height, href: point.getAttribute("href"), class: "peek" };
    for (const [key, value] of Object.entries(attributes)) image.setAttribute(key, value);
    map.append(image);
    map.parentElement.querySelector("figcaption").textContent = point.querySelector("title").textContent;
  };

  for (const map of maps) {
    const points = [...map.querySelectorAll("a")];
    // One tab stop for each map; the arrow keys go from frame to frame.
    points.forEach((point, k) => point.setAttribute("tabindex", k ? -1 : 0));
    map.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) points[points.indexOf(event.target) + step]?.focus();
    });
    map.addEventListener("focusin", (event) => show(event.target));
    map.addEventListener("pointerover", (event) => {
      const point = event.target.closest("a");
      if (point) show(point);
    });
    map.addEventListener("click", (event) => {
      const point = event.target.closest("a");
      if (!point || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      show(point);
    });
    map.addEventListener("pointerleave", clear);
  }
})();
