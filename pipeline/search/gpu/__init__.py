"""The parts of the analytic model of programs on GPUs."""
