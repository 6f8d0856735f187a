"""The recipe for sweeps says what the task understands and the validation logs."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import yaml

from fairseq_maelm.finetuning.squad.scoring import metric_names
from fairseq_maelm.finetuning.squad.task import SquadTaskConfig

RECIPE = Path(__file__).resolve().parents[3] / "examples" / "squad" / "recipes" / "squad2.yaml"


def test_recipe():
    content = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    assert set(content) == {"task", "data", "metric", "metrics", "options", "search", "search_large", "paper"}
    assert {content["metric"], *content["metrics"]} <= set(metric_names("2.0", np.array([True, False])))
    known = {field.name.replace("_", "-") for field in fields(SquadTaskConfig)}
    assert set(content["options"]) - known == {"task", "criterion", "batch-size-valid"}
    # Table 5 of the paper.
    assert content["options"]["max-length"] == 512
    for name, rates in (("search", [2e-5, 3e-5, 4e-5, 5e-5]), ("search_large", [7e-6, 1e-5, 2e-5, 3e-5])):
        assert content[name] == {"lr": rates, "batch-size": [16, 32], "epochs": [2, 3], "warm-up": [0.06, 0.1]}


def test_the_task_s_defaults_are_the_recipe_s():
    """The paper fine-tunes on 512 tokens; 384 is what its predecessors' scripts have."""
    options = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))["options"]
    script = (RECIPE.parents[1] / "finetune.sh").read_text(encoding="utf-8")
    for name in ("max_length", "doc_stride", "max_question_length"):
        default = SquadTaskConfig.__dataclass_fields__[name].default
        assert default == options[name.replace("_", "-")]
        assert f'"${{{name.upper()}:={default}}}"' in script
    assert SquadTaskConfig.max_length == 512
