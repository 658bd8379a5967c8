"""One environment over many scenes, worker processes and devices."""
