"""What a file in HDF5's format itself holds: it can also name other files, or declare more."""

import h5py


def within(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """What lies under a name, `a/b/c`. Raises ValueError for a link to somewhere else."""
    found = group
    for part in name.split("/"):
        is_group = isinstance(found, h5py.Group)
        if not is_group or not isinstance(found.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"{name} is not within the file")
        found = found[part]
    return found


def array_within(group: h5py.Group, name: str) -> h5py.Dataset:
    """An array, not yet read. Raises ValueError for something else, or parts in other files."""
    dataset = within(group, name)
    if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
        raise ValueError(f"{name} is not an array within the file")
    return dataset
