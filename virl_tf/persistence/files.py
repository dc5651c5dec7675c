"""Text, JSON and arrays <-> files, atomically."""

import contextlib
import io
import json
import math
import os
import re
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from virl_tf.validation import MAX_UNPACKED_BYTES, InputError, check_unpacked_size, reason

if TYPE_CHECKING:
    import pandas as pd

# What zipfile raises for damaged files: RuntimeError where a header asks for a password or an
# unknown compression, OverflowError and struct.error for impossible offsets and sizes.
DAMAGED = (
    *(OSError, ValueError, TypeError, EOFError, LookupError, AttributeError, RuntimeError),
    *(OverflowError, MemoryError, struct.error, zipfile.BadZipFile, zlib.error),
)
_COMPRESSIONS = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


class DamagedFileError(InputError):
    """A file that is not what was written; every array carries the CRC-32 of its bytes."""


PARTIAL = ".partial"
"""How the hidden names end under which files are written; a kill leaves them behind."""


def remove_partial(folder: Path, before: float) -> None:
    """Remove what kills have left in a folder: what was last written before a time of `time.time`.

    Nothing that is not named as `write_atomically` and `save_reward` do; what cannot be removed
    stays.
    """
    for path in list(folder.rglob(f".*-*{PARTIAL}")):
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime >= before:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


_UMASK = os.umask(0)  # a process cannot ask for it without setting it
os.umask(_UMASK)


@contextlib.contextmanager
def writing(path: Path | str, then: str = "") -> Iterator[None]:
    """An InputError, which says what to do `then`, where the disk refuses what is written."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}.{then}") from error


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Call `write` on a temporary file beside `path`, then rename it.

    A reader sees the old file or the new one, never a part.
    """
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}-", suffix=PARTIAL, delete=False
        ) as file:
            try:
                write(file)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
                os.chmod(file.name, 0o666 & ~_UMASK)
                os.replace(file.name, path)
            except BaseException:
                # The folder may be gone or read-only: what happened first is what counts.
                with contextlib.suppress(OSError):
                    os.unlink(file.name)
                raise
    except OSError as error:
        # A full disk does not say whose write failed.
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


def save_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write named arrays to an .npz file atomically. The same arrays give the same bytes."""
    write_atomically(path, lambda file: pack_arrays(file, arrays))


def pack_arrays(file: Any, arrays: Mapping[str, Any]) -> None:
    """Write named arrays to an open file in .npz format. Raises ValueError for objects."""
    plain: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
    # `savez` would pickle them, and NumPy 2.0 cannot be told not to.
    objects = [name for name, array in plain.items() if array.dtype.hasobject]
    if objects:
        raise ValueError(f"{objects[0]!r} holds objects, which are not written.")
    np.savez(file, **plain)


class _Arrays(dict[str, np.ndarray]):
    """The arrays of one file, which says what it lacks."""

    def __init__(self, path: Path, arrays: dict[str, np.ndarray]):
        super().__init__(arrays)
        self.path = path

    def __missing__(self, name: str) -> np.ndarray:
        held = f"holds no {name!r}, but {sorted(self)}"
        raise InputError(f"{self.path} {held}: it is another file than its name says.")


def _damaged(path: Path, kind: str, error: Exception) -> DamagedFileError:
    return DamagedFileError(f"{path} is damaged or not an {kind}: {reason(error)}.")


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an .npz file; asking the result for an array that the file has not is an InputError.

    Raises:
        InputError: it is missing, damaged, a zip bomb, or holds pickled objects (which are never
            loaded).
    """
    arrays = {}
    for name, content in read_members(path).items():
        try:
            if not name.endswith(".npy"):
                raise ValueError(f"it holds {name[:40]!r}")
            arrays[name.removesuffix(".npy")] = _read_array(io.BytesIO(content), len(content))
        except ValueError as error:
            raise _damaged(path, ".npz file of plain arrays", error) from error
    return _Arrays(path, arrays)


def map_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, those that are not compressed mapped: read when they are used.

    What is mapped is not checked against its CRC-32.

    Raises:
        InputError: as `load_arrays`, which reads files of up to `MAX_UNPACKED_BYTES`.
    """
    if not path.is_file() or path.stat().st_size <= MAX_UNPACKED_BYTES:
        return load_arrays(path)
    try:
        check_unpacked_size(path)
        with zipfile.ZipFile(path) as file, path.open("rb") as raw:
            members = file.infolist()
            if any(m.compress_type != zipfile.ZIP_STORED for m in members):
                return load_arrays(path)
            arrays = {m.filename.removesuffix(".npy"): _map_member(path, raw, m) for m in members}
    except InputError:
        raise
    except DAMAGED as error:
        raise _damaged(path, ".npz file of plain arrays", error) from error
    return _Arrays(path, arrays)


_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of the name and of what follows it


def _map_member(path: Path, file: io.BufferedIOBase, member: zipfile.ZipInfo) -> np.ndarray:
    """An array that is stored as it is in a zip file."""
    file.seek(member.header_offset)
    signature, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04" or member.flag_bits & 1:
        raise ValueError(f"no array where {member.filename[:40]!r} should be")
    file.seek(name + extra, 1)
    end = min(file.tell() + member.file_size, path.stat().st_size)
    return _map(path, file, end)


def map_array(path: Path) -> np.ndarray:
    """An .npy file's array, read when it is used if it has more than `MAX_UNPACKED_BYTES`.

    Raises:
        InputError: as `load_array`.
    """
    if not path.is_file() or path.stat().st_size <= MAX_UNPACKED_BYTES:
        return load_array(path)
    try:
        with path.open("rb") as file:
            return _map(path, file, path.stat().st_size)
    except (OSError, ValueError) as error:
        raise _damaged(path, ".npy file of a plain array", error) from error


def _map(path: Path, file: io.BufferedIOBase, end: int) -> np.ndarray:
    """The array in .npy format from where `file` stands to the byte `end`; as `_read_array`."""
    dtype, fortran_order, shape = _declared(file, end)
    if 0 in shape:
        return np.empty(shape, dtype)
    order: Any = "F" if fortran_order else "C"
    return np.memmap(path, dtype, "r", file.tell(), shape, order)


def read_csv(file: Any, **options: Any) -> "pd.DataFrame":
    """`pandas.read_csv` that gives numbers back as they were written, to the last bit."""
    import pandas as pd

    # The default from pandas 3.1 on, where to ask for it is deprecated.
    if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
        options["float_precision"] = "round_trip"
    return pd.read_csv(file, **options)


def load_array(path: Path) -> np.ndarray:
    """Read an .npy file.

    Raises:
        InputError: it is missing, damaged, or holds anything but numbers or text.
    """
    try:
        with path.open("rb") as file:
            return _read_array(file, path.stat().st_size)
    except FileNotFoundError as error:
        raise InputError(f"no file {path}.") from error
    except (OSError, ValueError) as error:
        raise _damaged(path, ".npy file of a plain array", error) from error


def read_members(path: Path) -> dict[str, bytes]:
    """{name: content} of a zip file.

    Raises:
        InputError: it is missing, damaged or a zip bomb.
    """
    try:
        check_unpacked_size(path)
        with zipfile.ZipFile(path) as file:
            if any(member.compress_type not in _COMPRESSIONS for member in file.infolist()):
                raise ValueError("a compression other than deflate")
            return {member.filename: file.read(member) for member in file.infolist()}
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"no file {path}.") from error
    except DAMAGED as error:
        text = f"{path} is damaged, or no zip file, as which .npz and .keras files are written"
        raise DamagedFileError(f"{text}: {reason(error)}.") from error


_MAGIC = b"\x93NUMPY"
_MOST_HEADER_BYTES = 10_000  # what NumPy reads, too
_MOST_BESIDE_ZERO = 2**16  # elements of an axis of an array without elements
_HEADER = {
    "descr": r"""['"]descr['"]\s*:\s*['"]([<>|=]?[A-Za-z?]\d{0,9}(?:\[\w+\])?)['"]""",
    "fortran_order": r"""['"]fortran_order['"]\s*:\s*(True|False)""",
    "shape": r"""['"]shape['"]\s*:\s*\(([\d\s,L]*)\)""",  # read in one way only, so at once
}


def _read_array(file: io.BufferedIOBase, size: int) -> np.ndarray:
    """The array in an .npy file of `size` bytes; nothing is allocated before they are known to
    hold it.

    NumPy's own reader allocates what a header declares, and raises what the allocation raises.

    Raises:
        ValueError: it is not such a file, or not of plain numbers or text.
    """
    dtype, fortran_order, shape = _declared(file, size)
    count = math.prod(shape)
    content = np.empty(count * dtype.itemsize, np.uint8)
    if file.readinto(content.data) != content.size:
        raise ValueError("it ends too early")
    # Raises ValueError for too many dimensions.
    return content.view(dtype).reshape(shape, order="F" if fortran_order else "C")


def _declared(file: io.BufferedIOBase, end: int) -> tuple[np.dtype, bool, tuple[int, ...]]:
    """What the header declares, once the bytes up to `end` are known to hold it."""
    dtype, fortran_order, shape = _read_header(file)
    count, left = math.prod(shape), end - file.tell()
    # Beside a zero, another axis may be of any length, and nobody may count to 2^62 then.
    if count * dtype.itemsize > left or max(shape, default=0) > max(left, _MOST_BESIDE_ZERO):
        raise ValueError(
            f"it declares an array {list(shape)} of {dtype.itemsize} bytes each, but holds {left}"
        )
    return dtype, fortran_order, shape


def _read_header(file: io.BufferedIOBase) -> tuple[np.dtype, bool, tuple[int, ...]]:
    """(dtype, whether in Fortran's order, shape); the text of the header is never evaluated."""
    start = file.read(len(_MAGIC) + 2)
    if start[:-2] != _MAGIC or start[-2:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError("it does not start as one")
    length = int.from_bytes(file.read(2 if start[-2] == 1 else 4), "little")
    if length > _MOST_HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes; at most {_MOST_HEADER_BYTES} are read")
    text = file.read(length).decode("latin1")
    found = {name: re.search(pattern, text, re.ASCII) for name, pattern in _HEADER.items()}
    descr, order, sizes = (match and match.group(1) for match in found.values())
    if descr is None or order is None or sizes is None:
        raise ValueError("its header is not that of a plain array [N, ...]")
    return _plain_dtype(descr), order == "True", tuple(map(int, re.findall(r"\d+", sizes)))


def _plain_dtype(descr: str) -> np.dtype:
    """The dtype of a header if it is one of numbers or text, else ValueError."""
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError) as error:
        raise ValueError(f"unknown dtype {descr!r}") from error
    if dtype.kind == "O":
        raise ValueError(
            "it holds pickled objects, which are not loaded; save arrays of unequal lengths with "
            "np.savez(FILE, *paths)"
        )
    if dtype.kind not in "biufcSU" or not dtype.itemsize:
        raise ValueError(f"it holds {dtype}, not numbers")
    return dtype


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a mapping as indented JSON, atomically."""
    write_text(path, json.dumps(plain(value), indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A mapping written by `write_json`. Raises InputError if it is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"no file {path}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {reason(error)}.") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} cannot be read: it holds no names and values.")
    return value


def plain(value: Any) -> Any:
    """Mappings, lists and Python scalars only, as YAML holds them."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
