"""Training with a library in place of the package's own learner: the same settings, the same files of a run.

A module for each library, of its name, has a class ``Trainer``.
"""
