"""One pytest suite per contract. Import a suite's tests and give the fixture that it names."""
