"""The encoder outside of torch: as an ONNX graph, in single precision and in 8 bits."""
