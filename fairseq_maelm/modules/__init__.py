"""The parts of the model: positions, attention, layer stack, reassembly and heads."""
