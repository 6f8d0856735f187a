"""Probes of the frozen states of one or several encoders, layer by layer."""
