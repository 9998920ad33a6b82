"""Development only: an engine, a queue and a demo that make the worker run whole on a bare machine."""
