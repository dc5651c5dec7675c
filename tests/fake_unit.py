"""A sweep's unit that only counts. Workers import it: without TensorFlow, which takes seconds."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from virl_tf.persistence.files import write_json
from virl_tf.persistence.run_folder import RunFolder


@dataclass(frozen=True)
class FakeUnit:
    """Counts in 5 files up to 5, like iterations with checkpoints; can kill its worker, or fail."""

    name: str
    fault: str = ""
    group: str = "fake"

    @property
    def stages(self) -> dict:
        return {".": {"fake": self.name}}

    def execute(self, folder: Path) -> None:
        RunFolder.open(folder, self.stages["."])
        for i in range(5):
            step = folder / f"step-{i}"
            if step.exists():
                continue
            if i == 3 and self.fault == "kill once" and not (folder / "killed").exists():
                (folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "fail":
                raise ValueError("this unit cannot work")
            step.write_text(str(os.getpid()))
            time.sleep(0.02)
        with (folder / "finished").open("a") as file:
            file.write("once\n")
        write_json(folder / "summary.json", {})
