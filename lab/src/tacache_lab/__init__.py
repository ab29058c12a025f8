"""The lab: rivals, benchmark, report, exports and metrics. The library never imports it."""
