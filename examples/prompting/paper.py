"""The numbers of the paper's Table 7, large++ models: mean and standard deviation over five splits."""

# way -> model -> task -> text. F1 for QQP and MRPC, Pearson's correlation for STS-B, Matthews' for CoLA.
TABLE_7 = {
    "zero-shot": {
        "RoBERTa (paper)": {
            "MNLI": "50.8 / 51.7",
            "QQP": "49.7",
            "QNLI": "50.8",
            "SST-2": "83.6",
            "CoLA": "2.0",
            "RTE": "51.3",
            "MRPC": "61.9",
            "STS-B": "-3.2",
        },
        "MAE-LM (paper)": {
            "MNLI": "52.1 / 54.3",
            "QQP": "52.0",
            "QNLI": "52.3",
            "SST-2": "83.5",
            "CoLA": "2.0",
            "RTE": "54.5",
            "MRPC": "63.4",
            "STS-B": "-3.0",
        },
    },
    "head": {
        "RoBERTa (paper)": {
            "MNLI": "45.8 (6.4) / 47.8 (6.8)",
            "QQP": "60.7 (4.3)",
            "QNLI": "60.2 (6.5)",
            "SST-2": "81.4 (3.8)",
            "CoLA": "33.9 (14.3)",
            "RTE": "54.4 (3.9)",
            "MRPC": "76.6 (2.5)",
            "STS-B": "53.5 (8.5)",
        },
        "MAE-LM (paper)": {
            "MNLI": "48.7 (4.5) / 51.1 (6.0)",
            "QQP": "64.5 (4.2)",
            "QNLI": "62.1 (6.1)",
            "SST-2": "81.2 (3.9)",
            "CoLA": "31.1 (13.9)",
            "RTE": "58.0 (2.5)",
            "MRPC": "78.2 (2.1)",
            "STS-B": "53.0 (9.0)",
        },
    },
    "prompt": {
        "RoBERTa (paper)": {
            "MNLI": "68.3 (2.3) / 70.5 (1.9)",
            "QQP": "65.5 (5.3)",
            "QNLI": "64.5 (4.2)",
            "SST-2": "92.7 (0.9)",
            "CoLA": "9.3 (7.3)",
            "RTE": "69.1 (3.6)",
            "MRPC": "74.5 (5.3)",
            "STS-B": "71.0 (7.0)",
        },
        "MAE-LM (paper)": {
            "MNLI": "70.7 (2.0) / 73.3 (1.8)",
            "QQP": "67.3 (4.6)",
            "QNLI": "65.1 (4.3)",
            "SST-2": "92.4 (1.1)",
            "CoLA": "14.3 (8.9)",
            "RTE": "71.2 (3.3)",
            "MRPC": "74.8 (4.1)",
            "STS-B": "72.3 (6.5)",
        },
    },
}
