"""Carries out a start's decision (checkpoints/recovery_decision.py): rebuilds what is not kept."""
