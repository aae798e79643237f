"""The program `jaxinfer`, also as `python -m jaxinfer`."""

import signal


def main() -> None:
    """Run the command line. Until its verbs can hear Ctrl-C, and when they no longer do, it ends the program without a
    word: a KeyboardInterrupt would end the import of click in a traceback, and is lost where Python closes down.
    """
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not by a shell's background jobs
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from jaxinfer import cli

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cli.main()
    finally:
        if is_heard:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
