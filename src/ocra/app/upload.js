// The body of a function(element, trigger, props, server, upload, watch) that Gradio calls once.
// A file is sent to the server under a token, and the token is handed over like any other action.
const MB = 1e6;
const drop = () => element.querySelector(".ocra-drop");

async function send(file) {
  if (!file) return;
  const told = { token: "", name: file.name, problem: "" };
  const most = Number(drop().dataset.most);
  if (file.size > most) told.problem = `${file.name} is larger than ${most / MB} MB; make it smaller first.`;
  else if (file.size === 0) told.problem = `${file.name} is empty.`;
  else {
    drop().classList.add("busy");
    try {
      const headers = { "x-ocra-upload": "1", "content-type": "application/octet-stream" };
      const answer = await fetch(new URL("ocra/upload", document.baseURI), { method: "POST", headers, body: file });
      told[answer.ok ? "token" : "problem"] = await answer.text();
    } catch {
      told.problem = "The file could not be sent: the server does not answer.";
    }
    drop().classList.remove("busy");
  }
  trigger("uploaded", told);
}

element.addEventListener("change", (event) => {
  if (event.target.type !== "file") return;
  send(event.target.files[0]);
  event.target.value = ""; // so that the same file can be chosen again
});
["dragover", "dragleave", "drop"].forEach((kind) =>
  element.addEventListener(kind, (event) => {
    event.preventDefault();
    drop().classList.toggle("over", kind === "dragover");
    if (kind === "drop") send(event.dataTransfer.files[0]);
  }),
);
