"""What a training shows, and the file that has fairseq's log."""

import io
import itertools
import json
import logging
import re
import sys
from pathlib import Path

import pytest
from end_to_end.small import NARROW, cut, training
from end_to_end.toy import losses, run
from fairseq.logging import metrics
from support import logging_kept

from fairseq_maelm.cli import main
from fairseq_maelm.launch import screen
from fairseq_maelm.launch.screen import LOG_FILE, LogFile, Screen, running_loss, show_in_rank, shown

SIZES = ["--set", "batch-sequences=4", "sequence-length=64", "sequences-per-gpu=4", "max-update=3"]


def log(text: str, name: str = "fairseq_cli.train", level: int = logging.INFO) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text, "name": name, "levelno": level})


def without_times(text: str) -> list[str]:
    return [line.partition(" | ")[2] for line in text.splitlines()]


def test_the_screen_has_what_people_read_and_the_file_has_all(toy_data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["maelm", "pretrain", toy_data, "--output", folder, "--recipe", "tiny", "--gpus", 0, *SIZES]
    output = run(words, verbose=False)
    # A slow machine shows progress too.
    shown_lines = [line for line in without_times(output) if not line.endswith(" left")]
    header, place, valid, after = shown_lines
    assert header == f"pretraining maelm_tiny on {toy_data}: 3 updates on the CPU"
    assert place == f"in {folder}: checkpoints, and {LOG_FILE} with fairseq's command and log"
    whole = (folder / LOG_FILE).read_text(encoding="utf-8")
    assert f" | fairseq-train {toy_data} --user-dir " in whole.splitlines()[0]
    assert valid.startswith(f"valid after 3 updates: loss {losses(whole, 'valid')[0]:g}, ")
    assert after == f"checkpoints: {folder}; next: maelm fill --checkpoint {folder} 'A text with a <mask>.'"
    assert "fairseq_cli.train | Start iterating over samples" in whole and "| train | {" in whole
    # Everything is shown on request, and nothing changes in a run that is complete.
    assert "fairseq_cli.train | " in run(words)
    assert (folder / LOG_FILE).read_text(encoding="utf-8") == whole


def test_a_run_that_is_refused_leaves_no_log(toy_data: Path, tmp_path: Path) -> None:
    words = ["maelm", "pretrain", toy_data, "--output", tmp_path / "run", "--recipe", "tiny", "--gpus", 0, *SIZES]
    output = run([*words, "--", "--best-checkpoint-metric", "f2"], check=False, verbose=False)
    assert "logs no f2, but" in output.splitlines()[-1] and not (tmp_path / "run" / LOG_FILE).exists()


# What fairseq calls in the process that it starts for a GPU.
RANK = """
from fairseq_cli import train
from fairseq_maelm.fairseq_fixes import processes
processes._start = lambda number, main, cfg, kwargs: main()
processes.start_rank(0, train.cli_main, None, {})
"""


def test_a_process_that_fairseq_starts_for_a_gpu_shows_its_training_too(toy_data: Path, tmp_path: Path) -> None:
    settings = json.dumps([str(tmp_path / LOG_FILE), {"max_update": 1}])
    words = [*training(cut(toy_data, tmp_path / "data", lines=4), tmp_path / "run", *NARROW), "--max-update", 1]
    output = run([sys.executable, "-c", RANK, *words[1:]], environment={screen._FOR_RANKS: settings})
    assert "train_inner" not in output
    assert len(losses((tmp_path / LOG_FILE).read_text(encoding="utf-8"))) == 1


def test_the_line_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    lines: dict[str, str | None] = {}
    for stream, expected in ((io.StringIO(), ""), (terminal, "[##########          ] ")):
        monkeypatch.setattr("sys.stderr", stream)
        screen = Screen({"max_update": 200})
        # A run that was resumed after 60 updates.
        assert screen.line(60, 1000.0) is None and screen.line(60, 1001.0) is None
        line = screen.line(100, 1010.0)
        screen.emit(log('{"epoch": 1, "loss": "7.25", "num_updates": "100"}', "train_inner"))
        later = screen.line(100, 1010.0)
        with monkeypatch.context() as narrow:
            narrow.setattr("fairseq_maelm.launch.screen.terminal_columns", lambda: 60)
            lines[expected] = screen.line(100, 1010.0)
        screen.close()
        assert line is not None and line.removeprefix(expected).endswith("50 %, 4 updates/s, 0:00:25 left")
        assert later is not None and later.endswith("50 %, 4 updates/s, loss 7.250, 0:00:25 left")
        assert line.startswith(expected)
    assert lines["[##########          ] "] == "[######       ] 50 %, 4 updates/s, loss 7.250, 0:00:25 left"


def test_a_slow_start_is_soon_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    screen = Screen({"max_update": 1000})
    # Ten updates in the first hundred seconds, then ten a second, seen every second.
    lines = [screen.line(updates, now) for updates, now in [(0, 0.0), (10, 100.0)]]
    lines += [screen.line(10 + 10 * second, 100.0 + second) for second in range(1, 71)]
    screen.close()
    assert str(lines[1]).endswith("1 %, 0.1 updates/s, 2:45:00 left")
    assert str(lines[-1]).endswith("71 %, 10 updates/s, 0:00:29 left")


def test_the_time_left_falls_steadily_while_updates_take_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    screen = Screen({"max_update": 20})
    # 50 to 80 seconds each, seen every second.
    ends = list(itertools.accumulate([50, 70, 60, 80, 55] * 4))
    lines = [screen.line(sum(end <= second for end in ends), float(second)) for second in range(ends[-1])]
    screen.close()
    clocks = [re.findall(r"(\d+):(\d+):(\d+) left", str(line)) for line in lines]
    left = [
        3600 * int(hours) + 60 * int(minutes) + int(seconds) for [(hours, minutes, seconds)] in filter(None, clocks)
    ]
    assert max(after - before for before, after in zip(left[200:], left[201:])) < 10
    assert max(abs(seconds - (len(left) - second)) for second, seconds in enumerate(left) if second > 200) < 60


def test_epochs_that_limit_a_training_count_between_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    screen = Screen({"max_epoch": 4})
    assert screen.line(0, 1000.0) is None
    screen.emit(log('{"epoch": 1, "update": 1, "loss": "7.25", "num_updates": "100"}', "train_inner"))
    line = screen.line(200, 1050.0)
    screen.close()
    assert line is not None and line.endswith("50 %, 4 updates/s, loss 7.250, 0:00:50 left")


def test_the_loss_is_known_before_fairseq_logs_it() -> None:
    metrics.reset_meters("train_inner")
    assert running_loss() is None
    with metrics.aggregate("train_inner"):
        for loss in (7.0, 8.0):
            metrics.log_scalar("loss", loss, weight=2, round=3)
    assert running_loss() == 7.5
    metrics.reset_meters("train_inner")
    assert running_loss() is None


def test_lines_besides_the_progress(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen({})
    screen.emit(log('{"epoch": 1, "valid_loss": "0.5", "valid_f1": "80.25", "valid_num_updates": "1200"}', "valid"))
    screen.emit(log('{"epoch": 1, "train_loss": "0.5"}', "train"))
    screen.emit(log("begin training epoch 1", "fairseq.trainer"))
    screen.emit(log("gradient overflow", "fairseq.trainer", logging.WARNING))
    screen.emit(log("a library's warning", "py.warnings", logging.WARNING))
    screen.emit(log("stopping training: enough", "fairseq_maelm.fairseq_fixes.stopping"))
    screen.close()
    expected = ["valid after 1,200 updates: loss 0.5, f1 80.25", "gradient overflow", "stopping training: enough"]
    assert without_times(capsys.readouterr().err) == expected


def test_the_file_begins_with_what_was_logged_before_the_first_update(tmp_path: Path) -> None:
    handler, model = LogFile(tmp_path / "log"), ["a model"]
    handler.emit(logging.makeLogRecord({"msg": "%s", "args": (model,), "levelname": "INFO", "name": "main"}))
    model[0] = "another model"
    assert not (tmp_path / "log").exists()
    handler.emit(log("begin training epoch 1"))
    handler.emit(log("trained"))
    handler.close()
    texts = [line.split(" | ")[-1] for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines()]
    assert texts == ["['a model']", "begin training epoch 1", "trained"]


def test_logging_is_restored_and_other_ranks_show_warnings_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = logging.root.handlers[:]
    with pytest.raises(KeyboardInterrupt), shown(tmp_path, {}):
        assert [type(each) for each in logging.root.handlers] == [Screen, LogFile]
        raise KeyboardInterrupt
    assert logging.root.handlers == before and show_in_rank() == []
    monkeypatch.setenv("RANK", "1")
    with logging_kept():
        main(["user-dir"])
        assert logging.root.level == logging.WARNING, "one process speaks for all"
    with shown(tmp_path, {}):
        (screen,) = logging.root.handlers
        assert screen.level == logging.WARNING
