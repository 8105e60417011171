// The body of a function(element, trigger, props, server, upload, watch) that Gradio calls once.
// The server sends every step of a pass; here one of them is picked, played, and moved by the visitor.
const PAUSE = 900; // milliseconds between glimpses
const SHADE = 400; // pixels of the image that are darkened around a window
const PATIENCE = 3000; // milliseconds after which a server that is silent is asked
const STOPPED = "The server does not answer: it was stopped, or cannot be reached. Reload the page once it is there again.";
const REST = 250; // milliseconds after the last key
const still = window.matchMedia("(prefers-reduced-motion: reduce)");
let step = 0; // from 0
let run = null;
let timer = null;
let moving = null; // the window being dragged: {look, square: [x, y, width]} in pixels of the model's image
let held = []; // the windows that are forced, in pixels of the image, ahead of the server's answer
let turn = 0; // counts changes to them; the view says which one it answers
let resting = null;
let doubt = null; // waits for PATIENCE to run out
const waiting = new Set(); // actions that are not answered yet: {id}, the id once the server has given one
const ended = new Set(); // ids of actions that have, which may be told before the ids are
let silent = false; // whether the visitor was told that the server is

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
    mark.classList.toggle("last", at === t - 1);
  });
  if (now.read) {
    preview(look, now.read);
    one(".stage .window", look).classList.toggle("forced", now.forced);
    const [x, y, width] = now.read.map(round);
    one(".place", look).textContent = `${width} px wide at ${x}, ${y}${now.forced ? ", forced" : ""}`;
    const path = steps.slice(0, t + 1).map(({ read }) => `${read[0]},${read[1]}`);
    one(".stage .path", look).setAttribute("points", path.join(" "));
    if (now.write) place(one(".draws .write", look), now.write);
  } else {
    one(".place", look).textContent = "the whole image";
  }
  all(".capsules tbody tr", look).forEach((row, k) => {
    row.classList.toggle("winner", k === now.winner);
    row.classList.toggle("chosen", now.chosen.includes(k));
    bar(one(".length", row), now.lengths[k], 1, now.free?.[k]);
    bar(one(".sum", row), now.sums[k], now.top, now.free_sums?.[k]);
  });
}

const round = (value) => String(Math.round(value));

// A square given by its centre and width, in pixels of the model's image.
function place(mark, [x, y, width], around = 0) {
  const side = `${width + 2 * around}px`;
  const [left, top] = [x, y].map((middle) => `${middle - width / 2 - around}px`);
  Object.assign(mark.style, { x: left, y: top, width: side, height: side });
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
    setSize(look, windowOf(look)[2] / longer(look));
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

function toggle() {
  if (timer) stop();
  else play(step + 1 < count() ? step : 0);
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

function hold(look, square) {
  held = [...held.filter((force) => !ofThisStep(force)), { step, ...toSource(look, square) }];
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

function say(sentence) {
  const place = one(".silence");
  silent = false;
  if (!place) return;
  place.hidden = !sentence;
  place.textContent = sentence;
}

// Waiting for the server

// Every action begins with a request of Gradio's to /queue/join, and its end is told in the stream of /queue/data.
const request = window.fetch;
window.fetch = async (...parts) => {
  const url = String(parts[0]?.url ?? parts[0]);
  const action = url.includes("/queue/join") && expect({ id: null });
  try {
    const answer = await request(...parts);
    if (action) action.id = answer.ok ? (await answer.clone().json()).event_id : null;
    if (action && (!action.id || ended.has(action.id))) finish(action);
    if (url.includes("/queue/data")) follow(answer.clone().body).catch(() => {}); // closed by Gradio, or broken off
    return answer;
  } catch (error) {
    if (action) finish(action), tellSilence(STOPPED);
    throw error;
  }
};

function expect(action) {
  waiting.add(action);
  if (waiting.size === 1) doubt = setTimeout(askServer, PATIENCE);
  return action;
}

function finish(action) {
  waiting.delete(action);
  clearTimeout(doubt);
  if (waiting.size) doubt = setTimeout(askServer, PATIENCE);
  else if (silent) say("");
}

async function follow(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
    const messages = (rest + value).split("\n\n");
    rest = messages.pop();
    messages.filter((text) => text.startsWith("data:")).forEach((text) => {
      const { msg, event_id } = JSON.parse(text.slice("data:".length));
      if (msg !== "process_completed") return;
      ended.add(event_id);
      waiting.forEach((action) => action.id === event_id && finish(action));
    });
  }
}

// Say whether a server that has not answered yet is busy or gone.
async function askServer() {
  const there = await request(document.baseURI, { method: "HEAD" }).catch(() => null);
  if (!waiting.size) return;
  tellSilence(there ? "The server is busy; it will answer in a moment." : STOPPED);
  doubt = setTimeout(askServer, PATIENCE);
}

function tellSilence(sentence) {
  say(sentence);
  silent = true;
}

// Taking it away

// Reloading the page, or following the link, leads to what is shown.
function tellAddress() {
  const query = view().dataset.address;
  const own = [...new URLSearchParams(location.search)].filter(([key]) => key.startsWith("__"));
  const rest = own.length ? `&${new URLSearchParams(own)}` : "";
  if (query) history.replaceState(history.state, "", `?${query}${rest}`);
}

function tellOwn() {
  if (view().dataset.address.includes("image=own")) say("The link holds the models and settings, not your own image.");
}

function done(button, word) {
  const label = button.textContent;
  if (button.dataset.busy) return;
  button.dataset.busy = "1";
  button.textContent = word;
  setTimeout(() => {
    button.textContent = label;
    delete button.dataset.busy;
  }, 1600);
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers keep the clipboard from pages that came without encryption from another machine.
    const field = document.body.appendChild(document.createElement("textarea"));
    field.value = text;
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    if (!copied) return window.prompt("Copy this:", text);
  }
  done(button, "Copied");
}

// Drawing takes seconds; nothing waits for it.
async function save(button) {
  if (button.getAttribute("aria-busy") === "true") return;
  const column = all(".look").indexOf(button.closest(".look"));
  const path = `ocra/save/${view().dataset.token}/${column}/${button.dataset.file}`;
  button.setAttribute("aria-busy", "true");
  say("");
  try {
    const answer = await fetch(new URL(path, document.baseURI));
    if (!answer.ok) return say(answer.status < 500 || answer.status === 503 ? await answer.text() : "The file could not be made; the server's log says why.");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = answer.headers.get("x-ocra-name") || button.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  } catch {
    say(STOPPED);
  } finally {
    button.removeAttribute("aria-busy");
  }
}

function toSource(look, [x, y, width]) {
  const [scaleX, scaleY, left, top] = JSON.parse(look.dataset.placement);
  return { x: scaleX * x + left, y: scaleY * y + top, width: width * Math.sqrt(scaleX * scaleY) };
}

function toModel(look, { x, y, width }) {
  const [scaleX, scaleY, left, top] = JSON.parse(look.dataset.placement);
  return [(x - left) / scaleX, (y - top) / scaleY, width / Math.sqrt(scaleX * scaleY)];
}

function pointed(look, event) {
  const stage = one(".stage", look);
  const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(stage.getScreenCTM().inverse());
  return [x, y];
}

function preview(look, square) {
  place(one(".stage .window", look), square);
  place(one(".stage .shade", look), square, SHADE / 2);
}

function previewHeld() {
  movable().forEach((look) => preview(look, windowOf(look)));
}

// The window of this step in pixels of the model's image, as the visitor wants it if that is not answered yet.
function windowOf(look) {
  const wanted = !answered() && step < stepsOf(look).length && held.find(ofThisStep);
  return wanted ? toModel(look, wanted) : own(look).read;
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
  moving = { look, square: [...pointed(look, event), windowOf(look)[2]] };
  look.classList.add("moving");
  one(".stage", look).setPointerCapture(event.pointerId);
  preview(look, moving.square);
}

function keepMoving(event) {
  if (!moving) return;
  moving.square.splice(0, 2, ...pointed(moving.look, event));
  preview(moving.look, moving.square);
}

function endMoving(event) {
  if (!moving) return;
  const { look, square } = moving;
  moving = null;
  look.classList.remove("moving");
  if (event.type !== "pointerup") return show(step); // the browser took the gesture for scrolling
  hold(look, square);
  send();
}

// The window of another glimpse shows while its dot, or its frame in the film strip, is pointed at.
function hover(event) {
  const t = event.type === "pointerover" && event.target.closest("[data-t]")?.dataset.t;
  all(".stage g").forEach((mark) => mark.classList.toggle("hovered", mark.dataset.t === t));
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Space plays and arrows step from anywhere that does not need these keys itself.
function steer(event) {
  const busy = "input, textarea, select, button, summary, .stage, [role=tab], [role=listbox], [contenteditable]";
  if (!view() || event.altKey || event.ctrlKey || event.metaKey || event.target.closest?.(busy)) return;
  if (event.key === " ") toggle();
  else if (event.key === "ArrowLeft") stop(), show(step - 1);
  else if (event.key === "ArrowRight") stop(), show(step + 1);
  else return;
  event.preventDefault();
}

// Arrows move between tabs.
function turnTab(event) {
  const tab = event.target.closest?.("#ocra-sources [role=tab]");
  const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!tab || !way) return;
  const tabs = all("[role=tab]", tab.closest("[role=tablist]"));
  const next = tabs[(tabs.indexOf(tab) + way + tabs.length) % tabs.length];
  next.click();
  next.focus();
}

// A held key moves the window at once, and is sent when it rests.
function nudge(event) {
  const look = event.target.closest(".stage")?.closest(".look");
  const arrow = ARROWS[event.key];
  if (!look || !arrow) return;
  event.preventDefault();
  stop();
  within(look);
  const [x, y, width] = windowOf(look);
  hold(look, [x + arrow[0], y + arrow[1], width]);
  clearTimeout(resting);
  resting = setTimeout(send, REST);
}

element.addEventListener("click", (event) => {
  const frame = event.target.closest(".film button");
  if (event.target.closest(".play")) toggle();
  else if (frame) stop(), show(Number(frame.dataset.t));
  else if (event.target.closest("[data-file]")) save(event.target.closest("[data-file]"));
  else if (event.target.closest(".python")) copy(event.target, event.target.closest(".look").dataset.python);
  else if (event.target.closest(".link")) copy(event.target, location.href), tellOwn();
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
    hold(look, [...windowOf(look).slice(0, 2), size * longer(look)]);
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
element.addEventListener("pointerover", hover);
element.addEventListener("pointerout", hover);
element.addEventListener("keydown", nudge);
document.addEventListener("keydown", steer);
document.addEventListener("keydown", turnTab);

// A mark on the slider where the model was trained.
function markTrained(look, k) {
  const slider = document.querySelector(["#ocra-glimpses", "#ocra-other-glimpses"][k]);
  const range = slider?.querySelector("input[type=range]");
  if (range) slider.style.setProperty("--trained", (look.dataset.trained - range.min) / (range.max - range.min));
}

function arrived() {
  if (!view()) return stop();
  const other = view().dataset.run !== run;
  if (other || answered()) held = JSON.parse(view().dataset.forced);
  turn = Math.max(turn, Number(view().dataset.turn));
  tellAddress();
  setTimeout(() => all(".look").forEach(markTrained), REST); // once Gradio has shown its sliders
  if (!other) return show(step);
  run = view().dataset.run;
  if (view().dataset.test) {
    document.dispatchEvent(new CustomEvent("ocra-shown", { detail: one(".stage image").getAttribute("href") }));
  }
  play(0);
}

watch("value", arrived);
arrived();
