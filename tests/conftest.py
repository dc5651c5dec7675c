"""What comes before TensorFlow is imported; all else is in `tests.shared`."""

import os
import tempfile

# One thread per worker of pytest-xdist, of which there are as many as cores. Before NumPy and
# TensorFlow are imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    for name in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "TF_NUM_INTEROP_THREADS",
    ):
        os.environ.setdefault(name, "1")

# What XLA compiled for one test, worker or subprocess serves the others. Before TensorFlow is
# imported.
if "TF_XLA_FLAGS" not in os.environ:
    XLA_CACHE = tempfile.TemporaryDirectory(
        prefix="virl_tf-xla-", ignore_cleanup_errors=True
    )  # gone with this process
    directory = f"--tf_xla_persistent_cache_directory={XLA_CACHE.name}"
    os.environ["TF_XLA_FLAGS"] = f"{directory} --tf_xla_persistent_cache_device_types=CPU"

# The files of whole runs and commands, the longest first. Workers take whole files: a long one
# that comes last would leave all but one of them idle.
LONGEST = ["test_fit_policy", "test_fit", "test_contexts", "test_fit_command", "test_cli"]
LONGEST += ["test_tuning_study", "test_judge_command", "test_cli_walks", "test_path_planning"]
LONGEST += ["test_irl", "test_properties", "test_discriminator_fit", "test_vips"]
LONGEST += ["test_ablation_command", "test_em_choice", "test_em_growth", "test_grid_walker"]
LONGEST += ["test_pooling", "test_disk", "test_contextual", "test_adaptive", "test_report"]
LONGEST += ["test_compare_and_plots", "test_em_few_rows", "test_sweep", "test_command_options"]
LONGEST += ["test_play_command", "test_kde", "test_planar_robot", "test_registered_task"]


def pytest_configure(config):
    """The order below, not pytest-xdist's, in which the files with most tests come first."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    # The controller of pytest-xdist's workers, which begin after this, never needs TensorFlow.
    controls = getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput")
    if not controls:
        config.pluginmanager.import_plugin("tests.shared")


def pytest_collection_modifyitems(items):
    """Begin with the longest files where several workers share the tests."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: ranks.get(item.path.stem, len(LONGEST)))
