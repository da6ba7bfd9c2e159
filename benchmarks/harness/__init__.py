"""What every benchmark is made of: systems that are measured in turns, their processes, results and pages."""
