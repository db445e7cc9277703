"""Would the tests notice? Breaks the code at random places, one at a time, and runs the tests."""
