"""For tests of Forebay and of other people's backends: contract suites, clocks, a virtual-time world.

`forebay.testing.contracts` has one pytest suite per contract; a backend is correct when it is green.
Nothing else in Forebay imports this package.
"""
