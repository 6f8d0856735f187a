"""What frozen states know: probes of one or several encoders, layer by layer."""
