"""Fine-tuning: a folder for each downstream task, and modules that several tasks share."""
