(() => {
  // Where more lies to the right than fits, its edge fades and a line below says so.
  for (const box of document.querySelectorAll(".scroll, .film")) {
    const look = () => {
      box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 2);
      box.classList.toggle("more", box.scrollWidth - box.clientWidth - box.scrollLeft > 2);
    };
    box.addEventListener("scroll", look, { passive: true });
    new ResizeObserver(() => requestAnimationFrame(look)).observe(box);
  }
})();
