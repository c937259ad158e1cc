"""The probabilistic program: parameters, steps, traces and sketches."""
