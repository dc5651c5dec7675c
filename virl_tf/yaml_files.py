"""YAML that is read strictly and executes nothing, and is written so that it is read back."""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from virl_tf.validation import InputError, reason


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-3 as a number (as YAML 1.2 does), and refuses a key given twice and
    aliases.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        # A few lines of aliases to aliases stand for billions of values, or for a value that
        # contains itself.
        if self.check_event(yaml.AliasEvent) and self.peek_event().anchor in self.anchors:
            raise yaml.composer.ComposerError(
                None, None, "aliases (*name) are not allowed", self.peek_event().start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set[Hashable]()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # is refused below
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that writes no aliases, and quotes a string which `_Loader` would read as a
    number.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
        list("-+0123456789."),
    )


def to_yaml(value: Any) -> str:
    """What `read_yaml` reads back as `value`."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)


_MAX_YAML_BYTES = 2**18  # ours have at most some ten thousand, and a megabyte takes 16 seconds


def read_yaml(path: Path | str) -> Any:
    """The content of a YAML file; nothing in it is executed.

    Raises InputError with the file's name if unreadable.
    """
    try:
        if Path(path).stat().st_size > _MAX_YAML_BYTES:
            raise InputError(f"cannot read {path}: it is larger than {_MAX_YAML_BYTES} bytes.")
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {reason(error)}.") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Any:
    """The value of a YAML text; nothing in it is executed.

    Raises InputError that names `source` if it is not YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    # PyYAML's own constructors raise more than YAMLError, e.g. for a date that does not exist.
    except (
        yaml.YAMLError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        raise InputError(f"{source} is not valid YAML: {reason(error)}") from error
