"""The program `jaxinfer`, also as `python -m jaxinfer`. It imports nothing before main, which a Ctrl-C ends quietly."""


def main() -> None:
    """Run the command line. Until its verbs can hear Ctrl-C, and when they no longer do, it ends the program without a
    word: a KeyboardInterrupt would end the import of click in a traceback, and is lost where Python closes down.
    """
    try:
        from jaxinfer.engine.interrupts import end_at_ctrl_c, ended_by_ctrl_c

        with ended_by_ctrl_c():
            from jaxinfer import cli
    except KeyboardInterrupt:  # of the few milliseconds before the handler
        raise SystemExit(130) from None
    try:
        cli.main()
    finally:
        end_at_ctrl_c()


if __name__ == "__main__":
    main()
