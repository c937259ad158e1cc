"""Builders and runners: candidates into records."""
