"""Faces of the engine: one folder per protocol, and none imports another without need."""
