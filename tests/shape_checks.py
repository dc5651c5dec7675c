"""Records against the shapes that their annotations promise."""

import dataclasses
from typing import Any, Union, get_args, get_origin, get_type_hints

from jaxtyping import jaxtyped


def check_record(record):
    """Assert that every field of a named tuple or dataclass is what its annotation says.

    A letter stands for the same length in all fields of one record; a record in a field is checked
    by itself.
    """
    hints = get_type_hints(type(record))
    assert hints, f"{type(record).__name__} has no annotated fields"
    fields = {name: getattr(record, name) for name in hints}
    with jaxtyped("context"):
        for name, value in fields.items():
            found = f"{getattr(value, 'dtype', type(value))} {getattr(value, 'shape', '')}"
            assert _is(value, hints[name]), (
                f"{type(record).__name__}.{name}: {found} is no {hints[name]}"
            )
    for value in fields.values():
        if hasattr(value, "_fields") or dataclasses.is_dataclass(value):
            check_record(value)


def _is(value, annotation):
    """Whether a value is of an annotation's type; of generics only the outer one is looked at."""
    if annotation is Any:
        return True
    if get_origin(annotation) is Union or isinstance(annotation, type(int | str)):
        return any(_is(value, member) for member in get_args(annotation))
    return isinstance(value, get_origin(annotation) or annotation)
