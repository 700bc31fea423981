"""`python -m comt_cli` and the `comt` command."""

import signal


def main() -> None:
    """Run the command line (`comt_cli.app`)."""
    # From here on, Ctrl-C during imports ends the process without a traceback. In the background of a script SIGINT is
    # ignored, and stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from comt_cli.app import main as run

    run()


if __name__ == "__main__":
    main()
