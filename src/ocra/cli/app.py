"""ocra app: a local web page to draw, look and compare."""

from ocra.cli.main import parse


def app(
    weights: tuple[str, ...] = (), host: str = "127.0.0.1", port: int | None = None, open: bool = False
) -> None:
    """Serve a web page on this machine: draw digits, watch the glimpses, move the model's gaze.

    Nothing leaves the machine and no internet is needed.

    Example: ocra app --open

    Args:
        weights: Names of shipped weights or folders of your own. Default: all that are shipped.
        host: Address to listen on; 0.0.0.0 lets other machines in your network see the page.
        port: Port to listen on. Default: the first free one from 7860.
        open: Open the page in the browser.
    """
    from ocra.app.server import serve

    serve(weights, host, port, open)


def main(args: list[str]) -> None:
    """Run `ocra app` with these arguments."""
    parse(app, args, "ocra app")
