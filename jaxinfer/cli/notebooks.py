"""`jaxinfer notebooks`: the notebooks of docs/notebooks, for whoever has no checkout."""

from pathlib import Path

import click

from jaxinfer.cli.options import GroupedCommand
from jaxinfer.errors import ConfigError, file_fault

ROOM = Path(__file__).parents[1]
SOURCES = ROOM / "notebooks", ROOM.parent / "docs" / "notebooks"  # of a wheel, of a checkout


def run(folder: Path) -> int:
    """Write each that is not there yet, name all of them, and say how to run one."""
    source = next(source for source in SOURCES if source.is_dir())
    for path in sorted(source.glob("*.ipynb")):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / path.name).open("xb") as file:
                file.write(path.read_bytes())
        except FileExistsError:
            click.echo(f"{folder / path.name}  left as it was")
        except OSError as error:
            raise ConfigError(f"{file_fault('write', folder, error)}; choose another folder") from error
        else:
            click.echo(folder / path.name)
    click.echo(
        "open them in Jupyter or an editor, or run one with `jupyter execute`; they need jaxinfer[notebook]", err=True
    )
    return 0


command = GroupedCommand(
    "notebooks",
    run,
    [click.Argument(["folder"], required=False, default=".", type=click.Path(file_okay=False, path_type=Path))],
    help="Put notebooks into FOLDER, by default the current one: first steps, what happens in a step, benchmarking, a "
    "new model. What is there already stays.",
)
