"""Metadata and dependencies of virl_tf: lower bounds here, one whole tested environment in
requirements.lock, and one of the lowest versions in requirements.lowest.
"""

import runpy
from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="virl_tf",
    version=runpy.run_path(str(Path(__file__).parent / "virl_tf" / "version.py"))["VERSION"],
    description="Versatile Inverse Reinforcement Learning via Cumulative Rewards (V-IRL)",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.14",
    packages=[*find_packages(include=["virl_tf*", "experiments*"]), "virl_tf.hparams_files"],
    # An editable install puts the checkout on the path. The default's import hook comes after the
    # path, where scripts beside a checkout named virl_tf find that folder: an empty namespace.
    options={"editable_wheel": {"mode": "compat"}},
    # The YAML files stand at the top level of the repository and travel inside the installed
    # package.
    package_dir={"virl_tf.hparams_files": "hparams"},
    # What `--dry-run` takes expected times from: tables, and of which rows and dimension they are.
    package_data={
        "virl_tf.hparams_files": ["*.yaml", "tuned/*.yaml"],
        "virl_tf": ["py.typed"],
        "experiments": ["results/**/results.csv", "results/**/config.yaml"],
    },
    entry_points={"console_scripts": ["virl = experiments.cli:main"]},
    install_requires=[
        "tensorflow>=2.21",
        "tensorflow-probability>=0.25",
        "tf-keras>=2.21",  # TFP does not import without it; the networks here are Keras 3
        "keras>=3.12",
        "h5py>=3.14",
        "jaxtyping>=0.3",  # shapes of arrays as checked text
        "numpy>=2.0",
        "pandas>=2.2.2",
        "PyYAML>=6.0",
        "scikit-learn>=1.7",
        "scipy>=1.13",
        "threadpoolctl>=3.5",
        "rich>=14.0",
        "typer>=0.18",
        "matplotlib>=3.10",
        "optuna>=5.0",
    ],
    extras_require={
        "cluster": ["distributed>=2025.5", "dask-jobqueue>=0.9"],
        "parquet": ["pyarrow>=18"],  # demonstrations from .parquet files
        "tensorboard": ["tensorboard>=2.20"],  # to look at the event files
        "gymnasium": ["gymnasium[mujoco]>=1.0"],  # rewards for environments, a reaching arm
        "browser": ["playwright>=1.50"],  # tests of report and site in a headless Chromium
        # `python -m experiments docs`. MkDocs 2 drops plugins, and with them the API reference.
        "docs": [
            "mkdocs>=1.6,<2",
            "mkdocs-material>=9.6",
            "mkdocstrings[python]>=1.0",
            "latex2mathml>=3.78",
        ],
        "release": ["build>=1.3", "twine>=6.1"],  # wheel and sdist, and what an index asks of them
        "postgres": ["psycopg[binary]>=3.2.1"],  # studies in a PostgreSQL database
        # Peers of `benchmark --peers` and `judge`.
        "bench": ["gmmvi>=1.1", "flowjax>=19; python_version >= '3.11'"],
        "test": [
            "pytest>=8.4",
            "pytest-xdist>=3.8",
            "hypothesis>=6.140",
            "ruff>=0.14",
            "mypy>=1.18.1",
            "pandas-stubs>=2.2.2.240514",
            "types-PyYAML>=6.0.12",
        ],
    },
)
