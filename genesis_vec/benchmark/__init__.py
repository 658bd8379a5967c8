"""Measuring: what a configuration runs at and takes, which configuration suits a machine."""
