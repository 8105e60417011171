// Draw digits, let the network look at them in this browser, watch it glimpse by glimpse.
// The network is model.onnx, what its answers mean is model.json; ocra app --static writes both beside this file.
import * as ort from "./ort/ort.js";

const SIDE = 420; // pixels of the pad
const FINE = 8; // pixels along one of the network's in which a drawing is made before it is averaged
const PAUSE = 250; // milliseconds of rest after which a drawing is looked at
const SECOND = 900; // milliseconds that a glimpse stands still while it plays
const STROKE_SHARE = 0.14; // width of a stroke as a share of a digit's height, as in the network's training
const MARGIN = 1 / 12; // share of the image that stays free around the ink
// Ten digits of our own, as strokes in a square.
const DIGITS = [
  [[[0.5, 0.02], [0.18, 0.18], [0.1, 0.6], [0.3, 0.95], [0.62, 0.97], [0.88, 0.7], [0.85, 0.3], [0.66, 0.06], [0.45, 0.03]]],
  [[[0.5, 0], [0.49, 0.5], [0.48, 1]]],
  [[[0.12, 0.25], [0.25, 0.03], [0.62, 0], [0.84, 0.22], [0.7, 0.5], [0.35, 0.8], [0.08, 0.99], [0.5, 0.95], [0.92, 0.98]]],
  [[[0.14, 0.1], [0.5, -0.03], [0.84, 0.16], [0.75, 0.4], [0.42, 0.48], [0.82, 0.55], [0.9, 0.82], [0.55, 1.02], [0.1, 0.9]]],
  [[[0.3, 0.02], [0.2, 0.3], [0.1, 0.58], [0.5, 0.57], [0.92, 0.55]], [[0.7, 0.05], [0.68, 0.5], [0.66, 1]]],
  [[[0.86, 0.02], [0.3, 0.03], [0.3, 0.04], [0.22, 0.45], [0.22, 0.46], [0.6, 0.38], [0.9, 0.62], [0.72, 0.95], [0.35, 1.02], [0.1, 0.88]]],
  [[[0.72, 0], [0.35, 0.25], [0.13, 0.65], [0.28, 0.97], [0.65, 0.99], [0.84, 0.74], [0.62, 0.52], [0.3, 0.6], [0.16, 0.78]]],
  [[[0.1, 0.06], [0.5, 0.05], [0.9, 0.03], [0.9, 0.04], [0.65, 0.45], [0.42, 1]]],
  [[[0.8, 0.16], [0.5, -0.02], [0.2, 0.18], [0.4, 0.45], [0.82, 0.7], [0.72, 0.98], [0.28, 0.99], [0.16, 0.72], [0.55, 0.46], [0.82, 0.22], [0.76, 0.1]]],
  [[[0.82, 0.3], [0.62, 0.03], [0.25, 0.08], [0.16, 0.38], [0.48, 0.55], [0.82, 0.3], [0.8, 0.65], [0.68, 1]]],
];
const EXAMPLES = [[0, 7], [3, 1], [6, 4], [2, 9], [8, 5]];

const one = (id) => document.getElementById(id);
let about, session, strokes = [], current = null, timer = null, look = null, playing = null, turn = 0;

function draw(pen, stroke, place, width) {
  const [first, ...others] = stroke.map(place);
  pen.lineWidth = width;
  pen.strokeStyle = pen.fillStyle = "white";
  pen.lineCap = pen.lineJoin = "round";
  pen.beginPath();
  if (others.length === 0) {
    pen.arc(...first, width / 2, 0, 2 * Math.PI);
    return pen.fill();
  }
  pen.moveTo(...first);
  others.forEach(([x, y], k) => {
    const [nextX, nextY] = others[k + 1] || [x, y];
    pen.quadraticCurveTo(x, y, (x + nextX) / 2, (y + nextY) / 2);
  });
  pen.lineTo(...others[others.length - 1]);
  pen.stroke();
}

function sheet(canvas, drawing) {
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.fillStyle = "black";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  drawing.forEach((stroke) => draw(pen, stroke, ([x, y]) => [x * canvas.width, y * canvas.height], about.pen * canvas.width));
}

function redraw() {
  sheet(one("pad"), strokes);
  one("pad").parentElement.classList.toggle("drawn", strokes.length > 0);
}

// The strokes as the network's image, values from 0 to 1. Where it was trained on digits of one size, the ink is
// given that size and its strokes their width, as `ocra predict` does.
function prepare(drawing) {
  const [channels, height, width] = about.image_shape;
  let scale = Math.max(height, width), middle = [0.5, 0.5], pen = about.pen * scale;
  const { fit, digit_height: wanted, digits_apart: apart } = about.preprocessing;
  if (fit === "content" && !apart) {
    const [xs, ys] = [0, 1].map((axis) => drawing.flat().map((point) => point[axis]));
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const [across, down] = [right - left + about.pen, bottom - top + about.pen];
    const room = 1 - 2 * MARGIN;
    scale = Math.min(wanted / (Math.min(down, 1.2 * across) / 1.035), (room * width) / across, (room * height) / down);
    middle = [(left + right) / 2, (top + bottom) / 2];
    pen = Math.max(about.pen * scale, STROKE_SHARE * Math.min(wanted, scale * Math.min(down, 1.2 * across)));
  }
  const fine = document.createElement("canvas");
  [fine.width, fine.height] = [width * FINE, height * FINE];
  const brush = fine.getContext("2d", { willReadFrequently: true });
  const place = ([x, y]) => [
    ((x - middle[0]) * scale + width / 2) * FINE, ((y - middle[1]) * scale + height / 2) * FINE,
  ];
  brush.fillStyle = "black";
  brush.fillRect(0, 0, fine.width, fine.height);
  drawing.forEach((stroke) => draw(brush, stroke, place, pen * FINE));
  const pixels = brush.getImageData(0, 0, fine.width, fine.height).data;
  const image = new Float32Array(channels * height * width);
  for (let y = 0; y < height * FINE; y++)
    for (let x = 0; x < width * FINE; x++)
      image[Math.floor(y / FINE) * width + Math.floor(x / FINE)] += pixels[4 * (y * width * FINE + x)] / 255 / FINE ** 2;
  for (let c = 1; c < channels; c++) image.copyWithin(c * height * width, 0, height * width);
  return image;
}

async function recognise() {
  clearTimeout(timer);
  pause();
  const mine = ++turn;
  if (!strokes.length) {
    one("result").hidden = true;
    return;
  }
  const image = prepare(strokes);
  const found = await session.run({ images: new ort.Tensor("float32", image, [1, ...about.image_shape]) });
  if (mine !== turn) return; // another drawing has come since
  const outputs = Object.fromEntries(Object.entries(found).map(([name, { data }]) => [name, Array.from(data, Number)]));
  look = { image: Array.from(image), outputs };
  one("result").hidden = false;
  show(1);
  play();
  document.dispatchEvent(new CustomEvent("ocra-looked", { detail: look }));
}

// How often each class is named by scores so far: the rule that model.json tells.
function named(scores) {
  const { objects, repeats } = about.answer;
  if (objects === null) return scores.map((s) => Math.max(0, Math.min(repeats ? Infinity : 1, Math.floor(s + 0.5))));
  const counts = scores.map(() => 0);
  let left = objects;
  for (const k of scores.map((_, k) => k).sort((a, b) => scores[b] - scores[a])) {
    if (left < 1) break;
    counts[k] = Math.min(left, repeats ? Math.max(1, Math.floor(scores[k] + 0.2)) : 1);
    left -= counts[k];
  }
  return counts;
}

function paint(canvas, values) {
  const [channels, height, width] = about.image_shape;
  [canvas.width, canvas.height] = [width, height];
  const pen = canvas.getContext("2d"), area = height * width;
  const shown = pen.createImageData(width, height);
  for (let k = 0; k < area; k++) {
    for (let c = 0; c < 3; c++) shown.data[4 * k + c] = 255 * values[channels === 3 ? c * area + k : k];
    shown.data[4 * k + 3] = 255;
  }
  pen.putImageData(shown, 0, 0);
}

function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  return made;
}

function show(step) {
  const { outputs, image } = look, [channels, height, width] = about.image_shape;
  const classes = about.class_names.length, capsules = about.capsule_names.length, area = channels * height * width;
  one("step").value = step;
  one("number").value = `${step} of ${about.glimpses}`;
  paint(one("image"), image);
  paint(one("canvas"), outputs.canvases.slice((step - 1) * area, step * area));
  const windows = Array.from({ length: step }, (_, t) => outputs.windows.slice(4 * t, 4 * t + 4));
  one("windows").setAttribute("viewBox", `-0.5 -0.5 ${width} ${height}`);
  one("windows").replaceChildren(
    shape("polyline", { points: windows.map(([x, y]) => `${x},${y}`).join(" ") }),
    ...windows.map(([x, y]) => shape("circle", { cx: x, cy: y, r: width / 70 })),
    ...windows.slice(-2).map(([x, y, side], k, { length }) => shape("rect", {
      x: x - side / 2, y: y - side / 2, width: side, height: side, class: k === length - 1 ? "now" : "before",
    })),
  );
  const lengths = (t) => outputs.lengths.slice(t * capsules, (t + 1) * capsules);
  const scores = about.class_names.map((_, k) => windows.reduce((sum, _, t) => sum + lengths(t)[k], 0));
  const last = step === about.glimpses;
  const counts = last ? outputs.counts : named(scores);
  const answer = about.class_names.flatMap((name, k) => Array(counts[k]).fill(name));
  one("finished").textContent = last ? "Answer" : "Answer so far";
  one("answer").textContent = answer.join(" ") || "nothing";
  const winner = outputs.winners[step - 1];
  one("said").textContent =
    `Glimpse ${step}: taken for ${about.capsule_names[winner]}, with a capsule ${lengths(step - 1)[winner].toFixed(2)} long ` +
    "(0: not there, 1: no doubt).";
  const most = Math.max(1, ...outputs.scores);
  one("bars").replaceChildren(...scores.slice(0, classes).map((score, k) => bar(about.class_names[k], score, most, counts[k] > 0)));
}

function bar(name, score, most, isNamed) {
  const row = document.createElement("div");
  row.className = isNamed ? "bar named" : "bar";
  const [label, value] = [name, score.toFixed(2)].map((text) => Object.assign(document.createElement("span"), { textContent: text }));
  const track = shape("svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" });
  track.append(shape("rect", { width: (100 * score) / most, height: 1 }));
  row.append(label, track, value);
  return row;
}

function pause() {
  clearInterval(playing);
  playing = null;
  one("play").textContent = "Play";
}

function play() {
  pause();
  one("play").textContent = "Pause";
  playing = setInterval(() => {
    const next = Number(one("step").value) + 1;
    if (next > about.glimpses) return pause();
    show(next);
    if (next === about.glimpses) pause();
  }, SECOND);
}

function examples() {
  const objects = about.answer.objects ?? 2;
  const size = objects === 1 ? 0.6 : 0.46;
  return EXAMPLES.map((digits) => {
    const shown = digits.slice(0, Math.max(1, Math.min(2, objects)));
    const places = shown.length === 1 ? [[0.2, 0.2]] : [[0.16, 0.2], [0.44, 0.32]];
    const drawing = shown.flatMap((digit, k) =>
      DIGITS[digit].map((stroke) => stroke.map(([x, y]) => [places[k][0] + size * 0.8 * x, places[k][1] + size * y])));
    const canvas = Object.assign(document.createElement("canvas"), { width: 120, height: 120 });
    sheet(canvas, drawing);
    const button = Object.assign(document.createElement("button"), { type: "button" });
    button.setAttribute("aria-label", `A drawn ${shown.join(" and ")}`);
    button.append(canvas);
    button.addEventListener("click", () => {
      strokes = drawing.map((stroke) => [...stroke]);
      redraw();
      recognise();
    });
    return button;
  });
}

function listen() {
  const pad = one("pad");
  const at = (event) => {
    const frame = pad.getBoundingClientRect();
    return [(event.clientX - frame.left) / frame.width, (event.clientY - frame.top) / frame.height];
  };
  pad.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    event.preventDefault();
    clearTimeout(timer);
    pad.setPointerCapture(event.pointerId);
    strokes.push((current = [at(event)]));
    redraw();
  });
  pad.addEventListener("pointermove", (event) => {
    if (!current) return;
    // Between two frames a quick hand makes several movements; all of them belong to the stroke.
    const moves = event.getCoalescedEvents?.() || [];
    (moves.length ? moves : [event]).forEach((move) => current.push(at(move)));
    redraw();
  });
  const lift = () => {
    if (!current) return;
    current = null;
    timer = setTimeout(() => recognise().catch(fail), PAUSE);
  };
  pad.addEventListener("pointerup", lift);
  pad.addEventListener("pointercancel", lift);
  const change = (strokesLeft) => {
    strokes = strokesLeft;
    redraw();
    recognise().catch(fail);
  };
  one("undo").addEventListener("click", () => change(strokes.slice(0, -1)));
  one("clear").addEventListener("click", () => change([]));
  one("play").addEventListener("click", () => {
    if (playing) return pause();
    if (Number(one("step").value) === about.glimpses) show(1);
    play();
  });
  one("step").addEventListener("input", () => {
    pause();
    show(Number(one("step").value));
  });
}

function fail(error) {
  one("message").className = "error";
  one("message").textContent = `The network cannot run in this browser (${error.message || error}). Try a newer one.`;
}

async function start() {
  const here = (name) => new URL(name, import.meta.url).href;
  ort.env.wasm.numThreads = 1; // more need headers that few web servers send
  ort.env.wasm.wasmPaths = { mjs: here("ort/ort-wasm.js"), wasm: here("ort/ort-wasm.wasm") };
  about = await (await fetch(here("model.json"))).json();
  session = await ort.InferenceSession.create(here("model.onnx"));
  one("hint").textContent = about.hint;
  one("step").max = about.glimpses;
  one("limits").textContent = about.limits;
  one("about").textContent = `${about.name}: ${about.title}. ${about.terms.replaceAll("*", "")}`;
  redraw();
  one("examples").replaceChildren(...examples());
  listen();
  one("message").textContent = "";
  document.body.dataset.ready = "yes";
}

start().catch(fail);
