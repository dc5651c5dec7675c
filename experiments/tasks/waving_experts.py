"""Experts that wave with the context: what is not as the linear ones have it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.tasks import experts

WAVES = 3.0


def _target(config: Mapping[str, Any]) -> Any:
    return experts.random_experts(config, WAVES)


DESCRIPTION = replace(
    experts.DESCRIPTION,
    name="waving_experts",
    title="Waving experts",
    target=_target,
    # A linear expert follows a wave for a part of it.
    inference_components=lambda size: 3 * size,
)
