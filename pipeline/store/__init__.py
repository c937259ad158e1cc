"""Tuning records that outlive the run."""
