"""The numbers of the paper's Table 7, large++ models: mean and standard deviation over five splits."""

# F1 for QQP and MRPC, Pearson's correlation for STS-B, Matthews' for CoLA.
_TASKS = ("MNLI", "QQP", "QNLI", "SST-2", "CoLA", "RTE", "MRPC", "STS-B")
_PRINTED = {
    "zero-shot": (
        "50.8 / 51.7 | 49.7 | 50.8 | 83.6 | 2.0 | 51.3 | 61.9 | -3.2",
        "52.1 / 54.3 | 52.0 | 52.3 | 83.5 | 2.0 | 54.5 | 63.4 | -3.0",
    ),
    "head": (
        "45.8 (6.4) / 47.8 (6.8) | 60.7 (4.3) | 60.2 (6.5) | 81.4 (3.8) | 33.9 (14.3) | 54.4 (3.9) | 76.6 (2.5) "
        "| 53.5 (8.5)",
        "48.7 (4.5) / 51.1 (6.0) | 64.5 (4.2) | 62.1 (6.1) | 81.2 (3.9) | 31.1 (13.9) | 58.0 (2.5) | 78.2 (2.1) "
        "| 53.0 (9.0)",
    ),
    "prompt": (
        "68.3 (2.3) / 70.5 (1.9) | 65.5 (5.3) | 64.5 (4.2) | 92.7 (0.9) | 9.3 (7.3) | 69.1 (3.6) | 74.5 (5.3) "
        "| 71.0 (7.0)",
        "70.7 (2.0) / 73.3 (1.8) | 67.3 (4.6) | 65.1 (4.3) | 92.4 (1.1) | 14.3 (8.9) | 71.2 (3.3) | 74.8 (4.1) "
        "| 72.3 (6.5)",
    ),
}
# way -> model -> task -> text.
TABLE_7 = {
    way: {
        f"{model} (paper)": dict(zip(_TASKS, row.split(" | "), strict=True))
        for model, row in zip(("RoBERTa", "MAE-LM"), rows)
    }
    for way, rows in _PRINTED.items()
}
