"""This package's environments as the environments of reinforcement-learning libraries, a module for each library.

A module imports its library; importing this package imports none. rsl_rl, skrl and rl_games join a process group, skrl
already when it is imported, where ``WORLD_SIZE`` is set.
"""
