"""The command line.

TensorFlow is imported inside the commands, so that `--help` answers at once.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from experiments import RESULTS, options
from experiments.benchmark import PARTS as BENCHMARK_PARTS
from experiments.interrupts import interruptible

app = typer.Typer(
    help="Experiments of 'Versatile Inverse Reinforcement Learning via Cumulative Rewards' "
    "(V-IRL).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        import virl_tf

        print(f"virl_tf {virl_tf.__version__}")
        raise typer.Exit


@app.callback()
def _options_of_all(
    version: Annotated[
        bool,
        Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command("run")
@interruptible()
def run_command(
    task: options.Task,
    method: options.Method = "virl",
    components: options.Components = 10,
    modes: options.Modes = None,
    steps: options.Steps = None,
    dim: options.Dim = None,
    rows: options.Rows = None,
    seed: Annotated[int, Option(help="Seed of demonstrations and training.")] = 0,
    task_seed: Annotated[int | None, Option(help="Of a random target; default: --seed.")] = None,
    preset: Annotated[
        str | None,
        options.preset(
            "smoke (half a minute), quick (a minute), paper (the published hyperparameters; "
            f"minutes) or best (beyond the paper). {options.DEFAULT}"
        ),
    ] = None,
    hparams: Annotated[
        Path | None,
        options.given(
            "FILE", "YAML file of hyperparameters put over the preset's; tuned: those of `compare`."
        ),
    ] = None,
    set_: options.Set = None,
    tensorboard: options.Tensorboard = True,
    out: Annotated[
        Path | None, options.folder("Run folder; default: runs/ and the run's name.")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Draw demonstrations, recover their reward, evaluate and draw it.

    Continues a stopped run, leaves a finished one alone.
    """
    from experiments.specification import RunRequest

    target = (modes, steps, dim, rows, seed, task_seed)
    request = RunRequest(task, method, components, *target, preset, hparams, set_ or [])
    spec = request.specification()
    from virl_tf.persistence.run_folder import RunFolder

    out = out or Path("runs") / spec.name
    RunFolder.open(out, spec.to_config())
    from experiments.runs import execute  # TensorFlow, when all arguments are right

    execute(spec, out, tensorboard=tensorboard, quiet=quiet)


@app.command("fit")
@interruptible()
def fit_command(
    demonstrations: options.DataFile,
    trajectories: options.AreTrajectories = False,
    encoding: options.EncodingKind = "auto",
    encoding_size: options.EncodingSize = None,
    via: options.Via = None,
    phase: options.Phase = None,
    tolerance: options.Tolerance = None,
    episode: options.Episode = None,
    time: options.Time = None,
    method: options.Method = "virl",
    components: Annotated[
        int | None,
        Option(
            help="Components of the policy; default: chosen by the likelihood of held-out rows."
        ),
    ] = None,
    seed: Annotated[int, Option(help="Seed of everything random.")] = 0,
    array: options.ArrayName = None,
    columns: options.Columns = None,
    exclude: options.Exclude = None,
    contexts: options.Contexts = None,
    group: options.Group = None,
    periodic: options.Periodic = None,
    lower: options.Lower = None,
    upper: options.Upper = None,
    dither: options.Dither = False,
    held_out: Annotated[
        float, options.given("SHARE", "Of the rows, for the score; 0: none.")
    ] = 0.1,
    hparams: options.HparamsFile = None,
    set_: options.Set = None,
    tensorboard: options.Tensorboard = True,
    out: Annotated[
        Path | None, options.folder("Run folder; default: runs/ and the file's name.")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Recover the reward of your own demonstrations.

    Continues a stopped run, leaves a finished one alone.
    """
    from experiments.own_data.fit_request import FitRequest, TrajectoryRequest, read
    from experiments.own_data.trajectory_files import TrajectoryFile

    file = TrajectoryFile.of(
        demonstrations,
        array=array,
        columns=columns,
        exclude=exclude,
        episode=episode,
        time=time,
        contexts=contexts,
    )
    how = TrajectoryRequest.of(
        trajectories,
        file,
        encoding=encoding,
        encoding_size=encoding_size,
        via=via,
        phase=phase,
        tolerance=tolerance,
    )
    request = FitRequest.of(
        file,
        how,
        method=method,
        components=components,
        seed=seed,
        held_out=held_out,
        hparams_file=hparams,
        assignments=set_ or [],
        group=group,
        periodic=periodic,
        lower=lower,
        upper=upper,
        dither=dither,
    )
    found = read(request)
    from experiments.own_data.fit_command import (
        fit_file,  # TensorFlow, when all arguments are right
    )

    folder = out or _named_after(demonstrations, "runs")
    fit_file(request, found, folder, tensorboard, not quiet)


def _named_after(path: Path, parent: str) -> Path:
    """A folder in `parent` by the name of a file, or of a folder, which may be given as "."."""
    whole = Path(os.path.abspath(path))
    return Path(parent) / (whole.name if whole.is_dir() else whole.stem)


@app.command("convert")
def convert_command(
    form: Annotated[
        str,
        Argument(
            autocompletion=options.completion(options.forms),
            help="grand-central: OpenTraj's folder datasets/GC. obsmat: a file of ETH or UCY. "
            "trajnet: a file of TrajNet. edinburgh: a day of the Edinburgh forum. avoiding: the "
            "folder of D3IL's pickles, of which only arrays are read.",
        ),
    ],
    sources: Annotated[
        list[Path], Argument(metavar="SOURCE...", help="The publisher's files or folders.")
    ],
    out: Annotated[Path, options.given("FILE", "An .npz with an array [T, 2] for each path.")],
    apart: Annotated[
        float, Option(min=0.0, help="Leave out paths whose ends are nearer than this.")
    ] = 0.0,
    quiet: options.Quiet = False,
) -> None:
    """Convert published demonstrations of people for fit and judge --trajectories."""
    from experiments.own_data.originals import convert

    print(convert(form, sources, out, apart))


@app.command("judge")
@interruptible()
def judge_command(
    demonstrations: options.DataFile,
    trajectories: options.AreTrajectories = False,
    encoding: options.EncodingKind = "auto",
    encoding_size: options.EncodingSize = None,
    via: options.Via = None,
    phase: options.Phase = None,
    tolerance: options.Tolerance = None,
    episode: options.Episode = None,
    time: options.Time = None,
    splits: Annotated[
        int, Option(help="Fits, each with other rows kept back; more may be asked for later.")
    ] = 3,
    keep_back: Annotated[
        float, options.given("SHARE", "Of the rows, which no density sees but is measured on.")
    ] = 0.2,
    outcome: Annotated[
        str | None,
        options.given(
            "FILE.py",
            "Your Python file with outcome(x, kept_back) -> {name: number}: what draws x [S, D] do "
            "(with --trajectories paths [S, T, D]), beside the kept-back rows.",
        ),
    ] = None,
    method: options.Method = "virl",
    components: Annotated[
        list[str] | None,
        options.given(
            "K,...",
            "Components of the policy, then of policies fitted to the reward further on; "
            "repeatable. Default: one policy, its size chosen.",
        ),
    ] = None,
    seed: Annotated[int, Option(help="Of the first split; the others have the next ones.")] = 0,
    array: options.ArrayName = None,
    columns: options.Columns = None,
    exclude: options.Exclude = None,
    contexts: options.Contexts = None,
    group: options.Group = None,
    periodic: options.Periodic = None,
    lower: options.Lower = None,
    upper: options.Upper = None,
    dither: options.Dither = False,
    hparams: options.HparamsFile = None,
    set_: options.Set = None,
    out: Annotated[Path | None, options.folder("Default: judged/ and the file's name.")] = None,
    quiet: options.Quiet = False,
) -> None:
    """Is the reward better than EM, kernels or a flow on your demonstrations?

    Fits all of them to the same rows, and measures each on rows kept back: by likelihood and, with
    --outcome, by what draws do. Writes judge.csv, judge.png and a fit for each split; continues
    where it was stopped.
    """
    from experiments.own_data.fit_request import FitRequest, TrajectoryRequest, read
    from experiments.own_data.judge_request import JudgeRequest, parse_components
    from experiments.own_data.trajectory_files import TrajectoryFile

    sizes = parse_components(components)
    request = JudgeRequest.of(sizes, splits, keep_back, outcome)
    file = TrajectoryFile.of(
        demonstrations,
        array=array,
        columns=columns,
        exclude=exclude,
        episode=episode,
        time=time,
        contexts=contexts,
    )
    how = TrajectoryRequest.of(
        trajectories,
        file,
        encoding=encoding,
        encoding_size=encoding_size,
        via=via,
        phase=phase,
        tolerance=tolerance,
    )
    fit = FitRequest.of(
        file,
        how,
        method=method,
        components=sizes[0] if sizes else None,
        seed=seed,
        held_out=0.0,
        hparams_file=hparams,
        assignments=set_ or [],
        group=group,
        periodic=periodic,
        lower=lower,
        upper=upper,
        dither=dither,
    )
    found = read(fit)
    from experiments.own_data.judge_command import judge

    judge(fit, request, found, out or _named_after(demonstrations, "judged"), not quiet)


@app.command("play")
@interruptible()
def play_command(
    demonstrations: Annotated[Path, Argument(metavar="FILE", help=options.PATHS_FILE_HELP)],
    world: Annotated[
        str,
        options.given(
            "FILE.py",
            "Your Python file with World(n, seed): .positions \\[n, D] at the start (targets count "
            "then), .move(targets \\[n, D]) for one sample, .outcome() -> {name: number}.",
        ),
    ],
    episode: options.Episode = None,
    time: options.Time = None,
    move_steps: Annotated[
        int | None, Option(help="Samples until a new move is chosen; default: episode / 9.")
    ] = None,
    runs: Annotated[int, Option(help="How many are played.")] = 500,
    candidates: Annotated[
        int, Option(help="Proposed moves, of which the reward refuses those 6 nats below the best.")
    ] = 8,
    method: options.Method = "virl",
    components: Annotated[int | None, Option(help="Of the policy; default: chosen.")] = None,
    seed: Annotated[int, Option(help="Of the fit, and of all that is played.")] = 0,
    array: options.ArrayName = None,
    columns: options.Columns = None,
    exclude: options.Exclude = None,
    hparams: options.HparamsFile = None,
    set_: options.Set = None,
    out: Annotated[Path | None, options.folder("Default: played/ and the file's name.")] = None,
    quiet: options.Quiet = False,
) -> None:
    """Do moves learnt from trajectories reach the goal in closed loop, in your own world?

    Fits a reward to what is done next given what was done last. Plays proposals that it does not
    refuse, its policy, kernels, EM and behaviour cloning. Writes play.csv, play.png and the fit.
    """
    from experiments.own_data.fit_request import FitRequest, TrajectoryRequest, read_trajectories
    from experiments.own_data.play_request import PlayRequest
    from experiments.own_data.trajectory_files import TrajectoryFile

    request = PlayRequest.of(world, move_steps, runs, candidates)
    file = TrajectoryFile.of(
        demonstrations,
        array=array,
        columns=columns,
        exclude=exclude,
        episode=episode,
        time=time,
    )
    fit = FitRequest.of(
        file,
        TrajectoryRequest(),
        method=method,
        components=components,
        seed=seed,
        held_out=0.1,
        hparams_file=hparams,
        assignments=set_ or [],
    )
    episodes = read_trajectories(file, TrajectoryRequest()).episodes
    from experiments.own_data.play_command import play_file

    play_file(fit, request, episodes, out or _named_after(demonstrations, "played"), not quiet)


@app.command("infer")
@interruptible("starts again")
def infer_command(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="Folders of finished runs.")],
    components: Annotated[int, Option(help="Components of the new policy.")],
    search: Annotated[
        bool | None,
        Option(
            "--search/--fixed",
            help="Add and prune components first, or keep one set of them, as in our runs of the "
            "paper; default: search, but none for all contexts, below --temperature 1, or with "
            "--support on one reward with an EM mixture, whose draws are the start.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        Option(
            help="Trust-region steps; default: 300 for all contexts, 400 if fixed, 30 after a "
            "search, else 60."
        ),
    ] = None,
    samples: Annotated[
        int | None,
        Option(
            help="Samples per component and step; default: 100 if fixed, else (and for all "
            "contexts) by the dimension."
        ),
    ] = None,
    seed: Annotated[int, Option(help="Seed of the new policy.")] = 0,
    context: Annotated[
        str | None,
        options.given(
            "A=1,B=2",
            "Of a fit with contexts: the one to fit the policy for; default: all demonstrated.",
        ),
    ] = None,
    contexts: Annotated[
        Path | None,
        options.given(
            "FILE",
            "Of a fit with contexts: those to fit it for, columns of this file by their names.",
        ),
    ] = None,
    temperature: Annotated[
        float,
        Option(
            help="Of a fit: below 1 the policy keeps nearer to what is likeliest, and, but with "
            "--search, --fixed or contexts, no component's weight changes."
        ),
    ] = 1.0,
    obstacles: Annotated[
        float | None,
        options.given("SHARE", "path_planning: block this share of the paths, e.g. 0.33."),
    ] = None,
    support: Annotated[
        str | None,
        options.given(
            "FILE.py:NAME",
            "Your Python function of points [N, D] (for all contexts of rows \\[c, x]) that is "
            "true where the policy may go; default NAME: support.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        options.folder(
            "Default: inference/ or obstacles/ in the (first) run's folder; of a committed run's, "
            "in runs/ and its name."
        ),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Fit a newly initialised policy to the reward of a run, or to the average reward of several
    runs on the same task.
    """
    from experiments.early_checks import check_infer

    check_infer(runs, components, steps, samples, seed)
    from experiments.figures import own
    from experiments.inference import InferenceRequest, infer
    from experiments.own_data.fit_request import parse_numbers

    where = parse_numbers("--context", context)
    how = (components, search, steps, samples, seed, obstacles, support, where, contexts)
    request = InferenceRequest(*how, temperature)
    folder = "inference" if obstacles is None else "obstacles"
    infer(runs, request, out or own(runs[0]) / folder)


@app.command("sweep")
@interruptible()
def sweep_command(
    task: options.Task,
    preset: Annotated[
        str | None,
        options.preset(
            "smoke (minutes), quick, paper (gaussians: half a day, grid_walker: two hours, on 2 "
            f"cores) or best. {options.DEFAULT}"
        ),
    ] = None,
    modes: Annotated[
        str | None, options.given("M,M,...", options.size_help("modes", options.INSTEAD))
    ] = None,
    steps: Annotated[
        str | None, options.given("D,D,...", options.size_help("steps", options.INSTEAD))
    ] = None,
    seeds: Annotated[str | None, options.seeds("Seeds instead of the preset's.")] = None,
    methods: Annotated[
        str | None, options.given("NAME,...", "Methods instead of all the task's.")
    ] = None,
    dim: options.Dim = None,
    rows: options.Rows = None,
    scheduler: options.Scheduler = None,
    workers: options.LocalWorkers = None,
    search: Annotated[
        bool,
        Option(
            "--search",
            help="Infer also with components that come and go; completes a finished sweep.",
        ),
    ] = False,
    set_: options.Set = None,
    out: Annotated[Path | None, options.folder("Default: sweeps/TASK[-DIM][-ROWS]-PRESET.")] = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
) -> None:
    """All methods and seeds of a task's figures, with inference. What has a record is skipped."""
    from experiments.sweeps.sweep import Workers
    from experiments.sweeps.units import SweepRequest

    target = (modes, steps, seeds, search, set_ or [], dim, rows, methods)
    request = SweepRequest(task, preset, *target)
    request.units()
    from experiments.sweeps.sweep_command import preview, sweep

    act = preview if dry_run else sweep
    act(request, Workers.of_units(scheduler, workers), out or request.folder)


@app.command("ablate")
@interruptible()
def ablate_command(
    task: options.Task,
    only: Annotated[
        str | None,
        options.given(
            "NAME,...",
            "Rows of the table; default: all. What is written holds those asked for last.",
        ),
    ] = None,
    table: Annotated[
        str,
        Option(
            help="Of hparams: ablations (of `best`), method_ablations (of the paper's methods) or "
            "open_choices (what the paper leaves open)."
        ),
    ] = "ablations",
    seeds: Annotated[str, options.seeds("Seeds of every ablation.")] = "100,101,102",
    modes: options.Modes = None,
    steps: options.Steps = None,
    dim: options.Dim = None,
    rows: options.Rows = None,
    rewards_only: Annotated[
        bool, Option("--rewards-only", help="Infer no policies on the rewards.")
    ] = False,
    set_: options.Set = None,
    scheduler: options.Scheduler = None,
    workers: options.LocalWorkers = None,
    out: Annotated[
        Path | None, options.folder("Default: the table's name, and in it TASK[-DIM][-ROWS].")
    ] = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
) -> None:
    """The preset `best` with and without each of its parts, with inference; or another table.

    What is finished is skipped.
    """
    from experiments.specification import parse_names, parse_seeds
    from experiments.sweeps.ablations import AblationRequest
    from experiments.sweeps.sweep import Workers

    chosen = parse_seeds(seeds) or []
    target = (modes, steps, dim, rows, set_ or [])
    request = AblationRequest(task, parse_names(only), chosen, rewards_only, table, *target)
    request.units()
    from experiments.sweeps.ablation_command import ablate
    from experiments.sweeps.sweep_command import preview

    act = preview if dry_run else ablate
    act(request, Workers.of_units(scheduler, workers), out or request.folder)


@app.command("tune")
@interruptible()
def tune_command(
    task: options.Task,
    method: options.Tuned = "virl",
    components: options.Components = 10,
    trials: Annotated[int, Option(help="Stop when so many trials are complete or pruned.")] = 100,
    modes: options.Modes = None,
    steps: options.Steps = None,
    preset: Annotated[
        str | None,
        options.preset(f"Budget of a trial: smoke, quick or paper. {options.DEFAULT}", best=False),
    ] = None,
    seeds: Annotated[
        str | None, options.seeds("A trial's value is the mean over these; default 0.")
    ] = None,
    set_: options.Set = None,
    storage: Annotated[
        str | None,
        options.given(
            "URL",
            "sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE; default: "
            "study.db in --out.",
        ),
    ] = None,
    scheduler: options.Scheduler = None,
    workers: Annotated[
        int | None,
        Option(help="Workers on the study; default: one per core, or all of --scheduler."),
    ] = None,
    out: Annotated[
        Path | None, options.folder("Runs and trials.csv; default: studies/ and the name.")
    ] = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
) -> None:
    """An Optuna study over the ranges of the paper's Table 1, the published column first.

    The same command continues it.
    """
    from experiments.sweeps.sweep import Workers
    from experiments.tuning.specification import Studies, TuneRequest

    studies = Studies(task, preset, modes, steps, storage)
    request = TuneRequest(studies, method, components, trials, seeds, set_ or [])
    request.specification()
    from experiments.tuning.tune_command import preview, tune

    (preview if dry_run else tune)(request, Workers(scheduler, workers), out)


@app.command("rank-budgets")
@interruptible()
def rank_budgets_command(
    task: options.Task,
    method: options.Tuned = "virl",
    components: options.Components = 10,
    presets: Annotated[
        str, options.given("PRESET,...", "Budgets; the last is what the others stand for.")
    ] = "quick,paper",
    points: Annotated[int, Option(help="Random points of Table 1's ranges.")] = 10,
    modes: options.Modes = None,
    steps: options.Steps = None,
    seeds: Annotated[
        str | None, options.seeds("A point's value is the mean over these; default 0.")
    ] = None,
    set_: options.Set = None,
    scheduler: options.Scheduler = None,
    workers: options.LocalWorkers = None,
    out: Annotated[Path | None, options.folder("Default: budgets/ and the study's name.")] = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
) -> None:
    """Whether a cheaper budget ranks hyperparameters as the dearer one does, before a study of it.

    What is finished is skipped.
    """
    from experiments.specification import parse_names
    from experiments.sweeps.sweep import Workers
    from experiments.tuning.specification import Studies, TuneRequest

    chosen = parse_names(presets) or []
    studies = Studies(task, chosen[-1], modes, steps, None)
    # One trial: how many points there may be is checked with the presets.
    study = TuneRequest(studies, method, components, 1, seeds, set_ or []).specification()
    from experiments.tuning.budgets import preview, rank_budgets

    out = out or Path("budgets") / study.name
    act = preview if dry_run else rank_budgets
    act(study, chosen, points, Workers.of_units(scheduler, workers), out)


@app.command("compare")
@interruptible()
def compare_command(
    task: options.Task,
    seeds: Annotated[
        str | None, options.seeds("Seeds tuning never saw; default 100,101,102.")
    ] = None,
    preset: options.StudyPreset = None,
    modes: options.Modes = None,
    steps: options.Steps = None,
    storage: options.StudyStorage = None,
    scheduler: options.Scheduler = None,
    workers: options.LocalWorkers = None,
    budget: Annotated[
        str | None,
        options.preset("Of these runs; default: the study's.", metavar="PRESET", best=False),
    ] = None,
    write: Annotated[
        bool,
        Option(
            "--write", help="Store what is better in hparams/tuned/TASK.yaml, for --hparams tuned."
        ),
    ] = False,
    out: Annotated[Path | None, options.folder("Default: comparisons/TASK-SIZE-PRESET.")] = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
) -> None:
    """Published against best found hyperparameters of every column that has a study, on fresh
    seeds.
    """
    from experiments.sweeps.sweep import Workers
    from experiments.tuning.specification import Studies, check_compared

    studies, those = Studies(task, preset, modes, steps, storage), check_compared(task)
    by = Workers.of_units(scheduler, workers)
    studies.check_stored(those)
    from experiments.tuning.compare import compare, preview

    if dry_run:
        preview(studies, seeds, by, out, budget)
    else:
        compare(studies, seeds, by, write, out, budget)


@app.command("study-plots")
def study_plots_command(
    task: options.Task,
    method: options.Tuned = "virl",
    components: options.Components = 10,
    preset: options.StudyPreset = None,
    modes: options.Modes = None,
    steps: options.Steps = None,
    storage: options.StudyStorage = None,
    out: Annotated[
        Path | None, options.folder("Default: plots/ in studies/ and the study's name.")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Optimisation history, importances, slices, and the two most important hyperparameters."""
    from experiments.tuning.specification import Studies

    studies = Studies(task, preset, modes, steps, storage)
    studies.check_stored([(method, components)])
    from experiments.tuning.study_plots import study_plots

    study_plots(studies, method, components, out)


@app.command("claims")
def claims_command(
    task: options.Task,
    results: Annotated[
        list[Path] | None,
        Argument(
            metavar="[SWEEP]...",
            help="Sweeps, by folder or results.csv. Default: the committed results.",
        ),
    ] = None,
    pool: options.Pool = False,
) -> None:
    """What the paper says about a task's results, the numbers that speak to it, and a verdict."""
    from experiments.claims import print_claims

    print_claims(task, results or [RESULTS / task], pool)


@app.command("benchmark")
@interruptible("continues with the part at work")
def benchmark_command(
    parts: Annotated[
        list[str] | None,
        Argument(
            metavar="PART...",
            help=", ".join(BENCHMARK_PARTS) + ".",
        ),
    ] = None,
    peers: Annotated[
        bool,
        Option(
            "--peers",
            help="vips, few: gmmvi beside ours (pip install 'virl_tf\\[bench]'); without PART also "
            "peers.",
        ),
    ] = False,
    peer_seconds: Annotated[
        float | None,
        Option(
            help="vips, few: CPU seconds after which a run of gmmvi stops; default: 20 times ours, "
            "and 60."
        ),
    ] = None,
    only: Annotated[
        str, options.given("TEXT", "vips: the targets with this in their names, e.g. mixture.")
    ] = "",
    repeats: Annotated[int, Option(help="Measurements of each candidate.")] = 5,
    seeds: Annotated[int, Option(help="vips, few: seeds.")] = 5,
    preset: Annotated[str, Option(help="run, memory: paper (ten minutes) or smoke.")] = "paper",
    out: Annotated[Path, options.folder("For benchmark.json and .md.")] = Path("benchmark"),
    quiet: options.Quiet = False,
) -> None:
    """Measure what the parts cost, against the machine's ceiling and public peers.

    Default: all parts but peers.
    """
    from experiments.benchmark.settings import Settings

    settings = Settings(repeats, seeds, preset, peers, peer_seconds, only)
    settings.check(parts or [], out)
    from experiments.benchmark.command import benchmark

    benchmark(parts or [], settings, out)


@app.command("figure")
def figure_command(
    number: Annotated[str, Argument(help="1, 2a, 2b, 3, 4, 5, 6, 7, robot, ablations, or all.")],
    runs: Annotated[
        list[Path] | None,
        Argument(
            metavar="[RESULTS]...",
            help="1, 2a, 6: a run; 3: a run of geim and one of virl; 5: runs; 2b, 4: sweeps; 7: a "
            "sweep; robot: a benchmark; ablations: folders of `ablate`. A run may be its record. "
            "Default: the committed results.",
        ),
    ] = None,
    inference: Annotated[
        Path | None, options.folder("Figure 5c only: the result of `infer`.")
    ] = None,
    published: Annotated[
        Path | None, options.given("FILE", "2b, 4: CSV of points read off the paper's figure.")
    ] = None,
    pool: options.Pool = False,
    out: Annotated[Path, options.folder("Where the PNG and PDF go.")] = Path("figures"),
    quiet: options.Quiet = False,
) -> None:
    """Redraw a figure of the paper from result files alone."""
    from experiments.figures import draw

    draw(number, runs or [], inference, out, pool, published)


@app.command("record")
def record_command(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="Folders of finished runs.")],
    out: Annotated[Path, options.folder("A file for each run goes in here.")],
    quiet: options.Quiet = False,
) -> None:
    """Records of runs, as sweeps write them: all that figures are drawn from, some 30 KB each."""
    from experiments.records import record

    record(runs, out)


@app.command("report")
def report_command(
    out: Annotated[Path, options.given("FILE", "Where the page goes.")] = Path("report.html"),
    results: Annotated[
        Path | None, options.folder("Folder of results; default: the committed ones.")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """One self-contained HTML page: each figure, table and claim of the paper with ours
    beside it.
    """
    from experiments.report.results import Results

    found = Results(results or RESULTS)
    from experiments.report.report import write_report

    write_report(found, out)


@app.command("docs")
def docs_command(
    out: Annotated[Path, options.folder("Where the site goes.")] = Path("site"),
    quiet: options.Quiet = False,
) -> None:
    """The documentation as a site: pages, notebooks, API reference, search (extra `docs`)."""
    from experiments.documentation.docs_command import write_site

    write_site(out)


@app.command("doc-tables")
def doc_tables_command(
    check: Annotated[
        bool, Option("--check", help="Write nothing; fail where text and results differ.")
    ] = False,
) -> None:
    """The tables of README.md and docs/, made from the committed results."""
    from experiments.documentation.doc_tables import update

    for name in update(check):
        print(f"wrote {name}")


def main() -> None:
    """Run a command; wrong input or a failing disk is one line on stderr and exit status 2."""
    try:
        app()
    except OSError as error:
        lost = "Nothing that was finished is lost: the same command continues."
        print(f"error: {error}. {lost}", file=sys.stderr)
        sys.exit(2)
    except ValueError as error:
        from virl_tf.validation import InputError  # imports NumPy

        if not isinstance(error, InputError):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
