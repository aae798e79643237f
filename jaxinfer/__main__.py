"""The program `jaxinfer`, also as `python -m jaxinfer`. It imports nothing before main, which a Ctrl-C ends quietly."""


def main() -> None:
    """Run the command line. Until its verbs can hear Ctrl-C, and when they no longer do, it ends the program without a
    word: a KeyboardInterrupt would end the import of click in a traceback, and is lost where Python closes down.

    A verb that Ctrl-C has ended does not close Python down: a thread that compiles cannot be stopped, and would be
    waited for, or abort the process when what it uses is gone.
    """
    try:
        from jaxinfer.engine.interrupts import INTERRUPTED, end_at_ctrl_c, end_now, ended_by_ctrl_c

        with ended_by_ctrl_c():
            from jaxinfer import cli
    except KeyboardInterrupt:  # of the few milliseconds before the handler
        raise SystemExit(130) from None
    try:
        cli.main()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            end_now()
        raise
    finally:
        end_at_ctrl_c()


if __name__ == "__main__":
    main()
