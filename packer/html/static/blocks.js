"use strict";
// The same example in both drawings of the buffers: pointing at a block (or tapping it) marks it wherever it is drawn.
(() => {
  const place = document.getElementById("buffers");
  if (!place) return;
  const said = place.querySelector(".block-said");
  const before = said.textContent;
  const mark = (block) => {
    place.querySelectorAll(".block.same").forEach((one) => one.classList.remove("same"));
    if (!block) { said.textContent = before; return; }
    const example = block.getAttribute("data-example");
    place.querySelectorAll(".block").forEach((one) => {
      if (one.getAttribute("data-example") === example) one.classList.add("same");
    });
    said.textContent = block.querySelector("title").textContent;
  };
  for (const kind of ["pointerover", "click"]) {
    place.addEventListener(kind, (event) => mark(event.target.closest(".block[data-example]")));
  }
})();
