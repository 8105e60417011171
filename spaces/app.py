"""OCRA's page as a Hugging Face Space. Upload this folder as it is; `ocra app` shows the same page on your machine."""

from ocra.app.server import serve

WEIGHTS = ("multimnist-3", "multimnist-10", "cluttered-5")

if __name__ == "__main__":
    serve(WEIGHTS, host="0.0.0.0", port=7860)  # where a Space is expected to answer
