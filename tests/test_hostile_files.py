"""Files that want to execute something, fill the memory, write elsewhere, or are not what they are
called: each is refused.
"""

import io
import itertools
import json
import os
import pickle
import shutil
import sys
import zipfile

from virl_tf import load
from virl_tf.hparams import load_hparams
from virl_tf.persistence.checkpoint import load_state
from virl_tf.persistence.encoding_file import load_encoding
from virl_tf.persistence.files import load_array, load_arrays, save_arrays
from virl_tf.persistence.policy_file import load_policy, save_policy
from virl_tf.persistence.reward_file import load_reward
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import MAX_UNPACKED_BYTES, InputError
from virl_tf.yaml_files import read_yaml

import h5py
import numpy as np
import pytest

from tests.shared import Executes, make_mixture, make_network, make_reward, make_state


@pytest.fixture
def canary(tmp_path):
    """A path that exists if anything in a file was executed."""
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "something in the file was executed"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run's folder, made without computing anything."""
    folder = RunFolder.open(tmp_path_factory.mktemp("runs") / "finished", {"method": "virl"})
    for t in (1, 2, 3):
        folder.record(make_state(t), {"t": t - 1, "loss": 0.5, "policy_seconds": 1.0})
    folder.write_result(make_reward([make_network()]), make_mixture())
    load(folder.path)
    return folder.path


@pytest.fixture
def run(finished, tmp_path):
    """A copy of that folder, to spoil."""
    return shutil.copytree(finished, tmp_path / "run")


def npy(array, **options):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


def header(shape, descr="<f8"):
    """An .npy file that declares a shape and holds nothing of it."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def write_zip(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)


def repacked(path, compression=zipfile.ZIP_STORED, **changed):
    """Write the zip file again with some members changed; a key's __ stands for a dot."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    write_zip(
        path,
        members | {name.replace("__", "."): content for name, content in changed.items()},
        compression,
    )


# --- execution ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["object array in .npz", "object .npy", "pickle", "pickle in .npz"]
)
@pytest.mark.parametrize("name", ["policy.npz", "checkpoints/state-00003.npz", "reward.keras"])
def test_pickles_are_not_opened(run, canary, kind, name):
    objects = np.array([Executes(canary)], dtype=object)
    content = {
        "object array in .npz": None,
        "object .npy": npy(objects, allow_pickle=True),
        "pickle": pickle.dumps(Executes(canary)),
        "pickle in .npz": None,
    }[kind]
    path = run / name
    if content is not None:
        path.write_bytes(content)
    else:
        inner = (
            npy(objects, allow_pickle=True)
            if kind.startswith("object")
            else pickle.dumps(Executes(canary))
        )
        write_zip(
            path,
            {
                f"{field}.npy": inner
                for field in ("log_weights", "means", "scale_trils", "format", "array_000")
            },
        )
    read = {"policy.npz": load_policy, "reward.keras": load_reward}.get(
        name, lambda p: load_state(p, make_state())
    )
    with pytest.raises(InputError, match=path.name):
        read(path)


def keras_object(module, name, /, **config):
    return {"module": module, "class_name": name, "config": config, "registered_name": name}


@pytest.mark.parametrize(
    "description",
    [
        lambda canary: keras_object("os", "mkdir", path=str(canary)),
        lambda canary: keras_object("canary_module", "Layer"),
        lambda canary: keras_object(
            "builtins", "function", name="exec", code=f"import os; os.mkdir({str(canary)!r})"
        ),
        lambda canary: keras_object("keras.config", "enable_unsafe_deserialization"),
        lambda canary: keras_object(
            "keras.utils", "get_file", fname="canary", origin=f"file://{__file__}"
        ),
        lambda canary: keras_object(
            "keras.layers", "TFSMLayer", filepath=str(canary.parent), call_endpoint="serve"
        ),
    ],
    ids=["os.mkdir", "own module", "function", "unsafe", "get_file", "TFSMLayer"],
)
@pytest.mark.parametrize("place", ["model", "layer"])
def test_a_description_that_names_other_classes_is_refused(
    run, canary, monkeypatch, description, place
):
    (canary.parent / "canary_module.py").write_text(
        f"import os; os.mkdir({str(canary)!r})", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(canary.parent)
    changed = description(canary)
    if place == "layer":
        with zipfile.ZipFile(run / "reward.keras") as file:
            whole = json.loads(file.read("config.json"))
        whole["config"]["layers"].insert(1, changed)
        changed = whole
    repacked(run / "reward.keras", config__json=json.dumps(changed))
    with pytest.raises(InputError, match=r"reward\.keras is not a reward saved by virl_tf"):
        load(run)
    assert "canary_module" not in sys.modules


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.mkdir",
        "!!python/object/new:os.mkdir",
        "!!python/name:os.mkdir",
        "!!python/module:os",
    ],
)
def test_python_tags_in_yaml_are_refused(run, canary, tag):
    text = f"config: {{method: {tag} ['{canary}']}}\n"
    (run / "config.yaml").write_text(text, encoding="utf-8")
    for read in (
        load,
        lambda path: RunFolder.open(path, {"method": "virl"}),
        lambda path: load_hparams(path / "config.yaml"),
    ):
        with pytest.raises(InputError, match=r"config\.yaml is not valid YAML: could not det"):
            read(run)


# --- size -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["policy.npz", "reward.keras"])
def test_a_zip_bomb_is_refused_before_it_unpacks(run, name):
    path = run / name
    member = {"policy.npz": "means.npy", "reward.keras": "model.weights.h5"}[name]
    write_zip(path, {member: bytes(MAX_UNPACKED_BYTES + 1)}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < MAX_UNPACKED_BYTES / 500
    with pytest.raises(
        InputError, match=rf"{name}.* would unpack to 67108865 bytes; at most 67108864 are read"
    ):
        load(run)


def test_a_bomb_of_many_members_is_refused(tmp_path):
    members = {f"{i}.npy": bytes(MAX_UNPACKED_BYTES // 16) for i in range(17)}
    write_zip(tmp_path / "a.npz", members, zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match="would unpack"):
        load_arrays(tmp_path / "a.npz")


def test_a_member_that_declares_less_than_it_unpacks_to_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    write_zip(path, {"x.npy": npy(np.zeros(2**20))}, zipfile.ZIP_DEFLATED)
    content = path.read_bytes()
    declared = (8 * 2**20 + 128).to_bytes(4, "little")
    assert content.count(declared) == 2  # in the member's own header and in the directory
    path.write_bytes(content.replace(declared, (200).to_bytes(4, "little")))
    with pytest.raises(InputError, match="damaged"):
        load_arrays(path)


def test_small_compressed_files_and_large_uncompressed_ones_are_read(tmp_path):
    np.savez_compressed(tmp_path / "small.npz", x=np.zeros(1000))
    np.testing.assert_array_equal(load_arrays(tmp_path / "small.npz")["x"], np.zeros(1000))
    save_arrays(tmp_path / "large.npz", {"x": np.zeros(MAX_UNPACKED_BYTES // 8 + 1)})
    assert load_arrays(tmp_path / "large.npz")["x"].size == MAX_UNPACKED_BYTES // 8 + 1


@pytest.mark.parametrize(
    ("shape", "descr"),
    [
        *(((10**15,), "<f8"), ((2**40, 2**40), "<f8"), ((-1,), "<f8"), ((0, 2**62), "<f8")),
        *(((10**9,), "<f8"), ((True, 2), "<f8"), ((1,) * 70, "<f8"), ((2,), "<U0"), ((2,), "|V8")),
        *(((2,), [("a", "<f8")]), ((2,), "|O"), ((2,), "<f3"), ((1.5,), "<f8"), ((2**64,), "<f8")),
        *(((0, 2**40), "<f8"), ((2**17, 0), "|u1")),
    ],
    ids=str,
)
def test_a_header_beyond_the_files_content_is_refused(tmp_path, shape, descr):
    array = header(shape, descr) + bytes(64)
    (tmp_path / "x.npy").write_bytes(array)
    fields = ("log_weights", "means", "scale_trils")
    write_zip(tmp_path / "policy.npz", {f"{field}.npy": array for field in fields})
    for read, name in ((load_array, "x.npy"), (load_policy, "policy.npz")):
        with pytest.raises(InputError, match=rf"{name} is damaged or not an .np. file"):
            read(tmp_path / name)


def test_a_shape_that_never_ends_is_refused_at_once(tmp_path):
    """A pattern that can read digits in several ways tries all of them."""
    for digits in ("1" * 60, "1," * 60, "1 " * 60):
        text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({digits}x), }}\n".encode()
        size = len(text).to_bytes(2, "little")
        (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\1\0" + size + text + bytes(64))
        with pytest.raises(InputError, match=r"x\.npy is damaged or not an \.npy file"):
            load_array(tmp_path / "x.npy")


def test_a_file_of_scalars_is_refused(run, tmp_path):
    save_arrays(run / "policy.npz", dict.fromkeys(("log_weights", "means", "scale_trils"), 1.0))
    with pytest.raises(InputError, match=r"policy\.npz is not a policy"):
        load(run)
    scalars(run / "reward.keras")
    with pytest.raises(InputError, match=r"reward\.keras is not a reward"):
        load(run)


SHAPES = [(), (0,), (3,), (2, 3), (0, 3), (2, 1, 3)]
DTYPES = ["<f8", ">f4", "|b1", "<c16", "<U3", "|u1", "<f2", "|S4"]


@pytest.mark.parametrize(
    ("shape", "order", "dtype"),
    [*itertools.product(SHAPES, "CF", [">f4"]), *(((3, 2), "F", dtype) for dtype in DTYPES)],
    ids=str,
)
def test_arrays_are_read_as_numpy_reads_them(tmp_path, shape, order, dtype):
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype, order=order)
    path = tmp_path / "x.npy"
    np.save(path, x)
    found, expected = load_array(path), np.load(path)
    np.testing.assert_array_equal(found, expected)
    assert (found.dtype, found.shape) == (x.dtype, x.shape)
    assert found.flags.fnc == expected.flags.fnc
    assert found.flags.writeable


@pytest.mark.parametrize("versions", [["virl_tf"], "1.0", 3])
def test_versions_that_are_no_mapping_are_refused(run, versions):
    content = f"config: {{method: virl}}\nversions: {json.dumps(versions)}\n"
    (run / "config.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"config\.yaml: versions must be a mapping"):
        RunFolder.open(run, {"method": "virl"})


@pytest.mark.parametrize("table", ["metrics.csv", "timings.csv"])
def test_text_in_a_numbers_place_is_named(run, table):
    text = (run / table).read_text(encoding="utf-8")
    (run / table).write_text(text.replace("2,", "two,", 1), encoding="utf-8")
    with pytest.raises(InputError, match=rf"{table} is not a table.*column 't' holds text"):
        load(run)


def h5(change):
    """The weights of a reward file, changed by `change(group of the thirteen arrays)`."""

    def apply(path):
        with zipfile.ZipFile(path) as file:
            content = io.BytesIO(file.read("model.weights.h5"))
        with h5py.File(content, "r+") as weights:
            change(weights["layers/cumulative_reward/vars"])
        repacked(path, model__weights__h5=content.getvalue())

    return apply


def scalars(path):
    """Every array of a reward becomes a number."""

    def change(group):
        for name in list(group):
            kind = group[name].dtype
            del group[name]
            group.create_dataset(name, data=np.zeros((), kind))

    h5(change)(path)


def replaced(name, make):
    def change(group):
        del group[name]
        make(group, name)

    return h5(change)


H5 = {
    "shape bomb": replaced(
        "4",
        lambda g, n: g.create_dataset(
            n, (10**6, 10**6, 8), "f4", chunks=(1, 1000, 8), compression="gzip"
        ),
    ),
    "a group": replaced("4", lambda g, n: g.create_group(n)),
    "missing": replaced("4", lambda g, n: None),
    "text": replaced("4", lambda g, n: g.create_dataset(n, data="x")),
}


@pytest.mark.parametrize("spoil", H5.values(), ids=H5)
def test_weights_that_are_not_plain_arrays_of_one_reward_are_refused(run, spoil):
    spoil(run / "reward.keras")
    with pytest.raises(InputError, match=r"reward\.keras is not a reward saved by virl_tf"):
        load(run)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 10)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text", [LAUGHS, "config: &a [*a]", "config: &a {b: *a}"], ids=["laughs", "list", "mapping"]
)
def test_yaml_aliases_are_refused(run, text):
    (run / "config.yaml").write_text(text, encoding="utf-8")
    for read in (load, lambda path: load_hparams(path / "config.yaml")):
        with pytest.raises(InputError, match=r"aliases \(\*name\) are not allowed"):
            read(run)


def test_a_large_yaml_file_is_refused(tmp_path):
    (tmp_path / "mine.yaml").write_text("#" * (2**18 + 1), encoding="utf-8")
    with pytest.raises(InputError, match=r"mine\.yaml: it is larger than 262144 bytes"):
        read_yaml(tmp_path / "mine.yaml")


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../escaped", "/escaped-absolute", "..\\escaped", "a/../../escaped"]
)
def test_names_that_lead_elsewhere_write_nothing(tmp_path, name):
    inside = tmp_path / "inside"
    inside.mkdir()
    save_policy(inside / "policy.npz", make_mixture())
    repacked(inside / "policy.npz", **{f"{name}.npy": npy(np.zeros(1))})
    with pytest.raises(InputError, match="is not a policy"):
        load_policy(inside / "policy.npz")
    make_reward([make_network()]).as_keras().save(inside / "reward.keras")
    repacked(inside / "reward.keras", **{name: "x", f"assets/{name}": "x"})
    with pytest.raises(InputError, match="is not a reward"):
        load_reward(inside / "reward.keras")
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert sorted(path.name for path in inside.iterdir()) == ["policy.npz", "reward.keras"]
    assert not os.path.exists("/escaped-absolute")


# --- damage ---------------------------------------------------------------------------------------

FILES = ["config.yaml", "metrics.csv", "timings.csv", "policy.npz", "reward.keras"]


@pytest.mark.parametrize("size", [0, 1, 12])
@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_of_a_run_is_named(run, name, size):
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[:size])
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        load(run)


TABLES = {"metrics.csv", "timings.csv"}  # of one kind
SWAPS = [
    (name, other)
    for name in FILES
    for other in [*FILES, "checkpoints/state-00003.npz"]
    if name != other
]


@pytest.mark.parametrize(("name", "other"), [pair for pair in SWAPS if not set(pair) <= TABLES])
def test_a_file_in_the_place_of_another_is_named(run, name, other):
    shutil.copy(run / other, run / name)
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        load(run)


@pytest.mark.parametrize("other", FILES)
def test_a_file_in_the_place_of_a_checkpoint_falls_back_or_is_named(run, other):
    shutil.copy(run / other, run / "checkpoints" / "state-00003.npz")
    if other == "policy.npz":  # a whole .npz file of something else: nothing that a crash can leave
        with pytest.raises(InputError, match=r"state-00003\.npz is not a checkpoint"):
            RunFolder(run).latest_state(make_state())
    else:
        with pytest.warns(UserWarning, match=r"state-00003\.npz is damaged.*Going back"):
            assert RunFolder(run).latest_state(make_state()).t == 2


@pytest.mark.parametrize("table", ["metrics.csv", "timings.csv"])
@pytest.mark.parametrize(
    "damage", ["missing", "a row less", "other columns", "more cells", "not text"]
)
def test_a_run_does_not_continue_on_a_damaged_table(run, table, damage):
    path = run / table
    content = path.read_bytes()
    changed = {
        "a row less": b"".join(content.splitlines(keepends=True)[:-1]),
        "other columns": content.replace(b"t,", b"t,other,", 1),
        "more cells": content.replace(b"\n", b",7\n").replace(b",7\n", b"\n", 1),
        "not text": content + b"\xff\xfe",
    }
    path.unlink() if damage == "missing" else path.write_bytes(changed[damage])
    kept = sorted(p.name for p in (run / "checkpoints").iterdir())
    with pytest.raises(InputError, match=rf"{table} (is missing or damaged|has (2 of|other))"):
        RunFolder(run).record(make_state(4), {"t": 3, "loss": 0.5, "policy_seconds": 1.0})
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == kept


@pytest.mark.parametrize("path", [None, 3, ["runs"], "a\0b", "~nobody-here/run"])
@pytest.mark.parametrize("read", [load, load_policy, load_reward, load_encoding])
def test_what_is_no_path_is_told_in_one_line(read, path):
    with pytest.raises(InputError, match=r"path must be the name of a file or folder, got .*\.$"):
        read(path)


ELSEWHERE = ["external link", "soft link", "link above", "external storage", "virtual dataset"]


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_arrays_that_are_elsewhere_are_refused_though_they_are_whole(kind, run, tmp_path):
    """For where they are, not for what is missing there: a reward would hold what no one sent."""
    other, raw = str(tmp_path / "other.h5"), tmp_path / "other.raw"

    def change(group):
        weights, array = group.file, group["4"][()]
        if kind == "link above":
            weights.move("layers", "elsewhere")
            weights["layers"] = h5py.SoftLink("/elsewhere")
            return
        del group["4"]
        weights["x"] = array
        raw.write_bytes(array.tobytes())
        with h5py.File(other, "w") as file:
            file["x"] = array
        if kind == "external link":
            group["4"] = h5py.ExternalLink(other, "x")
        elif kind == "soft link":
            group["4"] = h5py.SoftLink("/x")
        elif kind == "external storage":
            place = [(str(raw), 0, h5py.h5f.UNLIMITED)]
            group.create_dataset("4", array.shape, array.dtype, external=place)
        else:
            layout = h5py.VirtualLayout(array.shape, array.dtype)
            layout[...] = h5py.VirtualSource(other, "x", array.shape)
            group.create_virtual_dataset("4", layout)

    h5(change)(run / "reward.keras")
    with pytest.raises(InputError, match="within the file"):
        load(run)
