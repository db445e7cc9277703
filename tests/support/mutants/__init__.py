"""Breaks the code at random places, one at a time, and checks that the tests notice it."""
