"""Files in the forms in which people's demonstrations are published, read as paths."""

import contextlib
import json
import os
import pickle
import shlex

from virl_tf.persistence.files import load_arrays
from virl_tf.validation import InputError

import numpy as np
import pytest

from experiments.own_data.originals import FORMS, convert
from experiments.own_data.trajectory_files import TrajectoryFile, load_episodes

PATHS = {
    "3": [[0.0, 0.0], [1.0, 2.0], [3.0, 5.0], [3.0, 6.0]],
    "12": [[4.0, 1.0], [3.5, 0.5], [3.0, 0.0]],
}
HOMOGRAPHY = np.array([[0.05, -0.04, 70.0], [0.14, -0.003, 8.0], [0.001, -0.0001, 1.0]])


def rows_of(width, x, y):
    """A file of numbers, frame by frame: people come in no order."""
    rows = []
    for t in range(4):
        for name, path in PATHS.items():
            if t < len(path):
                row = np.full(width, 9.0)
                row[[0, 1, x, y]] = t, int(name), *path[t]
                rows.append(" ".join(map(str, row)))
    return "\n".join(rows)


def write_grand_central(place):
    folder = place / "GC"
    (folder / "Annotation").mkdir(parents=True)
    (folder / "H.json").write_text(json.dumps({"homog": HOMOGRAPHY.tolist()}))
    for name, path in PATHS.items():
        x, y, scale = np.linalg.inv(HOMOGRAPHY) @ np.c_[path, np.ones(len(path))].T
        triples = np.stack([y / scale, x / scale, 20.0 * np.arange(len(path))], axis=1)
        np.savetxt(folder / "Annotation" / f"{int(name):06d}.txt", triples.ravel(), "%.17g")
    return folder


def write_obsmat(place):
    (place / "obsmat.txt").write_text(rows_of(8, 2, 4))
    return place / "obsmat.txt"


def write_trajnet(place):
    text = rows_of(4, 2, 3) + "\n3.0 12.0 ? ?\n"
    (place / "trajnet.txt").write_text(text)
    return place / "trajnet.txt"


def write_edinburgh(place):
    text = "% Total number of trajectories in file are 2\n"
    for name, path in PATHS.items():
        steps = ";".join(f"[{x:g} {y:g} {t}]" for t, (x, y) in enumerate(path))
        text += f"Properties.R{name}=[1 2 3];\n TRACK.R{name}=[{steps}];\n"
    (place / "tracks.txt").write_text(text)
    return place / "tracks.txt"


def write_avoiding(place):
    folder = place / "data"
    folder.mkdir()
    for name, path in PATHS.items():
        told = np.c_[path, np.full(len(path), 0.12)]
        state = {"robot": {"des_c_pos": told, "c_pos": told + 1.0, "time": np.float64(1.0)}}
        (folder / f"env_{name}.pkl").write_bytes(pickle.dumps(state))
    return folder


WRITERS = {
    "grand-central": write_grand_central,
    "obsmat": write_obsmat,
    "trajnet": write_trajnet,
    "edinburgh": write_edinburgh,
    "avoiding": write_avoiding,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_and_can_be_fitted_to(form, tmp_path):
    said = convert(form, [WRITERS[form](tmp_path)], tmp_path / "new" / "paths.npz", apart=0.0)
    assert said.startswith("2 of 2 paths")
    episodes = load_episodes(TrajectoryFile(tmp_path / "new" / "paths.npz"))
    names = [name.removeprefix("0-").removeprefix("env_").lstrip("0") for name in episodes.names]
    found = dict(zip(names, episodes.values, strict=True))
    assert set(found) == set(PATHS)
    for name, path in PATHS.items():
        np.testing.assert_allclose(found[name], path, atol=1e-9)


def test_short_paths_are_left_out(tmp_path):
    said = convert("obsmat", [write_obsmat(tmp_path)], tmp_path / "paths.npz", apart=2.0)
    assert said.startswith("1 of 2 paths, ends at least 2 m apart")
    assert set(load_arrays(tmp_path / "paths.npz")) == {"0-3"}
    just = float(np.linalg.norm([3.0, 6.0]))
    said = convert("obsmat", [tmp_path / "obsmat.txt"], tmp_path / "paths.npz", apart=just)
    assert said.startswith("1 of 2 paths")
    with pytest.raises(InputError, match="none of 2 paths has ends 100 m apart"):
        convert("obsmat", [tmp_path / "obsmat.txt"], tmp_path / "paths.npz", apart=100.0)


def test_what_is_no_trajectory_is_left_out_so_that_the_next_command_works(tmp_path):
    walks = {1: [0, 1, 2, 3], 2: [4, 5], 3: [7, 7, 7], 4: [0, 2, 4]}
    rows = [f"{t} {who} {x} {x}" for who, walk in walks.items() for t, x in enumerate(walk)]
    (tmp_path / "walks.txt").write_text("\n".join(rows))
    said = convert("trajnet", [tmp_path / "walks.txt"], tmp_path / "paths.npz", apart=0.0)
    assert said.startswith("2 of 4 paths")
    assert load_episodes(TrajectoryFile(tmp_path / "paths.npz")).names == ["0-1", "0-4"]


def test_paths_of_several_files_are_kept_apart(tmp_path):
    file = write_obsmat(tmp_path)
    assert convert("obsmat", [file, file], tmp_path / "paths.npz", 0.0).startswith("4 of 4 paths")
    assert set(load_arrays(tmp_path / "paths.npz")) == {"0-3", "0-12", "1-3", "1-12"}


@pytest.mark.parametrize(("form", "width"), [("obsmat", 8), ("trajnet", 4)])
def test_people_with_long_numbers_are_kept_apart(form, width, tmp_path):
    people = ["1234567", "1234568.0", "9007199254740991", "12.5"]
    rows = [[t, person, *[t] * (width - 2)] for person in people for t in range(3)]
    file = tmp_path / "people.txt"
    file.write_text("\n".join(" ".join(map(str, row)) for row in rows))
    assert convert(form, [file], tmp_path / "paths.npz", 0.0).startswith("4 of 4 paths")
    found = load_arrays(tmp_path / "paths.npz")
    assert set(found) == {"0-1234567", "0-1234568", "0-9007199254740991", "0-12.5"}
    assert all(len(path) == 3 for path in found.values())
    file.write_text(file.read_text().replace("1234567 ", "9007199254740993 "))
    with pytest.raises(InputError, match=r"people.txt .* more digits than are read exactly"):
        convert(form, [file], tmp_path / "paths.npz", 0.0)


def test_two_paths_of_one_name_are_refused(tmp_path):
    file = write_edinburgh(tmp_path)
    file.write_text(file.read_text().replace("R12=", "R3="))
    with pytest.raises(InputError, match=r"tracks.txt holds 2 paths with the name '3'"):
        convert("edinburgh", [file], tmp_path / "paths.npz", 0.0)


@pytest.mark.parametrize("form", FORMS)
def test_another_form_is_refused_by_name(form, tmp_path):
    for other, write in WRITERS.items():
        if other != form:
            place = tmp_path / other
            place.mkdir()
            with pytest.raises(InputError, match=str(place)):
                convert(form, [write(place)], tmp_path / "paths.npz", apart=0.0)
    assert not (tmp_path / "paths.npz").exists()


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("call", [(os.mkdir, "harmed"), (eval, "open('harmed', 'w')"), (print, 1)])
def test_a_pickle_runs_nothing(call, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    state = {"robot": {"des_c_pos": Hostile(*call)}}
    (tmp_path / "data" / "env_0.pkl").write_bytes(pickle.dumps(state, protocol))
    with pytest.raises(InputError, match="which is not loaded"):
        convert("avoiding", [tmp_path / "data"], tmp_path / "paths.npz", apart=0.0)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_of_every_protocol_are_read(protocol, tmp_path):
    (tmp_path / "data").mkdir()
    state = {"robot": {"des_c_pos": np.arange(12.0).reshape(4, 3)}}
    (tmp_path / "data" / "env_0.pkl").write_bytes(pickle.dumps(state, protocol))
    convert("avoiding", [tmp_path / "data"], tmp_path / "paths.npz", apart=0.0)
    found = load_arrays(tmp_path / "paths.npz")["0-env_0"]
    np.testing.assert_array_equal(found, np.arange(12.0).reshape(4, 3)[:, :2])


def damaged_pickle(folder):
    file = folder / "env_3.pkl"
    file.write_bytes(file.read_bytes()[:40])


def no_robot(folder):
    (folder / "env_3.pkl").write_bytes(pickle.dumps({"box": 1}))


def no_numbers(folder):
    (folder / "env_3.pkl").write_bytes(pickle.dumps({"robot": {"des_c_pos": "far"}}))


def flat(folder):
    (folder / "env_3.pkl").write_bytes(pickle.dumps({"robot": {"des_c_pos": np.arange(3.0)}}))


@pytest.mark.parametrize("damage", [damaged_pickle, no_robot, no_numbers, flat])
def test_damaged_demonstrations_end_in_one_line(damage, tmp_path):
    folder = write_avoiding(tmp_path)
    damage(folder)
    with pytest.raises(InputError, match="is not in the form avoiding"):
        convert("avoiding", [folder], tmp_path / "paths.npz", apart=0.0)


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(InputError, match="did you mean 'obsmat'"):
        convert("obsmatt", [tmp_path], tmp_path / "paths.npz", 0.0)
    with pytest.raises(InputError, match=r"no file .*nothing"):
        convert("obsmat", [tmp_path / "nothing"], tmp_path / "paths.npz", 0.0)
    with pytest.raises(InputError, match=r"no folder .*nothing"):
        convert("avoiding", [tmp_path / "nothing"], tmp_path / "paths.npz", 0.0)
    with pytest.raises(InputError, match=r"paths.csv: the paths go into an .npz file"):
        convert("obsmat", [write_obsmat(tmp_path)], tmp_path / "paths.csv", 0.0)
    (tmp_path / "tracks.txt").write_text("TRACK.R1=[[1 2 3];[1 2]];")
    with pytest.raises(InputError, match="is not in the form edinburgh"):
        convert("edinburgh", [tmp_path / "tracks.txt"], tmp_path / "paths.npz", 0.0)
    folder = write_grand_central(tmp_path)
    (folder / "H.json").write_text('{"homog": [1, 2]}')
    with pytest.raises(InputError, match="not 3 x 3"):
        convert("grand-central", [folder], tmp_path / "paths.npz", 0.0)


@pytest.mark.parametrize("form", FORMS)
def test_files_with_wrong_bytes_are_read_or_refused(form, tmp_path):
    source, rng = WRITERS[form](tmp_path), np.random.default_rng(0)
    files = [source] if source.is_file() else [p for p in source.rglob("*") if p.is_file()]
    for file in files:
        whole = file.read_bytes()
        for _ in range(100):
            damaged = bytearray(whole)
            for i in rng.integers(0, len(whole), rng.integers(1, 4)):
                damaged[i] = rng.integers(256)
            file.write_bytes(damaged)
            with contextlib.suppress(InputError):
                convert(form, [source], tmp_path / "paths.npz", apart=0.0)
        file.write_bytes(whole)


def test_the_command_says_what_comes_next(call, tmp_path):
    file, out = write_obsmat(tmp_path), tmp_path / "paths.npz"
    status, shown, _ = call("convert", "obsmat", file, "--apart", "2", "--out", out)
    assert status == 0
    assert "1 of 2 paths, ends at least 2 m apart" in shown
    assert f"judge {out} --trajectories" in shown
    status, shown, error = call("convert", "obsmat", tmp_path / "none.txt", "--out", out)
    assert status == 2
    assert error.startswith("error: no file")
    assert error.count("\n") == 1


def test_what_comes_next_can_be_pasted_into_a_shell(tmp_path):
    out = tmp_path / "my paths.npz"
    said = convert("obsmat", [write_obsmat(tmp_path)], out, 1.0)
    assert shlex.split(said.splitlines()[-1])[-2:] == [str(out), "--trajectories"]
