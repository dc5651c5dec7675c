"""Every form of file that is read, mutated anywhere: it is read, or one InputError refuses it.

Some hundred mutations, always the same ones, in seconds; a thousand of each form:

    pytest -m slow tests/test_fuzz.py
"""

import io
import json
import re
import shutil
import sys
import warnings
import zipfile
from pathlib import Path

from virl_tf import load
from virl_tf.hparams import load_hparams
from virl_tf.persistence.checkpoint import load_state
from virl_tf.persistence.policy_file import load_policy
from virl_tf.persistence.reward_file import load_reward
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError

import h5py
import numpy as np
import pandas as pd
import pytest

from experiments.documentation import doc_tables
from experiments.figures import style
from experiments.figures.figure_ablations import read_ablations
from experiments.own_data.demonstration_files import load_demonstrations
from experiments.own_data.trajectory_files import TrajectoryFile, load_episodes
from experiments.pooled_results import check_poolable, read_results
from experiments.records import read_record, write_record
from experiments.result_files import check_same_task, reading, rows_of, table_of
from experiments.result_statistics import table
from experiments.sweeps import ablation_command
from tests.shared import make_mixture, make_network, make_reward, make_state

RESULTS = Path(__file__).parent.parent / "experiments" / "results"
QUICK, MANY = 40, 1000  # mutations of each form
ROW = {"t": 3, "loss": 0.5}
RUN = {"method": "virl", "seed": 0}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with a file of every form."""
    site = tmp_path_factory.mktemp("fuzz")
    x = np.random.default_rng(0).normal(size=(30, 2))
    np.save(site / "x.npy", x)
    np.savez(site / "x.npz", x=x)
    np.savez_compressed(site / "packed.npz", x=x)
    names = pd.DataFrame(x, columns=["speed", "angle"])
    names.to_csv(site / "x.csv", index=False)
    with h5py.File(site / "x.hdf5", "w") as file:
        for i, episode in enumerate(np.split(x, 3)):
            file[f"data/demo_{i}/observations"] = episode
    folder = RunFolder.open(site / "run", RUN)
    for t in (1, 2, 3):
        folder.record(make_state(t), {"t": t - 1, "loss": 0.5, "policy_seconds": 1.0})
    folder.write_result(make_reward([make_network()]), make_mixture())
    (site / "mine.yaml").write_text("loop: {num_iterations: 3}\n", encoding="utf-8")
    shutil.copytree(RESULTS / "example", site / "example")
    for source, copy in {"gaussians": "sweep", "best/ablations/grid_walker": "ablations"}.items():
        (site / copy).mkdir()
        rows = (RESULTS / source / "results.csv").read_bytes().splitlines(keepends=True)[:20]
        (site / copy / "results.csv").write_bytes(b"".join(rows))
    shutil.copy(RESULTS / "benchmark" / "parts" / "benchmark.json", site)
    np.savez(site / "grid.npz", axes=np.zeros((2, 3)), reward=np.zeros(9), log_policy=np.zeros(9))
    measured = {"far_share": 0.1, "references": {"kde": {"reported": 0.5}}}
    (site / "example" / "ablation.json").write_text(json.dumps(measured), encoding="utf-8")
    write_record(site / "example", site / "run.zip")
    return site


def read_newest_state(path):
    with warnings.catch_warnings(action="ignore"):
        return RunFolder(path.parent.parent).latest_state(make_state())


def recorded(path):
    """The record of the run that a file is of, with the rows in it."""
    file = path.parent.with_suffix(".zip")
    write_record(path.parent, file)
    record = read_record(file)
    rows_of(record.summaries, path)
    return record


FORMS = {
    "x.npy": load_demonstrations,
    "x.npz": load_demonstrations,
    "packed.npz": load_demonstrations,
    "x.csv": load_demonstrations,
    "x.parquet": load_demonstrations,
    "x.hdf5": lambda path: load_episodes(TrajectoryFile(path)),
    "mine.yaml": load_hparams,
    "run/config.yaml": lambda path: (load(path.parent), RunFolder.open(path.parent, RUN)),
    "run/metrics.csv": lambda path: (
        load(path.parent),
        RunFolder(path.parent)._append("metrics.csv", ROW, 3),
    ),
    "run/timings.csv": lambda path: (load(path.parent), RunFolder(path.parent).seconds()),
    "run/reward.keras": load_reward,
    "run/policy.npz": load_policy,
    "run/checkpoints/state-00002.npz": lambda path: load_state(path, make_state()),
    "run/checkpoints/state-00003.npz": read_newest_state,
    "example/summary.json": lambda path: (check_same_task([path.parent]), recorded(path)),
    "example/ablation.json": lambda path: list(ablation_command._rows(recorded(path))),
    "run.zip": lambda path: table_of([read_record(path)]),
    "sweep/results.csv": lambda path: table(read_results(path)),
    "ablations/results.csv": lambda path: ablation_command.table(read_ablations(path.parent)),
    "benchmark.json": doc_tables.read_frame.__wrapped__,
    "grid.npz": lambda path: style.read(path.parent, path.name),
}


# --- mutations of bytes ---------------------------------------------------------------------------


def flipped(content, rng):
    at = rng.integers(len(content))
    return content[:at] + bytes([content[at] ^ (1 << rng.integers(8))]) + content[at + 1 :]


def some_range(content, rng):
    start, end = np.sort(rng.integers(0, len(content) + 1, 2))
    return int(start), int(min(end, start + rng.choice([4, 64, len(content)])))


def cut(content, rng):
    return content[: rng.integers(len(content))]


def without(content, rng):
    start, end = some_range(content, rng)
    return content[:start] + content[end:]


def repeated(content, rng):
    start, end = some_range(content, rng)
    return content[:end] + content[start:]


def overwritten(content, rng):
    start, end = some_range(content, rng)
    filling = [rng.bytes(end - start), bytes(end - start), b"\xff" * (end - start)]
    return content[:start] + filling[rng.integers(3)] + content[end:]


def swapped(content, rng):
    a, b, c = np.sort(rng.integers(0, len(content) + 1, 3))
    return content[:a] + content[b:c] + content[a:b] + content[c:]


def number(content, rng):
    """A size or offset in a binary file becomes an extreme one."""
    width = int(rng.choice([1, 2, 4, 8]))
    at = int(rng.integers(max(1, len(content) - width)))
    sign = 1 << (8 * width - 1)
    value = (0, 1, sign - 1, sign, 2 * sign - 1)[rng.integers(5)]
    return content[:at] + value.to_bytes(width, "little") + content[at + width :]


ANYWHERE = (flipped, cut, without, repeated, overwritten, swapped, number)


# --- mutations of what the bytes mean -------------------------------------------------------------

TOKENS = (
    *("-1", "0", "1e999", "-1e400", "nan", "9" * 40, "0x10", "1_0", "true", "null", "~", "", " "),
    *('"x"', "'", "[]", "{}", "[[1]]", '{"a": {}}', "&a [*a]", "*a", "!!python/name:os.mkdir"),
    *("[" * 3000, '{"a":' * 3000, "\x00", "\ufeff", "\ud7ff", "\r", "\n", ",", ",,", ";", "#"),
    *("2020-13-45", "2020-01-01", "<<: [1]", "- ", "a: b", "yes", "1+2j", "\U0001f600", "=", "|O"),
)


def token(content, rng):
    """A word or number of a text becomes another, or what looks like it."""
    text = content.decode("utf-8")
    found = list(re.finditer(r'"[^"]*"|[^\s,:{}\[\]"]+', text))
    chosen = found[rng.integers(len(found))]
    new = TOKENS[rng.integers(len(TOKENS))]
    return (text[: chosen.start()] + new + text[chosen.end() :]).encode("utf-8")


def value(content, rng):
    """A value somewhere within JSON becomes another."""
    whole = json.loads(content)
    place = whole
    while True:
        key = list(place)[rng.integers(len(place))]
        if not (isinstance(place[key], dict) and place[key]) or rng.random() < 0.3:
            break
        place = place[key]
    others = [None, [], {}, "x", -1, 0, 1e300, True, [1, 2], {"x": 1}, float("nan"), 10**400]
    place[key] = others[rng.integers(len(others))]
    if rng.random() < 0.3:
        del place[key]
    return json.dumps(whole if rng.random() < 0.95 else others[rng.integers(len(others))]).encode()


SHAPES = (
    *("()", "(0,)", "(2000000000000000,)", "(-1,)", "(True, 2)", "(30, -2)", "(1099511627776, 2)"),
    *(
        "(0, 4611686018427387904)",
        "(" + "1, " * 70 + ")",
        "(30, 2, 10000000000000000000)",
        "(1.0,)",
    ),
    *("3", "(None,)", "(30, 2", "[30, 2]", "(30 * 2,)", "(" * 500, "(30L, 2L)", "(2, 30)", "(61,)"),
)
KINDS = (
    *("'|O'", "'<U0'", "'|S0'", "'|V8'", "'|V0'", "'<M8[s]'", "'<m8'", "'<f3'", "'<f2'", "'>f8'"),
    *("'<U999999999'", "[('a', '<f8')]", "('<f8', (2,))", "'<f8,<f8'", "'|b1'", "'<c16'", "'<i8'"),
    *("{'names': ['a'], 'formats': ['O']}", "None", "'O8'", "'?'", "'|u1'", "'<f16'", "'a\\nb'"),
)


def array_header(content, rng):
    """The header of an .npy file declares another shape or kind of numbers."""
    size = int.from_bytes(content[8:10], "little")
    shape = SHAPES[rng.integers(len(SHAPES))] if rng.random() < 0.7 else "(30, 2)"
    kind = KINDS[rng.integers(len(KINDS))] if rng.random() < 0.7 else "'<f8'"
    order = ("True", "False", "1", "None")[rng.integers(4)]
    text = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}".ljust(117) + "\n"
    length = len(text).to_bytes(2, "little") + b"\0\0"
    version = int(rng.integers(1, 5))
    start = b"\x93NUMPY" + bytes([version, 0]) + length[: 2 if version == 1 else 4]
    return start + text.encode("latin1") + content[10 + size :]


def member(content, rng):
    """A file within a zip file is mutated, and the checksums are right again."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        members = {info.filename: file.read(info) for info in file.infolist()}
    name = list(members)[rng.integers(len(members))]
    members[name] = mutated(name, members[name], rng)
    if rng.random() < 0.1:
        members[f"{name}.npy" if rng.random() < 0.5 else f"../{name}"] = members.pop(name)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", int(rng.choice([0, 8, 12, 14]))) as file:
        for name, inner in members.items():
            file.writestr(name, inner)
    return out.getvalue()


MEANINGS = {
    ".npy": (array_header,),
    ".npz": (member,),
    ".keras": (member,),
    ".csv": (token,),
    ".yaml": (token,),
    ".json": (token, value),
}


def mutated(name, content, rng):
    """One to three mutations; those that know the form come first, on whole content."""
    if not content:
        return b"\0"
    meanings = MEANINGS.get(Path(name).suffix, ())
    if meanings and rng.random() < 0.5:
        content = meanings[rng.integers(len(meanings))](content, rng)
        if rng.random() < 0.7:
            return content
    for _ in range(rng.integers(1, 3)):
        content = ANYWHERE[rng.integers(len(ANYWHERE))](content or b"\0", rng)
    return content


# --- the test -------------------------------------------------------------------------------------

WATCHED = ("pickle.find_class", "os.system", "os.exec", "subprocess.Popen", "socket.connect")
SEEN: list[tuple] = []


def watch(event, args):
    """A hook of the interpreter, which takes names away at its end before it takes this away."""
    if WATCHED is not None and event in WATCHED:
        SEEN.append((event, args))


sys.addaudithook(watch)


def fuzz(site, form, count):
    """Mutate a file `count` times; returns what the refusals say."""
    path, read = site / form, FORMS[form]
    whole, refusals, others = path.read_bytes(), [], {}
    read(path)
    SEEN.clear()
    for seed in range(count):
        path.write_bytes(mutated(form, whole, np.random.default_rng([seed, len(form)])))
        try:
            with warnings.catch_warnings(action="ignore"):
                read(path)
        except InputError as error:
            refusals.append(str(error))
        except Exception as error:
            others[seed] = repr(error)
    path.write_bytes(whole)
    assert others == {}, f"mutations of {form}, by their seeds: {others}"
    assert SEEN == [], "something in the file was executed"
    return refusals


def prepare(site, form):
    if form == "x.parquet":
        pytest.importorskip("pyarrow", reason="extra `parquet`")
        pd.read_csv(site / "x.csv").to_parquet(site / form)


def check_refusals(refusals, form):
    assert refusals
    for message in refusals:
        assert Path(form).name in message or Path(form).parent.name in message
        assert "\n" not in message
        assert len(message) < 1000


@pytest.mark.parametrize("form", FORMS)
def test_a_mutated_file_is_read_or_refused(site, form):
    prepare(site, form)
    check_refusals(fuzz(site, form, QUICK), form)


def test_what_a_file_holds_does_not_flood_the_message(tmp_path):
    found = {tmp_path: {f"{i}{'a' * 10_000}" for i in range(30)}}
    with pytest.raises(InputError, match="and 25 more") as raised:
        check_poolable("presets", found)
    assert len(str(raised.value)) < 1000


def test_json_that_is_nested_too_deep_is_refused(tmp_path):
    with pytest.raises(InputError, match="not as its command writes it"), reading(tmp_path):
        json.loads("[" * 100_000)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_thousand_mutated_files_are_read_or_refused(site, form):
    prepare(site, form)
    check_refusals(fuzz(site, form, MANY), form)
