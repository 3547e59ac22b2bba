"""The ``nasgrow`` command.

Commands import what they need when they run, so that ``--help`` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn

import click

from nasgrow import __version__
from nasgrow.cli.help_sections import Sections
from nasgrow.cli.number_lists import Numbers
from nasgrow.errors import UserError, WorkerError, presentable
from nasgrow.shape import MAX_SIZE, MOST_LAYERS


def _engine(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose where trials are trained, and the study's database."""
    options = (
        click.option(
            "--workers",
            type=click.IntRange(1, 1024),
            help="Trials to train at once; by default as many as fit.",
        ),
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help="Train in processes of this machine, or with Ray.",
        ),
        click.option("--address", help="Address of a Ray cluster; by default Ray is started here."),
        _storage,
    )
    for option in reversed(options):
        command = option(command)
    return command


def _set_storage(context: click.Context, option: click.Parameter, url: str | None) -> None:
    """Make this process and its workers use the Optuna storage of ``--storage``, if it is given."""
    if url is not None:
        from nasgrow.cli.passwords import warn_of_password

        if not url.strip():
            raise UserError("--storage: is empty: it must be a database URL; without it the file's is used")

        warn_of_password(url)
        os.environ["NASGROW_STORAGE"] = url


_storage = click.option(
    "--storage",
    metavar="URL",
    callback=_set_storage,
    expose_value=False,
    help="The study's database, in place of the file's; a URL with a password belongs in NASGROW_STORAGE.",
)


_quiet = click.option("--quiet", is_flag=True, help="Print the result only.")

COMMAND_SECTIONS = {
    "Start a study": ("init", "spaces", "schema", "plan"),
    "Search": ("search", "status", "dashboard", "confirm", "report", "compare", "map"),
    "Train one schedule": ("train", "slope", "family", "transfer"),
    "Use a model": ("sample", "export", "import", "grow"),
    "Look closer": ("log", "verify", "doctor", "table", "prefixes", "storage"),
}
"""The commands, grouped by task."""


@click.group(
    cls=Sections, sections=COMMAND_SECTIONS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="nasgrow")
def cli() -> None:
    """Search for the best way to grow a transformer while it trains."""


@cli.command()
@click.argument("name", required=False)
@click.option("--text", metavar="PATH_OR_HUB_NAME", help="A file, a folder, or a dataset of the hub.")
@click.option("--params", help="About how many parameters the final shape has: 500k, 10M.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="By default a GPU if there is one.")
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    help="Time for baselines and search; no limit by default.",
)
def init(
    name: str | None,
    text: str | None,
    params: str | None,
    device: Literal["cpu", "cuda"] | None,
    hours: float | None,
) -> None:
    """Write a first study file for your text and model size, and print the commands to run next.

    NAME is the file to write, my-study.yaml by default. Without --text and --params it asks for
    them.
    """
    from nasgrow.cli import init as command

    sys.exit(command.run(name, text, params, device, hours))


@cli.command()
@click.argument("name", required=False)
def spaces(name: str | None) -> None:
    """List the built-in search spaces and describe each; with NAME, print the file of one."""
    from nasgrow.cli import spaces as command

    sys.exit(command.run(name))


@cli.command()
@click.argument("file", type=click.Choice(["study", "run", "schedule", "space"]), default="study")
def schema(file: Literal["study", "run", "schedule", "space"]) -> None:
    """Print the JSON schema of study (the default), run, schedule or space files, for editors."""
    import json

    from nasgrow.schema import schema_of

    click.echo(json.dumps(schema_of(file), indent=2))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def verify(as_json: bool) -> None:
    """Check that every expansion preserves the function of every variant.

    Exit code 1 if anything is not preserved, or if no gradient reaches new parameters.
    """
    from nasgrow.cli import verify as command

    sys.exit(command.run(as_json))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def doctor(as_json: bool) -> None:
    """Measure this machine's device, and name what would be slow on it.

    It prints the share of peak FLOP/s by shape, the precision, and whether the same steps give the same
    bits twice.
    """
    from nasgrow.cli import doctor as command

    sys.exit(command.run(as_json))


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--budget", type=float, help="Training FLOPs, in place of the file's budget.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@click.option("--no-time", is_flag=True, help="Do not measure how long steps take on this machine.")
def plan(file: Path, budget: float | None, as_json: bool, no_time: bool) -> None:
    """Show what the schedule, run or study described in FILE will cost.

    For a run, it shows each stage; for a study or a study's folder, what is left to do.
    """
    from nasgrow.cli import plan as command

    sys.exit(command.run(file, budget, as_json, not no_time))


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--budget", type=float, help="Training FLOPs, in place of the file's budget.")
@click.option("--seed", type=click.IntRange(min=0), help="In place of the file's seed.")
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder; runs/NAME-HASH by default.")
@click.option("--json", "as_json", is_flag=True, help="Print progress and result as JSON lines.")
@_quiet
def train(
    file: Path, budget: float | None, seed: int | None, out: Path | None, as_json: bool, quiet: bool
) -> None:
    """Train the schedule or run described in FILE, or the best schedule of a study.

    For a study without results, it trains the final shape from scratch.

    The same command resumes a run that was stopped, and shows the result of one that has ended.
    """
    from nasgrow.cli import train as command

    sys.exit(command.run(file, budget, seed, out, as_json, quiet))


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--prompt", default="", help="The text to begin with.")
@click.option(
    "--tokens", default=200, show_default=True, type=click.IntRange(min=1), help="The most tokens to add."
)
@click.option(
    "--temperature",
    default=0.8,
    show_default=True,
    type=click.FloatRange(min=0),
    help="0 always chooses the likeliest token.",
)
@click.option("--top", type=click.IntRange(min=1), help="Sample from this many of the likeliest tokens.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Sampling seed.")
def sample(run: Path, prompt: str, tokens: int, temperature: float, top: int | None, seed: int) -> None:
    """Generate text: RUN is the folder of a run or of an exported model, or a study."""
    from nasgrow.cli import sample as command

    sys.exit(command.run(run, prompt, tokens, temperature, top, seed))


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", type=click.Path(path_type=Path), help="The folder to write; RUN/export by default.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["nasgrow", "hf"]),
    default="nasgrow",
    show_default=True,
    help="The files of nasgrow, or a Hugging Face checkpoint.",
)
def export(run: Path, to: Path | None, form: str) -> None:
    """Write the model of a run (RUN is its folder), or of a study's best schedule, as files.

    The files are weights (safetensors), shape and tokenizer. In Python, nasgrow.load(folder) loads the model,
    in either format.
    """
    from nasgrow import export as exports
    from nasgrow.cli.next_steps import run_of

    run, what = run_of(run)
    if what is not None:
        click.echo(what, err=True)
    to = to or run / "export"
    step, whole = (exports.export if form == "nasgrow" else exports.export_checkpoint)(run, to)
    ended = "" if whole else " of a run that has not ended"
    files, loads = "weights, shape and tokenizer", f"nasgrow.load({str(to)!r})"
    if form == "hf":
        files = "a Hugging Face checkpoint"
        loads = f"AutoModelForCausalLM.from_pretrained({str(to)!r}) or {loads}"
    click.echo(f"wrote {to} ({files}, after step {step}{ended}); load it with {loads}")


@cli.command("import")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--to", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option(
    "--context", type=click.IntRange(min=1), help="The longest sequence; the checkpoint's by default."
)
def import_(folder: Path, to: Path, context: int | None) -> None:
    """Convert the Hugging Face checkpoint in FOLDER to a nasgrow model, if an exact one exists."""
    from nasgrow.export import import_checkpoint

    model = import_checkpoint(folder, to, context)
    click.echo(f"{to}: {model.shape}")


@cli.command()
@click.option("--from", "source", type=click.Path(path_type=Path), required=True, help="The checkpoint.")
@click.option("--to", "sizes", required=True, help="Sizes: hidden=3072,layers=24. Others stay.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option("--operator", default="preserve", show_default=True, help="How new parameters get values.")
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="As in the checkpoint by default, or float32 if that would round rescaled values.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="For new parameters.")
def grow(source: Path, sizes: str, out: Path, operator: str, dtype: str | None, seed: int) -> None:
    """Grow the Hugging Face checkpoint in a folder into another, one tensor in memory at a time.

    At the end the logits of both are compared. Exit code 1 if they differ although the operator preserves
    them, which happens if --dtype rounds.
    """
    from nasgrow.cli import grow as command

    sys.exit(command.run(source, sizes, out, operator, dtype, seed))


@cli.command()
@click.argument("study", type=click.Path(path_type=Path))
@_engine
@click.option(
    "--trials",
    type=click.IntRange(1, 1_000_000_000),
    help="The number of trials, in place of the file's; a larger one adds trials.",
)
@click.option("--json", "as_json", is_flag=True, help="Print progress and summary as JSON lines.")
@_quiet
def search(
    study: Path,
    workers: int | None,
    engine: Literal["local", "ray"],
    address: str | None,
    trials: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the study described in the file STUDY, baselines first, and print its answer.

    The same command resumes a study that was stopped or killed, and shows one that has ended. Exit code 1
    if fewer trials were done than asked for: workers kept dying, or the space has no further point.
    """
    from nasgrow.cli import search as command
    from nasgrow.experiments.search import Workplace

    sys.exit(command.run(study, Workplace(engine, address, workers), trials, as_json, quiet))


@cli.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def status(study: Path, as_json: bool) -> None:
    """Show where a study stands: STUDY is its file or its folder."""
    from nasgrow.cli import search as command

    sys.exit(command.status(study, as_json))


@cli.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option(
    "--top",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many schedules, and how many fixed shapes.",
)
@click.option(
    "--each",
    metavar="PARAMETER",
    help="That many schedules for each value of a searched parameter, such as operator.",
)
@click.option(
    "--seeds", default=5, show_default=True, type=click.IntRange(min=1), help="Fresh seeds for each."
)
@_engine
@click.option("--json", "as_json", is_flag=True, help="Print progress and summary as JSON lines.")
@_quiet
def confirm(
    study: Path,
    top: int,
    each: str | None,
    seeds: int,
    workers: int | None,
    engine: Literal["local", "ray"],
    address: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Retrain the best schedules and fixed shapes with fresh seeds, and measure them on the test split.

    It first tunes the final shape and the two best fixed shapes under other budgets, to measure the compute
    saved. The same command resumes. An unconfirmed study has candidates, but no verdict. Exit code
    1 if a confirmation failed, because its workers kept dying.
    """
    from nasgrow.cli import confirm as command
    from nasgrow.experiments.search import Workplace

    sys.exit(command.run(study, top, each, seeds, Workplace(engine, address, workers), as_json, quiet))


@cli.command()
@click.argument("study", type=click.Path(path_type=Path))
@_storage
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0 chooses a free one."
)
def dashboard(study: Path, host: str, port: int) -> None:
    """Open a study in optuna-dashboard: STUDY is its file or its folder."""
    from nasgrow.cli import dashboard as command

    sys.exit(command.run(study, host, port))


@cli.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--to", type=click.Path(path_type=Path), help="The folder to write; reports/NAME by default.")
@_quiet
def report(study: Path, to: Path | None, quiet: bool) -> None:
    """Write the report of a study, with figures and tables: STUDY is its file or its folder.

    It works at any time after the search has begun, and names what is missing.
    """
    from nasgrow.cli import report as command

    sys.exit(command.run(study, to, quiet))


@cli.command()
@click.argument("studies", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--name", help="The title; the names of the studies by default.")
@click.option("--to", type=click.Path(path_type=Path), help="The folder to write; reports/NAME by default.")
@_quiet
def compare(studies: tuple[Path, ...], name: str | None, to: Path | None, quiet: bool) -> None:
    """Compare several studies in one report: STUDIES are their files or folders.

    Losses that are not comparable are not ranked; other differences are listed.
    """
    from nasgrow.cli import compare as command

    sys.exit(command.run(studies, name, to, quiet))


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--final", help="A file with a shape, or sizes: hidden=128,layers=4. Other sizes stay.")
@click.option(
    "--scale",
    type=click.FloatRange(min=0, min_open=True),
    help="In place of --final: multiply hidden size, layers, MLP widths and heads by this.",
)
@click.option("--budget", type=float, help="Training FLOPs of every run.")
@click.option(
    "--tokens-per-parameter",
    type=float,
    help="In place of --budget: tokens for each parameter; as in FILE by default.",
)
@click.option("--learning-rates", type=Numbers(), help="Rates to try; around FILE's by default.")
@click.option(
    "--budgets",
    type=Numbers(),
    help="Train fixed shapes with these multiples of the budget too: 2,3. They tell how much growth saves.",
)
@click.option(
    "--seeds", default=5, show_default=True, type=click.IntRange(min=1), help="Fresh seeds for each."
)
@click.option("--name", help="The study's name; from FILE, shape and budget by default.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="The study file; runs/NAME/transfer.yaml by default."
)
@click.option("--to", type=click.Path(path_type=Path), help="The report's folder; reports/NAME by default.")
@click.option(
    "--workers", type=click.IntRange(1, 1024), help="Worker processes; one for each GPU or core by default."
)
@click.option("--plan", "plan_only", is_flag=True, help="Show schedule and cost, train nothing.")
@_quiet
def transfer(
    file: Path,
    final: str | None,
    scale: float | None,
    budget: float | None,
    tokens_per_parameter: float | None,
    learning_rates: tuple[float, ...] | None,
    budgets: tuple[float, ...] | None,
    seeds: int,
    name: str | None,
    out: Path | None,
    to: Path | None,
    workers: int | None,
    plan_only: bool,
    quiet: bool,
) -> None:
    """Scale the schedule or run in FILE to another final shape or budget, and see whether it still wins.

    A study trains it and that shape from scratch, with the same budget and learning rates. The same command
    resumes it. FILE may be a report's best-schedule.yaml.
    """
    from nasgrow.cli import transfer as command
    from nasgrow.experiments.transfer import Target

    target = Target(final, scale, budget, tokens_per_parameter, learning_rates or (), name, budgets or ())
    sys.exit(
        command.run(
            file, target, out=out, to=to, seeds=seeds, workers=workers, plan_only=plan_only, quiet=quiet
        )
    )


@cli.command(name="map")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--to", type=click.Path(path_type=Path), help="The report's folder; reports/NAME by default.")
@click.option("--plan", "plan_only", is_flag=True, help="Show the cells and their cost, train nothing.")
@click.option(
    "--report", "report_only", is_flag=True, help="Write the report of the results so far, train nothing."
)
@click.option(
    "--predict",
    type=(click.IntRange(1, MAX_SIZE), click.IntRange(1, MOST_LAYERS), float),
    metavar="HIDDEN LAYERS TOKENS",
    help="Predict the compute saved at another hidden size, number of layers and tokens per parameter.",
)
@_engine
@_quiet
def map_(
    file: Path,
    to: Path | None,
    plan_only: bool,
    report_only: bool,
    predict: tuple[int, int, float] | None,
    workers: int | None,
    engine: Literal["local", "ray"],
    address: str | None,
    quiet: bool,
) -> None:
    """Run the study in FILE at several final shapes and budgets, and show where growth pays.

    Each cell is a study that is searched and confirmed, the cheapest first. The same command
    resumes. It skips a cell that the report's folder holds as confirmed, unless the cell's study is
    at hand: that is resumed.
    """
    from nasgrow.cli import map as command
    from nasgrow.experiments.search import Workplace

    if predict is not None:
        if plan_only or report_only:
            raise UserError("--predict cannot be combined with --plan or --report: it only prints")
        sys.exit(command.predict(file, to, *predict))
    place = Workplace(engine, address, workers)
    sys.exit(command.run(file, place, to=to, plan_only=plan_only, report_only=report_only, quiet=quiet))


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--budget", type=float, help="Training FLOPs of every model, in place of the file's budget.")
@click.option(
    "--learning-rates", type=Numbers(), help="Rates to try; half, once and twice FILE's by default."
)
@click.option(
    "--seeds", default=5, show_default=True, type=click.IntRange(min=1), help="Fresh seeds for each model."
)
@click.option("--name", help="The family's name; from FILE by default.")
@click.option("--to", type=click.Path(path_type=Path), help="The report's folder; reports/NAME by default.")
@click.option("--plan", "plan_only", is_flag=True, help="Show sizes and cost, train nothing.")
@_quiet
def family(
    file: Path,
    budget: float | None,
    learning_rates: tuple[float, ...] | None,
    seeds: int,
    name: str | None,
    to: Path | None,
    plan_only: bool,
    quiet: bool,
) -> None:
    """Train models of several sizes that share a prefix: one for each stage of the schedule in FILE.

    Each is compared with its size from scratch under the same budget. The same command resumes.
    """
    from nasgrow.cli import family as command

    sys.exit(
        command.run(
            file,
            flops=budget,
            rates=learning_rates,
            seeds=seeds,
            name=name,
            to=to,
            plan_only=plan_only,
            quiet=quiet,
        )
    )


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--budget", type=float, help="Training FLOPs, in place of the file's budget.")
@click.option("--seed", type=click.IntRange(min=0), help="In place of the file's seed.")
@click.option("--name", help="The name of the folder in runs; from FILE by default.")
@_quiet
def slope(file: Path, budget: float | None, seed: int | None, name: str | None, quiet: bool) -> None:
    """Train the schedule or run in FILE, with each event as soon as the loss is as flat as its slope.

    The times of the events are written as an ordinary run file. The same command resumes.
    """
    from nasgrow.cli import slope as command

    sys.exit(command.run(file, budget, seed, name, quiet))


@cli.command()
@click.argument("path", metavar="RUN_OR_STUDY", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "tracker",
    type=click.Choice(["tensorboard", "wandb", "trackio", "mlflow"]),
    required=True,
    help="The tracker.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The folder to write; TRACKER/NAME by default.")
def log(path: Path, tracker: str, out: Path | None) -> None:
    """Write the records of a run, or of all runs of a study, for a tracker."""
    from nasgrow.cli import log as command

    sys.exit(command.run(path, tracker, out))


@cli.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--to", type=click.Path(path_type=Path), help="The file to write; NAME.parquet by default.")
def table(study: Path, to: Path | None) -> None:
    """Write the loss curves of STUDY's search trials as one Parquet table, to replay searches on.

    It refuses a study with pruned or paused trials. A study with sampler.kind grid trains every
    point of its space.
    """
    from nasgrow.cli import table as command

    sys.exit(command.run(study, to))


@cli.group(invoke_without_command=True)
@click.option(
    "--at",
    "folder",
    type=click.Path(path_type=Path),
    default="runs/prefixes",
    show_default=True,
    help="The folder of the prefix cache.",
)
@click.pass_context
def prefixes(context: click.Context, folder: Path) -> None:
    """List, verify or prune the training states that runs share; without a command, list them."""
    context.obj = folder
    if context.invoked_subcommand is None:
        context.invoke(list_prefixes, as_json=False)


@prefixes.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@click.pass_obj
def list_prefixes(folder: Path, as_json: bool) -> None:
    """List the states: position in the budget, FLOPs that a use saves, number of uses."""
    from nasgrow.cli import prefixes as command

    sys.exit(command.show(folder, as_json))


@prefixes.command("verify")
@click.pass_obj
def verify_prefixes(folder: Path) -> None:
    """Check the hash of every file; exit code 1 if a state is damaged."""
    from nasgrow.cli import prefixes as command

    sys.exit(command.verify(folder))


@prefixes.command("prune")
@click.option("--gigabytes", type=click.FloatRange(min=0), help="Keep the most valuable states up to this.")
@click.pass_obj
def prune_prefixes(folder: Path, gigabytes: float | None) -> None:
    """Remove damaged states and files of dead processes; with --gigabytes also the least valuable states."""
    from nasgrow.cli import prefixes as command

    sys.exit(command.prune(folder, gigabytes))


@cli.group()
def storage() -> None:
    """Test the database of studies."""


@storage.command("check")
@click.argument("url", required=False)
def check_storage(url: str | None) -> None:
    """Test whether the database at URL can hold a study; only Optuna's tables are left there.

    Without URL, it tests the database in NASGROW_STORAGE, or in the file that NASGROW_STORAGE_FILE names.
    """
    from nasgrow.cli import storage as command

    sys.exit(command.check(url))


def main() -> None:
    """Run the command line. A user's mistake prints one line on standard error and exits with code 2.

    A bug prints a traceback and exits with code 1; an interruption exits with code 130.
    """
    # Threads that spin while they wait make every step many times slower if other processes run.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        sys.exit(cli(standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo("nasgrow: interrupted", err=True)
        sys.exit(130)
    except WorkerError as error:
        click.echo(f"nasgrow: {error}", err=True)  # includes the worker's traceback
        sys.exit(1)
    except Exception as error:
        line = in_one_line(error)
        if line is None:
            traceback.print_exception(error)
            click.echo(
                f"nasgrow: this is a bug in nasgrow {__version__}, not a mistake of yours: please report it "
                "with the lines above, the command and the file",
                err=True,
            )
            sys.exit(1)
        _fail(line)


OWN_FAULTS = {None, errno.EBADF, errno.EINVAL, errno.EEXIST, errno.ENOTEMPTY, errno.ESRCH, errno.ECHILD}
"""Error numbers of the system that point to a bug, and not to a disk, a permission or a network."""


def in_one_line(error: Exception) -> str | None:
    """Return the line to print for a user's mistake or a failure outside nasgrow; None for a bug.

    Passwords are removed from it.
    """
    if isinstance(error, click.ClickException):
        return presentable(error.format_message())
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        told = f"{error.filename or 'a file'}: {(error.strerror or str(error)).lower()}"
        return None if error.errno in OWN_FAULTS else presentable(told)
    if not type(error).__module__.startswith(("sqlalchemy.", "optuna.")):
        return None
    from nasgrow.study.storage import is_unusable, summary_of

    return presentable(f"storage: cannot be used: {summary_of(error)}") if is_unusable(error) else None


def _fail(message: str) -> NoReturn:
    click.echo(f"nasgrow: {message}", err=True)
    sys.exit(2)
