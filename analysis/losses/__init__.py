"""Losses by context, calibration, what tokens are worth."""
