"""What a model is, before it is built: its options, sizes and checks, and the families that share its layers."""
