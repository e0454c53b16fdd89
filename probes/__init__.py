"""The candidate side: the C header, the built-in C engine, one adapter file for each kind of engine."""
