"""The one place of the version. It rises with every change of numbers: results made by different
versions are not mixed.
"""

VERSION = "0.2.0"
