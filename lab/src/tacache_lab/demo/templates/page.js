const body = document.body, tools = document.querySelector(".tools");
const inputs = tools.elements; // by name: the form has properties of its own, such as `part`
const parts = [...document.querySelectorAll(".part")];

/* The full-step picture lies over each of its row, to wipe with or to subtract. */
for (const row of document.querySelectorAll("article .row")) {
  const full = row.querySelector(".full img");
  for (const frame of row.querySelectorAll("figure:not(.full) .frame")) {
    const layer = full.cloneNode();
    layer.alt = "";
    layer.classList.add("layer");
    frame.append(layer);
    frame.addEventListener("pointerdown", drag);
    frame.addEventListener("pointermove", drag);
  }
}

function drag(event) {
  if (body.dataset.view !== "wipe" || !(event.buttons & 1)) return;
  const box = event.currentTarget.getBoundingClientRect();
  const share = 100 * (event.clientX - box.left) / box.width;
  inputs.wipe.value = Math.min(100, Math.max(0, share));
  show();
}

function show() {
  const part = inputs.part ? inputs.part.value : "1";
  body.dataset.view = inputs.view.value;
  body.style.setProperty("--wipe", `${inputs.wipe.value}%`);
  for (const shown of parts) shown.hidden = shown.dataset.part !== part;
  for (const choice of tools.querySelectorAll("[data-of]")) choice.hidden = choice.dataset.of !== part;
  for (const shown of parts) {
    const budget = inputs[`evaluations-${shown.dataset.part}`];
    const chosen = budget ? budget.value : shown.dataset.evaluations;
    for (const item of shown.querySelectorAll("[data-budget]")) {
      item.hidden = item.dataset.budget !== chosen;
    }
  }
}

tools.addEventListener("input", show);
tools.addEventListener("submit", (event) => event.preventDefault());
tools.hidden = false;
show();

/* All clips start here, so that they play in step. */
const button = document.querySelector(".play");
if (button) {
  const pause = (still) => {
    body.classList.toggle("paused", still);
    button.textContent = still ? "Play" : "Pause";
  };
  pause(matchMedia("(prefers-reduced-motion: reduce)").matches);
  button.addEventListener("click", () => pause(!body.classList.contains("paused")));
  body.classList.add("started");
}
