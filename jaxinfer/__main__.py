"""The program `jaxinfer`, also as `python -m jaxinfer`."""

from jaxinfer.engine.interrupts import end_at_ctrl_c, ended_by_ctrl_c


def main() -> None:
    """Run the command line. Until its verbs can hear Ctrl-C, and when they no longer do, it ends the program without a
    word: a KeyboardInterrupt would end the import of click in a traceback, and is lost where Python closes down.
    """
    with ended_by_ctrl_c():
        from jaxinfer import cli
    try:
        cli.main()
    finally:
        end_at_ctrl_c()


if __name__ == "__main__":
    main()
