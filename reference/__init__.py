"""The PyTorch side: load a model, prepare its input, run it and record every ATen op, execute a region."""
