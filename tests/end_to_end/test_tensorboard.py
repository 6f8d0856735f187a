"""fairseq's own option for TensorBoard, with this package's metrics and the extra of that name."""

from pathlib import Path

import pytest

from end_to_end.small import narrow
from end_to_end.toy import run

pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")


@pytest.mark.slow
def test_metrics_reach_tensorboard(data: Path, tmp_path: Path) -> None:
    run(narrow(data, tmp_path / "saved", "--tensorboard-logdir", tmp_path / "logs", updates=4))
    (events,) = (tmp_path / "logs" / "train_inner").glob("events.*")
    written = events.read_bytes()
    assert all(name in written for name in (b"loss", b"accuracy", b"masked", b"wps"))
