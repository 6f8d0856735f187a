"""Fine-tuning: one folder for each downstream task, and what several of them share."""
