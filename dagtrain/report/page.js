"use strict";
// The graph of the page: search, zoom, drag, and a way from a node to its row.  Tables with a search field.
(() => {
  const frame = document.getElementById("placed-graph");
  const picture = frame.querySelector("svg");
  const nodes = [...picture.querySelectorAll("[data-node]")];
  const width = Number(picture.getAttribute("width"));
  const height = Number(picture.getAttribute("height"));
  let scale = 1;

  const zoom = (wanted) => {
    const middle = [frame.scrollLeft + frame.clientWidth / 2, frame.scrollTop + frame.clientHeight / 2];
    const before = scale;
    scale = Math.min(4, Math.max(0.1, wanted));
    picture.setAttribute("width", width * scale);
    picture.setAttribute("height", height * scale);
    frame.scrollLeft = (middle[0] * scale) / before - frame.clientWidth / 2;
    frame.scrollTop = (middle[1] * scale) / before - frame.clientHeight / 2;
  };
  const whole = () => Math.min(frame.clientWidth / width, frame.clientHeight / height);
  document.getElementById("closer").addEventListener("click", () => zoom(scale * 1.25));
  document.getElementById("farther").addEventListener("click", () => zoom(scale / 1.25));
  document.getElementById("whole").addEventListener("click", () => zoom(whole()));

  const row = (name) => [...document.querySelectorAll("tr[data-node]")].find((one) => one.dataset.node === name);
  const choose = (name) => {
    document.querySelectorAll("tr.chosen").forEach((one) => one.classList.remove("chosen"));
    const found = row(name);
    if (!found) return;
    found.closest("details").open = true;
    found.hidden = false;
    found.classList.add("chosen");
    found.scrollIntoView({ block: "center" });
    found.focus({ preventScroll: true });
  };
  for (const node of nodes) {
    node.setAttribute("tabindex", "0");
    node.setAttribute("role", "link");
    node.setAttribute("aria-label", node.querySelector("title").textContent);
    node.addEventListener("click", () => choose(node.dataset.node));
    node.addEventListener("keydown", (event) => {
      if (event.key === "Enter") choose(node.dataset.node);
    });
  }

  const find = document.getElementById("find");
  find.addEventListener("input", () => {
    const words = find.value.trim().toLowerCase();
    const found = nodes.filter((node) => node.querySelector("title").textContent.toLowerCase().includes(words));
    nodes.forEach((node) => node.classList.toggle("dim", words !== "" && !found.includes(node)));
    document.getElementById("found").textContent = words === "" ? "" : `${found.length} of ${nodes.length} nodes`;
    if (words !== "" && found.length) {
      const box = found[0].getBoundingClientRect();
      const around = frame.getBoundingClientRect();
      frame.scrollLeft += box.left - around.left - frame.clientWidth / 2;
      frame.scrollTop += box.top - around.top - frame.clientHeight / 2;
    }
  });

  for (const box of document.querySelectorAll("input[data-rows]")) {
    const rows = [...document.getElementById(box.dataset.rows).tBodies[0].rows];
    box.addEventListener("input", () => {
      const words = box.value.trim().toLowerCase();
      rows.forEach((one) => (one.hidden = !one.textContent.toLowerCase().includes(words)));
      const shown = rows.filter((one) => !one.hidden).length;
      box.closest(".tools").querySelector("[role=status]").textContent =
        words === "" ? "" : `${shown} of ${rows.length} rows`;
    });
  }

  let held = null;
  frame.addEventListener("pointerdown", (event) => {
    held = [event.clientX + frame.scrollLeft, event.clientY + frame.scrollTop];
  });
  frame.addEventListener("pointermove", (event) => {
    if (!held || event.buttons !== 1) return;
    frame.scrollLeft = held[0] - event.clientX;
    frame.scrollTop = held[1] - event.clientY;
  });
})();
