"""The demo: pictures of the embedded models by full steps and by plans, on one page."""
