"""Tables and plots of plans, programs and measurements, for a terminal or as HTML."""
