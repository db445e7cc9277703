"""Pure rules: what a claim asks for, what the driver is sent, what the volume becomes."""
