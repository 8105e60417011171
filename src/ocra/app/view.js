// The body of a function(element, trigger, props, server, upload, watch) that Gradio calls once.
// The server sends every step of a pass; here one of them is picked, played, and moved by the visitor.
const PAUSE = 900; // milliseconds between glimpses
const REST = 250; // milliseconds after the last key
const still = window.matchMedia("(prefers-reduced-motion: reduce)");
let step = 0; // from 0
let run = null;
let timer = null;
let moving = null; // the window being dragged: {look, x, y, width} in pixels of the model's image
let held = []; // the windows that are forced, in pixels of the image, ahead of the server's answer
let turn = 0; // counts changes to them; the view says which one it answers
let resting = null;

const all = (selector, root = element) => Array.from(root.querySelectorAll(selector));
const one = (selector, root = element) => root.querySelector(selector);
const view = () => one(".ocra-view:not(.nothing)");
const count = () => Number(view()?.dataset.steps || 0);
const answered = () => Number(view().dataset.turn) >= turn;
const stepsOf = (look) => JSON.parse(look.dataset.steps);
const own = (look) => stepsOf(look)[Math.min(step, stepsOf(look).length - 1)];
const longer = (look) => Math.max(look.dataset.w, look.dataset.h) - 1;
const movable = () => all('.look[data-movable="1"]');
const ofThisStep = (force) => force.step === step;

function show(wanted) {
  if (!view()) return;
  step = Math.max(0, Math.min(wanted, count() - 1));
  all(".look").forEach(showLook);
  one("input.step").value = step + 1;
  one("output.count").textContent = `Glimpse ${step + 1} of ${count()}`;
  showForce();
  if (!answered()) previewHeld();
}

function showLook(look) {
  const steps = stepsOf(look);
  const t = Math.min(step, steps.length - 1);
  const now = steps[t];
  all("[data-t]", look).forEach((mark) => {
    const at = Number(mark.dataset.t);
    mark.classList.toggle("now", at === t);
    mark.classList.toggle("past", at < t);
  });
  if (now.window) {
    place(one(".stage .window", look), now.window);
    one(".stage .window", look).classList.toggle("forced", now.forced);
    const whose = now.forced ? ", forced" : "";
    one(".place", look).textContent = `${round(now.width)} px wide at ${round(now.x)}, ${round(now.y)}${whose}`;
  } else {
    one(".place", look).textContent = "the whole image";
  }
  if (now.write) place(one(".draws .write", look), now.write);
  all(".capsules tbody tr", look).forEach((row, k) => {
    row.classList.toggle("winner", k === now.winner);
    row.classList.toggle("chosen", now.chosen.includes(k));
    bar(one(".length", row), now.lengths[k], 1, now.free?.[k]);
    bar(one(".sum", row), now.sums[k], now.top, now.free_sums?.[k]);
  });
}

const round = (value) => String(Math.round(value));

function place(mark, [left, top, width, height]) {
  Object.assign(mark.style, { left: `${left}%`, top: `${top}%`, width: `${width}%`, height: `${height}%` });
}

function bar(cell, value, top, free) {
  const share = (number) => `${Math.min(100, (100 * number) / top)}%`;
  one("i", cell).style.width = value === null ? "0" : share(value);
  one("data", cell).textContent = value === null ? "" : value.toFixed(2);
  const tick = one("u", cell);
  tick.hidden = free === undefined || value === null;
  if (!tick.hidden) tick.style.left = share(free);
}

function showForce() {
  movable().forEach((look) => {
    one(".force .number", look).textContent = Math.min(step, stepsOf(look).length - 1) + 1;
    // A button that is really disabled would lose the focus it was pressed with.
    one(".let-go", look).setAttribute("aria-disabled", !held.some(ofThisStep));
    one(".let-all-go", look).setAttribute("aria-disabled", held.length === 0);
    setSize(look, windowOf(look).width / longer(look));
  });
}

function setSize(look, size) {
  one("input.extent", look).value = size;
  one(".force output", look).textContent = `${round(size * longer(look))} px`;
}

function play(from) {
  stop();
  if (still.matches || count() < 2) return show(count() - 1);
  view().classList.add("playing");
  one(".play").setAttribute("aria-label", "Pause");
  speak("off");
  show(from);
  timer = setInterval(() => {
    if (!view() || step + 1 >= count()) return stop();
    show(step + 1);
    if (step + 1 >= count()) stop();
  }, PAUSE);
}

function stop() {
  clearInterval(timer);
  timer = null;
  view()?.classList.remove("playing");
  one(".play")?.setAttribute("aria-label", "Play the glimpses");
  speak("polite");
}

// Whether screen readers tell each glimpse.
function speak(how) {
  all("output.count, .place").forEach((region) => region.setAttribute("aria-live", how));
}

// Moving the gaze

function hold(look, wanted) {
  held = [...held.filter((force) => !ofThisStep(force)), { step, ...toSource(look, wanted) }];
  turn += 1;
  previewHeld();
}

function release(kept) {
  held = kept;
  turn += 1;
  send();
}

function send() {
  clearTimeout(resting);
  trigger("force", { windows: held, turn });
}

function toSource(look, { x, y, width }) {
  const [scaleX, scaleY, left, top] = JSON.parse(look.dataset.placement);
  return { x: scaleX * x + left, y: scaleY * y + top, width: width * Math.sqrt(scaleX * scaleY) };
}

function toModel(look, { x, y, width }) {
  const [scaleX, scaleY, left, top] = JSON.parse(look.dataset.placement);
  return { x: (x - left) / scaleX, y: (y - top) / scaleY, width: width / Math.sqrt(scaleX * scaleY) };
}

function pointed(look, event) {
  const { w, h, m } = look.dataset;
  const frame = one(".stage", look).getBoundingClientRect();
  const x = ((event.clientX - frame.left) / frame.width) * (+w + 2 * m) - m;
  const y = ((event.clientY - frame.top) / frame.height) * (+h + 2 * m) - m;
  return { x: x - 0.5, y: y - 0.5 };
}

function preview(look, { x, y, width }) {
  const { w, h, m } = look.dataset;
  const [across, down] = [+w + 2 * m, +h + 2 * m];
  place(one(".stage .window", look), [
    (100 * (x - width / 2 + 0.5 + +m)) / across,
    (100 * (y - width / 2 + 0.5 + +m)) / down,
    (100 * width) / across,
    (100 * width) / down,
  ]);
}

function previewHeld() {
  movable().forEach((look) => preview(look, windowOf(look)));
}

// The window of this step in pixels of the model's image, as the visitor wants it if that is not answered yet.
function windowOf(look) {
  const wanted = !answered() && step < stepsOf(look).length && held.find(ofThisStep);
  return wanted ? toModel(look, wanted) : own(look);
}

// A model with fewer glimpses than the other stays at its last one: that is the one to move.
function within(look) {
  if (step >= stepsOf(look).length) show(stepsOf(look).length - 1);
}

function startMoving(event) {
  const look = event.target.closest(".stage")?.closest('.look[data-movable="1"]');
  if (!look || event.button > 0) return;
  stop();
  within(look);
  moving = { look, ...pointed(look, event), width: windowOf(look).width };
  look.classList.add("moving");
  one(".stage", look).setPointerCapture(event.pointerId);
  preview(look, moving);
}

function keepMoving(event) {
  if (!moving) return;
  Object.assign(moving, pointed(moving.look, event));
  preview(moving.look, moving);
}

function endMoving(event) {
  if (!moving) return;
  const { look, ...wanted } = moving;
  moving = null;
  look.classList.remove("moving");
  if (event.type !== "pointerup") return show(step); // the browser took the gesture for scrolling
  hold(look, wanted);
  send();
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// A held key moves the window at once, and is sent when it rests.
function nudge(event) {
  const look = event.target.closest(".stage")?.closest(".look");
  const arrow = ARROWS[event.key];
  if (!look || !arrow) return;
  event.preventDefault();
  stop();
  within(look);
  const { x, y, width } = windowOf(look);
  hold(look, { x: x + arrow[0], y: y + arrow[1], width });
  clearTimeout(resting);
  resting = setTimeout(send, REST);
}

element.addEventListener("click", (event) => {
  const frame = event.target.closest(".film button");
  if (event.target.closest(".play")) timer ? stop() : play(step + 1 < count() ? step : 0);
  else if (frame) stop(), show(Number(frame.dataset.t));
  else if (event.target.closest('[aria-disabled="true"]')) return;
  else if (event.target.closest(".let-go")) release(held.filter((force) => !ofThisStep(force)));
  else if (event.target.closest(".let-all-go")) release([]);
});
element.addEventListener("input", (event) => {
  if (event.target.matches("input.step")) stop(), show(Number(event.target.value) - 1);
  if (event.target.matches("input.extent")) {
    const look = event.target.closest(".look");
    const size = Number(event.target.value);
    stop();
    within(look);
    hold(look, { ...windowOf(look), width: size * longer(look) });
    setSize(look, size);
  }
});
element.addEventListener("change", (event) => {
  if (event.target.matches("input.extent")) send();
});
element.addEventListener("pointerdown", startMoving);
element.addEventListener("pointermove", keepMoving);
element.addEventListener("pointerup", endMoving);
element.addEventListener("pointercancel", endMoving);
element.addEventListener("keydown", nudge);

function arrived() {
  if (!view()) return stop();
  const other = view().dataset.run !== run;
  if (other || answered()) held = JSON.parse(view().dataset.forced);
  turn = Math.max(turn, Number(view().dataset.turn));
  if (!other) return show(step);
  run = view().dataset.run;
  play(0);
}

watch("value", arrived);
arrived();
