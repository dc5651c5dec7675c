"""The one place of the version, whose numbers say what may be mixed.

The second rises with every change of numbers of the presets that run published hyperparameters
(smoke, quick, paper): records of different ones are not mixed. The third rises with every change
of the numbers of `best`, of data of one's own and of all else, which leaves those records valid.
"""

VERSION = "1.0.43"

SAME_NUMBERS = {"0.3": "1.0"}
"""First two numbers of a version -> those of a later one that has the same presets' numbers."""
