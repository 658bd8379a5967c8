"""The tasks that ship; each is also an example of how to write one."""
