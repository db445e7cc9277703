"""The domain: decides what a claim or volume needs and orders the steps."""
