// The body of a function(element, trigger, props, server, upload, watch) that Gradio calls once.
// A pad for finger, pen or mouse. Strokes are kept as shares of the pad, so that it can be drawn anew at any size.
const PAUSE = 350; // milliseconds of rest after which a drawing is shown to the model
const SIDE = 420; // pixels of the image that is sent
let base = null; // an image to draw over: the test image that is being looked at
let strokes = [];
let current = null;
let timer = null;

const one = (selector) => element.querySelector(selector);
const pad = () => one("canvas");

function at(event) {
  const frame = pad().getBoundingClientRect();
  return [(event.clientX - frame.left) / frame.width, (event.clientY - frame.top) / frame.height];
}

function redraw() {
  const canvas = pad();
  if (!canvas) return;
  canvas.width = canvas.height = SIDE;
  const pen = canvas.getContext("2d");
  pen.fillStyle = "black";
  pen.fillRect(0, 0, SIDE, SIDE);
  if (base) {
    const scale = SIDE / Math.max(base.width, base.height);
    const [width, height] = [base.width * scale, base.height * scale];
    pen.imageSmoothingEnabled = false;
    pen.drawImage(base, (SIDE - width) / 2, (SIDE - height) / 2, width, height);
  }
  pen.strokeStyle = pen.fillStyle = "white";
  pen.lineCap = pen.lineJoin = "round";
  strokes.forEach((stroke) => draw(pen, stroke));
  one(".ocra-pad").classList.toggle("drawn", strokes.length > 0);
  one(".ocra-pad").classList.toggle("over", base !== null);
}

function draw(pen, { width, points }) {
  pen.lineWidth = width * SIDE;
  const [first, ...others] = points.map(([x, y]) => [x * SIDE, y * SIDE]);
  pen.beginPath();
  if (others.length === 0) {
    pen.arc(...first, pen.lineWidth / 2, 0, 2 * Math.PI);
    return pen.fill();
  }
  pen.moveTo(...first);
  others.forEach(([x, y], k) => {
    const [nextX, nextY] = others[k + 1] || [x, y];
    pen.quadraticCurveTo(x, y, (x + nextX) / 2, (y + nextY) / 2);
  });
  pen.stroke();
}

function send(now) {
  clearTimeout(timer);
  const post = () => trigger("drawn", { image: strokes.length || base ? pad().toDataURL("image/png") : "" });
  if (now) post();
  else timer = setTimeout(post, PAUSE);
}

element.addEventListener("pointerdown", (event) => {
  if (event.target !== pad() || event.button > 0) return;
  event.preventDefault();
  clearTimeout(timer);
  pad().setPointerCapture(event.pointerId);
  // A stroke keeps its width when another model brings another pen: that is how it was shown.
  current = { width: Number(one(".ocra-pad").dataset.pen), points: [at(event)] };
  strokes.push(current);
  redraw();
});
element.addEventListener("pointermove", (event) => {
  if (!current) return;
  // Between two frames a quick hand makes several movements; all of them belong to the stroke.
  const moves = event.getCoalescedEvents?.() || [];
  (moves.length ? moves : [event]).forEach((move) => current.points.push(at(move)));
  redraw();
});
const lift = () => {
  if (!current) return;
  current = null;
  send(false);
};
element.addEventListener("pointerup", lift);
element.addEventListener("pointercancel", lift);
element.addEventListener("click", (event) => {
  if (event.target.closest(".clear")) [strokes, base] = [[], null];
  else if (event.target.closest(".undo")) strokes.pop();
  else if (event.target.closest(".recognise")) {
    send(true);
    const result = document.getElementById("ocra-view");
    if (result && result.getBoundingClientRect().top > window.innerHeight * 0.6) {
      result.scrollIntoView({ behavior: "smooth", block: "start" });
    }
    return;
  } else return;
  redraw();
  send(true);
});

// The view tells which test image it shows.
document.addEventListener("ocra-shown", ({ detail }) => {
  if (strokes.length) return;
  const image = new Image();
  image.onload = () => {
    base = image;
    redraw();
  };
  image.src = detail;
});

watch("value", redraw);
redraw();
